"""The wire format of processes and servers: length-prefixed frames of JSON and raw numbers, no pickle.

    frame  = header length (4 bytes, little endian) + body length (8 bytes) + header + body
    header = JSON object in UTF-8, at most 64 KiB
    body   = numbers in C order, little endian; empty where none are said to come

    hello   {"kind": "hello", "protocol": 1, "dim": d, "out_dim": o, "dtype": "float32"}
    query   {"kind": "query", "dtype": "float64", "shape": [n, k, d]}
    answer  {"kind": "answer", "dtype": "float32", "shape": [n, k, o]}
    error   {"kind": "error", "message": "one line"}

Both lengths are checked against their limits before anything is allocated, and the body must have exactly
the length that dtype and shape ask for. Answers may be float32 or float64; the dtype of the hello is the one
in which the oracle computes, and queries are rounded to it by whoever asks.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._errors import OracleError
from attnlearn.oracle._calibration import MAX_BODY_BYTES, MAX_HEADER_BYTES

PROTOCOL = 1
DTYPES = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_PREFIX = struct.Struct("<IQ")


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
    try:
        header = json.loads(receive(header_size))
    except ValueError as error:
        raise OracleError("a frame's header is not JSON") from error
    if not isinstance(header, dict):
        raise OracleError("a frame's header is not a JSON object")
    return header, _body(header, body_size, receive)


def _body(header: dict[str, Any], size: int, receive: Callable[[int], bytes]) -> np.ndarray | None:
    shape = header.get("shape")
    if shape is None:
        if size:
            raise OracleError(f"a frame has {size} bytes but no shape")
        return None
    dtype = DTYPES.get(str(header.get("dtype")))
    counts = isinstance(shape, list) and all(type(entry) is int and entry >= 0 for entry in shape)
    if dtype is None or not counts or len(shape) != 3 or math.prod(shape) * dtype.itemsize != size:
        raise OracleError(
            f"a frame of {size} bytes says it is {header.get('dtype')!s:.20} of shape {shape!s:.80}"
        )
    native = dtype.newbyteorder("=")
    return np.frombuffer(receive(size), dtype).astype(native).reshape(shape)


def unpack(data: bytes, max_body: int = MAX_BODY_BYTES) -> tuple[dict[str, Any], np.ndarray | None]:
    """The one frame that `data` is.

    >>> unpack(b"short")
    Traceback (most recent call last):
    attnlearn._errors.OracleError: a frame ends too early
    """
    position = 0

    def receive(size: int) -> bytes:
        nonlocal position
        piece = data[position : position + size]
        if len(piece) < size:
            raise OracleError("a frame ends too early")
        position += size
        return piece

    frame = read(receive, max_body)
    if position != len(data):
        raise OracleError(f"{len(data) - position} bytes follow the frame")
    return frame


def answer_of(frame: tuple[dict[str, Any], np.ndarray | None]) -> np.ndarray:
    """The numbers of an answer frame; an error frame is raised."""
    header, array = frame
    if header.get("kind") == "error":
        raise OracleError(f"the oracle says: {' '.join(str(header.get('message')).split())[:300]}")
    if header.get("kind") != "answer" or array is None:
        raise OracleError(f"expected an answer, got a frame of kind {header.get('kind')!s:.20}")
    return array


def hello_of(header: dict[str, Any]) -> tuple[int, int, np.dtype]:
    """Dimension, output dimension and dtype of a hello."""
    dim, out_dim, dtype = (header.get(name) for name in ("dim", "out_dim", "dtype"))
    sizes = all(type(size) is int and size >= 1 for size in (dim, out_dim))
    if (
        header.get("kind") != "hello"
        or header.get("protocol") != PROTOCOL
        or not sizes
        or dtype not in DTYPES
    ):
        raise OracleError(f"expected a hello of protocol {PROTOCOL}, got {header!s:.100}")
    return dim, out_dim, np.dtype(dtype)  # type: ignore[return-value]
