"""A program that speaks the protocol and misbehaves as its argument says."""

from __future__ import annotations

import os
import struct
import sys
import time

import numpy as np

from attnlearn.oracle import _frames

DIM = 4


def main(how: str, memory: str) -> None:
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    if how == "mute":
        time.sleep(60)
    if how == "gibberish":
        sink.write(b"Welcome to the oracle!\n")
    else:
        hello = {"kind": "hello", "protocol": 1, "dim": DIM, "out_dim": DIM, "dtype": "float64"}
        sink.write(_frames.pack(hello))
    while True:
        _, x = _frames.read(receive)
        if how == "huge":
            sink.write(struct.pack("<IQ", 20, 1 << 60) + b"{}")
        elif how == "shape":
            sink.write(_frames.pack({"kind": "answer"}, x[:, :1]))
        elif how == "nan":
            sink.write(_frames.pack({"kind": "answer"}, x * np.nan))
        elif how == "dead":
            sys.exit(3)
        elif how == "slow":
            time.sleep(60)
        elif how == "drip":
            for byte in _frames.pack({"kind": "answer"}, x):
                sink.write(bytes([byte]))
                time.sleep(0.2)
        elif how == "error":
            sink.write(_frames.pack({"kind": "error", "message": "not today"}))
        elif how == "once" and not os.path.exists(memory):
            open(memory, "w").close()
            sys.exit(3)
        elif how == "once":
            sink.write(_frames.pack({"kind": "answer"}, 2 * x))


def receive(size: int) -> bytes:
    data = sys.stdin.buffer.read(size)
    if len(data) < size:
        sys.exit(0)
    return data


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
