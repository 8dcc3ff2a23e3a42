"""Damage to bytes and to JSON, drawn from a generator: what disks, networks and malice do to files."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

NUMBERS = (0, 1, -1, 255, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**12, 10**40)
NUMBERS_WITH_POINT = (0.5, -0.0, 1e308, 1e-320, 1e999, float("nan"))
TEXTS = (
    "",
    "x",
    "\x00",
    "é\ud800",
    "F64",
    "F32",
    "../../etc/passwd",
    "1" * 5000,
    "<script>",
    "-1",
    "nan",
    "O",
    "U999",
    "two\nlines",
    "\x1b[2J",
)


def _deep(levels: int) -> Any:
    value: Any = 0
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


STRANGE = (
    None, True, False, [], {}, [[]], {"a": 1}, {"$array": ["0", "<f8", [1]]}, {"$float": "x"}, {"$tuple": 3},
    _deep(30), _deep(90), *NUMBERS, *NUMBERS_WITH_POINT, *TEXTS,
)  # fmt: skip


def mutated_bytes(whole: bytes, rng: np.random.Generator) -> bytes:
    """`whole` with one to three pieces of damage."""
    damaged = bytearray(whole)
    for _ in range(rng.integers(1, 4)):
        if not damaged:
            break
        place, length = int(rng.integers(len(damaged))), int(2 ** rng.integers(0, 7))
        kind = rng.integers(7)
        if kind == 0:
            damaged[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            damaged[place : place + length] = rng.bytes(length)
        elif kind == 2:
            del damaged[place:]
        elif kind == 3:
            del damaged[place : place + length]
        elif kind == 4:
            damaged[place:place] = rng.bytes(length)
        elif kind == 5:
            damaged[place:place] = damaged[place : place + length]
        else:
            number = NUMBERS[rng.integers(len(NUMBERS))] % 2**64
            size = int(rng.choice([1, 2, 4, 8]))
            damaged[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(damaged)


def mutated_json(value: Any, rng: np.random.Generator) -> Any:
    """A copy of `value` with one to three of its entries replaced, removed, renamed or repeated."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.integers(1, 4)):
        places = list(_places(root))
        holder, key = places[rng.integers(len(places))]
        kind = rng.integers(4)
        if kind == 1 and holder is not root:
            del holder[key]
        elif kind == 2 and isinstance(holder, dict):
            holder[TEXTS[rng.integers(len(TEXTS))]] = holder.pop(key)
        elif kind == 3 and isinstance(holder, list) and holder is not root:
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(STRANGE[rng.integers(len(STRANGE))])
    return root[0]


def mutated_text(value: Any, rng: np.random.Generator) -> bytes:
    """JSON text of a damaged `value`, or damaged JSON text of it; now and then one that is nested without end."""
    kind = rng.integers(20)
    if kind == 0:
        return (b"[" if rng.integers(2) else b'{"a":') * 100_000
    if kind < 5:
        return mutated_bytes(json.dumps(value).encode(), rng)
    return json.dumps(mutated_json(value, rng)).encode()


def _places(holder: Any) -> Iterator[tuple[Any, Any]]:
    entries = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, entry in list(entries):
        yield holder, key
        if isinstance(entry, dict | list):
            yield from _places(entry)
