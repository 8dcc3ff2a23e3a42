"""The wire format of processes and servers: length-prefixed frames of JSON and raw numbers, no pickle.

    frame  = header length (4 bytes, little endian) + body length (8 bytes) + header + body
    header = JSON object in UTF-8, at most 64 KiB
    body   = numbers in C order, little endian; empty where none are said to come

    hello   {"kind": "hello", "protocol": 2, "dim": d, "out_dim": o, "dtype": "float32"}
    query   {"kind": "query", "number": 7, "dtype": "float64", "shape": [n, k, d]}
    answer  {"kind": "answer", "number": 7, "dtype": "float32", "shape": [n, k, o]}
    error   {"kind": "error", "number": 7, "message": "one line"}

Queries are numbered, and an answer repeats the number of its query, so that a stray or repeated frame is not taken
for the next answer. A server that greets with protocol 1 repeats no numbers and is believed without them.

Both lengths are checked against their limits before anything is allocated, and the body must have exactly
the length that dtype and shape ask for. Answers may be float32 or float64; the dtype of the hello is the one
in which the oracle computes, and queries are rounded to it by whoever asks.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import OracleError
from attnlearn.oracle._calibration import MAX_BODY_BYTES, MAX_HEADER_BYTES
from attnlearn.oracle._patience import Transient
from attnlearn.oracle._words import plain

PROTOCOL = 2
PROTOCOLS = (1, 2)
DTYPES = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_PREFIX = struct.Struct("<IQ")


class Refusal(OracleError):
    """The oracle says in due form that it will not answer: the stream is in order and may be used again."""


class Hello(NamedTuple):
    """What an oracle says of itself before it is asked."""

    dim: int
    out_dim: int
    dtype: np.dtype
    numbered: bool


def pack(header: dict[str, Any], array: np.ndarray | None = None) -> bytes:
    """One frame as bytes.

    >>> unpack(pack({"kind": "query"}, np.ones((1, 2, 3))))[1].shape
    (1, 2, 3)
    """
    body = b""
    if array is not None:
        wire = DTYPES[array.dtype.name]
        header = {**header, "dtype": array.dtype.name, "shape": list(array.shape)}
        body = np.ascontiguousarray(array, dtype=wire).tobytes()
    text = json.dumps(header).encode()
    return _PREFIX.pack(len(text), len(body)) + text + body


def read(
    receive: Callable[[int], bytes], max_body: int = MAX_BODY_BYTES
) -> tuple[dict[str, Any], np.ndarray | None]:
    """One frame from `receive(n)`, which returns exactly n bytes or raises.

    >>> import io
    >>> read(io.BytesIO(pack({"kind": "hello"})).read)
    ({'kind': 'hello'}, None)
    """
    header_size, body_size = _PREFIX.unpack(receive(_PREFIX.size))
    if header_size > MAX_HEADER_BYTES or body_size > max_body:
        raise OracleError(
            f"a frame of {header_size} + {body_size} bytes exceeds {MAX_HEADER_BYTES} + {max_body}"
        )
    header = json_object(receive(header_size), "a frame's header")
    return header, _body(header, body_size, receive)


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `data`; anything else is an error of the oracle.

    >>> json_object(b"[" * 100_000, "the greeting")
    Traceback (most recent call last):
    attnlearn._errors.OracleError: the greeting is not JSON
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise OracleError(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise OracleError(f"{what} is not a JSON object")
    return value


def _body(header: dict[str, Any], size: int, receive: Callable[[int], bytes]) -> np.ndarray | None:
    shape = header.get("shape")
    if shape is None:
        if size:
            raise OracleError(f"a frame has {size} bytes but no shape")
        return None
    dtype = DTYPES.get(str(header.get("dtype")))
    counts = isinstance(shape, list) and all(type(entry) is int and entry >= 0 for entry in shape)
    if dtype is None or not counts or len(shape) != 3 or math.prod(shape) * dtype.itemsize != size:
        says = f"{plain(str(header.get('dtype')), limit=20)} of shape {plain(str(shape), limit=80)}"
        raise OracleError(f"a frame of {size} bytes says it is {says}")
    native = dtype.newbyteorder("=")
    return np.frombuffer(receive(size), dtype).astype(native).reshape(shape)


def unpack(data: bytes, max_body: int = MAX_BODY_BYTES) -> tuple[dict[str, Any], np.ndarray | None]:
    """The one frame that `data` is.

    >>> unpack(b"short")
    Traceback (most recent call last):
    attnlearn.oracle._patience.Transient: a frame ends too early
    """
    position = 0

    def receive(size: int) -> bytes:
        nonlocal position
        piece = data[position : position + size]
        if len(piece) < size:
            raise Transient("a frame ends too early")
        position += size
        return piece

    frame = read(receive, max_body)
    if position != len(data):
        raise OracleError(f"{len(data) - position} bytes follow the frame")
    return frame


def answer_of(frame: tuple[dict[str, Any], np.ndarray | None], number: int | None = None) -> np.ndarray:
    """The numbers of an answer frame, which must be the answer to query `number`; an error frame is raised.

    >>> answer_of(unpack(pack({"kind": "answer", "number": 3}, np.ones((1, 2, 3)))), number=4)
    Traceback (most recent call last):
    attnlearn.oracle._patience.Transient: query 4 got the answer to query 3: a frame is stray or repeated
    """
    header, array = frame
    kind, given = header.get("kind"), header.get("number")
    # A server that could not read a query cannot repeat its number.
    if number is not None and given != number and not (kind == "error" and given is None):
        said = plain(str(given), limit=20)
        raise Transient(f"query {number} got the answer to query {said}: a frame is stray or repeated")
    if kind == "error":
        raise Refusal(plain(f"the oracle says: {header.get('message')}"))
    if kind != "answer" or array is None:
        raise OracleError(f"expected an answer, got a frame of kind {plain(str(kind), limit=20)}")
    return array


def hello_of(header: dict[str, Any]) -> Hello:
    """What a hello says; refused unless it is of a known protocol."""
    dim, out_dim, dtype, protocol = (header.get(name) for name in ("dim", "out_dim", "dtype", "protocol"))
    sizes = all(type(size) is int and 1 <= size <= MAX_BODY_BYTES for size in (dim, out_dim))
    known = type(protocol) is int and protocol in PROTOCOLS and isinstance(dtype, str) and dtype in DTYPES
    if header.get("kind") != "hello" or not sizes or not known:
        got = plain(str(header), limit=100)
        raise OracleError(f"expected a hello of protocol {PROTOCOLS[0]} or {PROTOCOL}, got {got}")
    return Hello(dim, out_dim, np.dtype(dtype), protocol >= 2)  # type: ignore[arg-type]
