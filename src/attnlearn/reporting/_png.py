"""A matrix as a small PNG: one palette index a cell, zero transparent, so that it looks right on any background."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

POSITIVE, NEGATIVE, PLAIN = (214, 84, 28), (32, 98, 196), (16, 122, 118)
"""Warm above zero, cool below; one colour for shares. Told apart in grey print by their opposite places only, which
is why every map gives its numbers too."""

LEVELS = 127


def data_uri(matrix: np.ndarray, *, signed: bool = True) -> str:
    """The matrix as a data URI of an indexed PNG; its largest absolute value is opaque.

    >>> data_uri(np.array([[1.0, -1.0], [0.0, 0.5]]))[:22]
    'data:image/png;base64,'
    """
    matrix = np.nan_to_num(
        matrix, nan=0.0, posinf=0.0, neginf=0.0
    )  # a result has null where nothing was measured
    scale = float(np.abs(matrix).max()) if matrix.size else 0.0
    level = np.rint(matrix / (scale or 1.0) * LEVELS)
    index = (level + LEVELS if signed else level.clip(0) + LEVELS).astype(np.uint8)
    encoded = base64.b64encode(_png(index, _palette(signed))).decode("ascii")
    return f"data:image/png;base64,{encoded}"


def _palette(signed: bool) -> tuple[bytes, bytes]:
    colours, opacity = bytearray(), bytearray()
    for level in range(-LEVELS, LEVELS + 1):
        above = POSITIVE if signed else PLAIN
        colours += bytes(above if level >= 0 else NEGATIVE)
        # A slightly concave ramp: small entries stay visible beside the largest.
        opacity.append(round(255 * (abs(level) / LEVELS) ** 0.8))
    return bytes(colours), bytes(opacity)


def _png(index: np.ndarray, palette: tuple[bytes, bytes]) -> bytes:
    height, width = index.shape
    rows = b"".join(b"\0" + row.tobytes() for row in index)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", palette[0]),
        (b"tRNS", palette[1]),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
