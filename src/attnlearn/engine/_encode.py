"""A mapping of arrays and plain values as tensors plus JSON text, and back, exactly and without pickle.

JSON knows neither arrays nor tuples nor infinities; those become one-entry objects whose key starts with
`$`. Arrays keep dtype and shape, NumPy scalars stay NumPy scalars (a float32 that came back as a Python
float would change the bytes of what follows). Mappings must have string keys that do not start with `$`.
Records are dataclasses and enumerations that were declared `storable`: they are written by name and rebuilt from their fields, and
no other class is ever constructed from a file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from attnlearn._errors import require
from attnlearn._files import parse_json

_KINDS = "fiub"
_RULE = "must hold arrays, numbers, strings, bools, None, records, lists or mappings of those"
_RECORDS: dict[str, type] = {}
Kind = TypeVar("Kind", bound=type)


def storable(kind: Kind) -> Kind:
    """Declare a dataclass or an enumeration whose values may stand in a checkpoint; also a decorator.

    >>> @storable
    ... @dataclasses.dataclass(frozen=True)
    ... class Spot:
    ...     row: int
    >>> decode(*encode({"at": Spot(3)}))["at"]
    Spot(row=3)
    """
    _RECORDS[kind.__name__] = kind
    return kind


def to_array(value: Any) -> np.ndarray:
    """`value` (NumPy, JAX, torch on the CPU) as a C-contiguous NumPy array, 0-d kept 0-d.

    >>> to_array(np.ones((2, 3)).T).flags.c_contiguous
    True
    """
    return np.asarray(value, order="C")


def is_array(value: Any) -> bool:
    """Whether `value` is an array of some library, 0-d arrays included, NumPy scalars excluded."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic)


def encode(value: Any) -> tuple[dict[str, np.ndarray], str]:
    """The tensors in `value`, and JSON text that refers to them.

    >>> tensors, text = encode({"x": np.zeros(2), "n": 3})
    >>> text
    '{"x": {"$array": ["0", "<f8", [2]]}, "n": 3}'
    """
    tensors: dict[str, np.ndarray] = {}
    return tensors, json.dumps(_plain(value, tensors, "state"), allow_nan=False)


def _plain(value: Any, tensors: dict[str, np.ndarray], where: str) -> Any:
    if is_array(value) or isinstance(value, np.generic):
        array = to_array(value)
        require(array.dtype.kind in _KINDS, where, "arrays must be real numbers or bools", value)
        key = str(len(tensors))
        tensors[key] = array
        tag = "$scalar" if isinstance(value, np.generic) else "$array"
        return {tag: [key, array.dtype.str, list(array.shape)]}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, tuple):
        return {"$tuple": [_plain(entry, tensors, where) for entry in value]}
    if isinstance(value, list):
        return [_plain(entry, tensors, where) for entry in value]
    if _RECORDS.get(type(value).__name__) is type(value):
        inside = value.name if isinstance(value, Enum) else _plain(fields_of(value), tensors, where)
        return {"$record": [type(value).__name__, inside]}
    require(isinstance(value, Mapping), where, _RULE, value)
    for key in value:
        require(
            isinstance(key, str) and not key.startswith("$"), where, "keys must be strings without $", key
        )
    return {key: _plain(entry, tensors, f"{where}.{key}") for key, entry in value.items()}


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, not copied."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def decode(tensors: Mapping[str, np.ndarray], text: str) -> Any:
    """The value that `encode` was given.

    >>> value = {"x": np.float32(0.1), "limits": (0.0, float("inf")), "name": None}
    >>> decode(*encode(value)) == value
    True
    """
    return _rebuild(parse_json(text), tensors)


def _rebuild(value: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_rebuild(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_rebuild(entry, tensors) for entry in value["$tuple"])
    if "$float" in value:
        return float(value["$float"])
    if "$record" in value:
        name, inside = value["$record"]
        kind = _RECORDS[name]
        return kind[inside] if issubclass(kind, Enum) else kind(**_rebuild(inside, tensors))
    for tag in ("$array", "$scalar"):
        if tag in value:
            key, dtype, shape = value[tag]
            plain = isinstance(dtype, str) and re.fullmatch(rf"[<|][{_KINDS}][1248]", dtype) is not None
            require(plain, "dtype", "must be of real numbers or bools", dtype)
            array = tensors[key].astype(np.dtype(dtype), copy=False).reshape(shape)
            return array[()] if tag == "$scalar" else array
    return {key: _rebuild(entry, tensors) for key, entry in value.items()}
