"""A program that speaks the protocol and misbehaves as its argument says; it imports nothing large, to start at once.

    _liar.py WAY AFTER MEMORY [SECRET ...]

answers AFTER queries rightly (as a layer of one head) and then misbehaves; once it has, the file MEMORY is
there and later starts misbehave at once.
"""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time

DIM = 4
THETA = ((0.4, 0.3, -0.2, 0.1), (-0.3, 0.2, 0.5, -0.1), (0.2, -0.4, 0.3, 0.6), (0.1, 0.5, -0.3, 0.2))
HELLO = {"kind": "hello", "protocol": 2, "dim": DIM, "out_dim": DIM, "dtype": "float64"}


def frame(header, values=(), **changes):
    body = struct.pack(f"<{len(values)}d", *values)
    text = json.dumps({**header, **changes}).encode()
    return struct.pack("<IQ", len(text), len(body)) + text + body


def say(data):
    while data:
        data = data[os.write(1, data) :]


def end(code):
    os._exit(code)


def kill(number):
    os.kill(os.getpid(), number)


def drip(data):
    for byte in data:
        say(bytes([byte]))
        time.sleep(0.05)


def endless(data):
    while True:
        say(data)


def with_children(data):
    for _ in range(3):
        child = "import time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(300)"
        process = subprocess.Popen([sys.executable, "-I", "-S", "-c", child])
        with open(sys.argv[3] + ".children", "a") as file:
            file.write(f"{process.pid}\n")
    say(data)


DEEP = struct.pack("<IQ", 60_000, 0) + b"[" * 60_000
RED = "\x1b[31mno\x1b[0m\r\n\x07way"

# In place of the greeting: what to do, given the right one.
GREETINGS = {
    "mute": lambda right: time.sleep(60),
    "gibberish": lambda right: say(b"Welcome to the oracle!\n"),
    "usage": lambda right: (os.write(2, b""), end(2)),
    "segfault at once": lambda right: kill(signal.SIGSEGV),
    "half a greeting": lambda right: (say(right[:20]), end(0)),
    "half a greeting, then silence": lambda right: (say(right[:20]), time.sleep(60)),
    "closes its output": lambda right: (os.close(1), time.sleep(60)),
    "deep greeting": lambda right: say(DEEP),
    "list as greeting": lambda right: say(struct.pack("<IQ", 2, 0) + b"[]"),
    "protocol 3": lambda right: say(frame(HELLO, protocol=3, note=sys.argv[4:])),
    "dim 0": lambda right: say(frame(HELLO, dim=0)),
    "huge greeting": lambda right: say(struct.pack("<IQ", 1 << 31, 0)),
    "greeting with a body": lambda right: say(frame({**HELLO, "shape": [1, 1, 1]}, [1.0])),
    "greets twice": lambda right: say(right + right),
}

# In place of an answer: what to do, given the header and the numbers of the right one.
ANSWERS = {
    "exit": lambda header, y: end(3),
    "exit 0": lambda header, y: end(0),
    "killed": lambda header, y: kill(signal.SIGKILL),
    "segfault": lambda header, y: kill(signal.SIGSEGV),
    "stopped": lambda header, y: kill(signal.SIGSTOP),
    "slow": lambda header, y: time.sleep(60),
    "drip": lambda header, y: drip(frame(header, y)),
    "half": lambda header, y: (say(frame(header, y)[:-8]), end(0)),
    "half, then silence": lambda header, y: (say(frame(header, y)[:-8]), time.sleep(60)),
    "output closed": lambda header, y: (os.close(1), time.sleep(60)),
    "twice": lambda header, y: say(2 * frame(header, y)),
    "stray": lambda header, y: say(frame(header, y, number=header["number"] - 1)),
    "unnumbered": lambda header, y: say(frame({k: v for k, v in header.items() if k != "number"}, y)),
    "huge": lambda header, y: say(struct.pack("<IQ", 20, 1 << 60)),
    "endless": lambda header, y: endless(b"x" * 10_000),
    "print": lambda header, y: say(b"Traceback (most recent call last):\n  oops\n"),
    "deep": lambda header, y: say(DEEP),
    "shape": lambda header, y: say(frame(header, y[:DIM], shape=[1, 1, DIM])),
    "shape of a lie": lambda header, y: say(frame(header, y, shape=[1 << 40, 1, 1])),
    "NaN": lambda header, y: say(frame(header, [float("nan")] * len(y))),
    "greets": lambda header, y: say(frame({**HELLO, "number": header["number"]})),
    "refusal": lambda header, y: say(
        frame({**header, "kind": "error", "message": "not today", "shape": None})
    ),
    "red": lambda header, y: say(frame({"kind": "error", "number": header["number"], "message": RED})),
    "blabs": lambda header, y: say(frame({"kind": "error", "message": f"{sys.argv[4:]} is wrong"})),
    "children": lambda header, y: with_children(frame(header, y)),
}


def receive(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            if sys.argv[1] == "children":
                time.sleep(300)
            sys.exit(0)
        data += piece
    return data


def product(rows, columns):
    return [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in rows]


def attend(rows):
    """softmax(X Theta X^T) X, with a Theta of full rank."""
    outputs = []
    for scores in product(product(rows, list(zip(*THETA))), rows):
        weights = [math.exp(score - max(scores)) for score in scores]
        outputs += [sum(w * v for w, v in zip(weights, column)) / sum(weights) for column in zip(*rows)]
    return outputs


def right(header, body):
    n, k, d = header["shape"]
    x = struct.unpack(f"<{n * k * d}d", body)
    rows = [x[i * d : (i + 1) * d] for i in range(n * k)]
    y = [value for i in range(n) for value in attend(rows[i * k : (i + 1) * k])]
    return {"kind": "answer", "number": header["number"], "dtype": "float64", "shape": [n, k, d]}, y


def main(way, after, memory):
    broken = os.path.exists(memory)
    if way in GREETINGS and (broken or after == "0"):
        GREETINGS[way](frame(HELLO))
    else:
        say(frame(HELLO))
    answered = 0
    while True:
        sizes = struct.unpack("<IQ", receive(12))
        header = json.loads(receive(sizes[0]))
        answer = right(header, receive(sizes[1]))
        if not broken and answered < int(after):
            say(frame(*answer))
        else:
            open(memory, "w").close()
            ANSWERS.get(way, lambda header, y: end(9))(*answer)
        answered += 1


if __name__ == "__main__":
    main(*sys.argv[1:4])
