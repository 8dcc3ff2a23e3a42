"""The manifest of a recorded folder: what the shards hold, checked before any of them is opened.

{"schema": "attnlearn/recorded", "version": 1, "attnlearn": ..., "dtype": "float32", "sequences": n,
 "tokens": k, "dim": d, "out_dim": o, "masked": false, "causal": null, "fingerprint": sha256,
 "shards": [{"name": "shard-000000.safetensors", "sequences": n0}, ...], "provenance": {...},
 "words": [["The", "cat", ...], ...]}      the tokens of the first sequences as text, where they were recorded
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnlearn._errors import one_line
from attnlearn._files import read_json
from attnlearn._version import __version__
from attnlearn.data._calibration import MAX_MANIFEST_BYTES, MAX_SIZE

FILE = "manifest.json"
SCHEMA = "attnlearn/recorded"
VERSION = 1
SHARD_NAME = re.compile(r"shard-[0-9]{6}\.safetensors", re.ASCII)
CODES = {"float32": "F32", "float64": "F64"}


def shard_name(number: int) -> str:
    """File name of shard `number`."""
    return f"shard-{number:06d}.safetensors"


@dataclass(frozen=True)
class Manifest:
    """A checked manifest."""

    dtype: str
    sequences: int
    tokens: int
    dim: int
    out_dim: int
    masked: bool
    causal: bool | None
    fingerprint: str
    shards: tuple[tuple[str, int], ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    words: tuple[tuple[str, ...], ...] = ()

    def expected(self, sequences: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The tensors of a shard with that many sequences: name -> dtype code, shape."""
        code, k = CODES[self.dtype], self.tokens
        tensors: dict[str, tuple[str, tuple[int, ...]]] = {
            "x": (code, (sequences, k, self.dim)),
            "y": (code, (sequences, k, self.out_dim)),
        }
        if self.masked:
            tensors["mask"] = ("BOOL", (sequences, k))
        return tensors

    def to_json(self) -> dict[str, Any]:
        """What is written to disk."""
        body = asdict(self)
        body["shards"] = [{"name": name, "sequences": count} for name, count in self.shards]
        return {"schema": SCHEMA, "version": VERSION, "attnlearn": __version__, **body}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, or one clear line why it is none."""
    path = folder / FILE

    def refuse(reason: str) -> ValueError:
        return ValueError(
            f"path: must be a folder of recorded activations, got {folder} ({one_line(reason)})"
        )

    if not path.is_file():
        raise refuse(f"no {FILE}")
    try:
        value = read_json(path, MAX_MANIFEST_BYTES)
    except ValueError as error:
        raise refuse(f"{FILE}: {error}") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise refuse(f"{FILE} does not say schema {SCHEMA}")
    if value.get("version") != VERSION or type(value.get("version")) is not int:
        raise refuse(f"manifest version {str(value.get('version'))[:20]}, this release reads {VERSION}")
    problem = _problem(value)
    if problem:
        raise refuse(problem)
    return Manifest(
        **{name: value[name] for name in ("dtype", "sequences", "tokens", "dim", "out_dim", "masked")},
        causal=value["causal"],
        fingerprint=value["fingerprint"],
        shards=tuple((shard["name"], shard["sequences"]) for shard in value["shards"]),
        provenance=value.get("provenance", {}),
        words=tuple(tuple(entry) for entry in value.get("words", [])),
    )


def _problem(value: dict[str, Any]) -> str | None:
    """Why a manifest of the right version cannot be used; None if it can."""
    if str(value.get("dtype")) not in CODES:
        return f"dtype {str(value.get('dtype'))[:20]}, expected one of {sorted(CODES)}"
    for name in ("sequences", "tokens", "dim", "out_dim"):
        if not _is_size(value.get(name)):
            return f"{name} is not a positive integer"
    if type(value.get("masked")) is not bool or type(value.get("causal", 0)) not in (bool, type(None)):
        return "masked or causal is not a boolean"
    if not isinstance(value.get("fingerprint"), str) or not isinstance(value.get("provenance", {}), dict):
        return "fingerprint is not text or provenance not an object"
    if not _are_words(value.get("words", []), value["tokens"]):
        return "words is not a list of at most as many texts as tokens, for each sequence"
    shards = value.get("shards")
    if not isinstance(shards, list) or not shards:
        return "shards is not a list of at least one"
    for shard in shards:
        if not isinstance(shard, dict) or not _is_size(shard.get("sequences")):
            return "a shard has no positive number of sequences"
        if not isinstance(shard.get("name"), str) or not SHARD_NAME.fullmatch(shard["name"]):
            return f"shard name {str(shard.get('name'))[:40]!r} is not of the form {shard_name(0)}"
    if len({shard["name"] for shard in shards}) != len(shards):
        return "a shard is named twice"
    if sum(shard["sequences"] for shard in shards) != value["sequences"]:
        return "the shards do not add up to the number of sequences"
    return None


def _are_words(value: Any, tokens: int) -> bool:
    """Whether `value` has the tokens of some sequences as text."""
    return isinstance(value, list) and all(
        isinstance(entry, list) and len(entry) <= tokens and all(isinstance(word, str) for word in entry)
        for entry in value
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIZE
