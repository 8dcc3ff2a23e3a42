"""`attnlearn --help`: every command in a line or two, printed before anything else is imported.

Importing the parser takes ten times as long as starting Python. The parser prints the help of a single command.
"""

from __future__ import annotations

import os
import textwrap

ABOUT = "Learn multi-head attention layers from examples or queries, and certify what was learned."
GROUPS = {
    "Start": {
        "demo": "Recover a layer from examples alone and write its report: a first look, in seconds.",
        "doctor": "Show versions, devices, extras and threads, and run one forward in each precision.",
    },
    "Learn": {
        "recover": "Recover every head of a layer from random examples, with a certificate.",
        "extract": "Recover every head of a layer by asking it sequences of our choice.",
        "compress": "Find the best smaller layer on given activations, and what every size costs.",
        "train": "Train a classifier on labelled sequences and certify the run.",
    },
    "Data": {
        "record": "Record the inputs and outputs of an attention block; without a block, list the candidates.",
        "sample": "Draw examples (X, F(X)) of a layer and write them as a folder of recorded data.",
    },
    "Look first": {
        "inspect": "Show a layer: shapes, heads, norms, effective ranks, biases, similarity of heads, attention by offset.",
        "explain": "Say which proposers recover would run on these data, in which order and why, and the time and memory it would take.",
        "conditions": "Measure every condition that the learners use, and say which route to take.",
    },
    "Results": {
        "certify": "Say how far a smaller, quantised or merged layer is from the one it stands for, with a certificate.",
        "compare": "Match the heads of two layers and say how far apart they are.",
        "report": "Turn a JSON result into one HTML file that opens without a network; two results are shown side by side.",
        "convert": "Read a layer in any known layout and write it in another.",
        "leak": "Show the error reached against sequences, tokens and scalars spent, as a table and a plot.",
        "reproduce": "Measure what a paper claims and show the numbers.",
    },
}
"""The commands by what they are for, and the first sentence of each; the function `name` in `attnlearn.cli._name` runs it."""
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
EXAMPLES = {
    "demo": ("attnlearn demo", "attnlearn demo --layer model.safetensors"),
    "doctor": ("attnlearn doctor",),
    "recover": (
        "attnlearn recover examples-folder -o layer.safetensors --report out.html",
        "attnlearn recover data.npz --time-limit 600 --checkpoint run",
        "attnlearn recover data.npz --time-limit 600 --checkpoint run --resume",
    ),
    "extract": (
        "attnlearn extract --oracle layer.safetensors",
        "attnlearn extract --oracle http://127.0.0.1:8000/ --cache answers",
        "attnlearn extract --oracle service.py:attention --dim 64",
    ),
    "certify": ("attnlearn certify small.safetensors big.safetensors activations --target 0.01",),
    "compare": ("attnlearn compare found.safetensors model.safetensors activations",),
    "compress": ("attnlearn compress model.safetensors activations --kv-heads 2",),
    "train": ("attnlearn train labelled.npz --heads 8 --report report.html",),
    "record": (
        "attnlearn record my_model.py:make",
        "attnlearn record my_model.py:make encoder.layer.3.attention folder",
    ),
    "sample": ("attnlearn sample layer.safetensors examples-folder --num 20000",),
    "inspect": (
        "attnlearn inspect layer.safetensors",
        "attnlearn inspect model.safetensors --prefix layer.0",
    ),
    "explain": ("attnlearn explain examples-folder",),
    "conditions": ("attnlearn conditions layer.safetensors", "attnlearn conditions examples-folder"),
    "report": ("attnlearn report result.json", "attnlearn report first.json second.json -o both.html"),
    "convert": ("attnlearn convert model.safetensors layer.safetensors --to attnlearn",),
    "leak": ("attnlearn leak --oracle layer.safetensors --decimals 2 4",),
    "reproduce": ("attnlearn reproduce hardness --short --report hardness.html",),
}
"""Commands as they are typed, for the help of each."""
OPTIONS = {
    "--help, -h": "Show this text, or that of a command.",
    "--version": "Show the version.",
    "--install-completion": "Let your shell complete commands and options.",
}


def overview(width: int | None = None) -> str:
    """The text of `attnlearn --help`, for a terminal of this width (default: the one at hand).

    >>> print(overview(60)[:24])
    Usage: attnlearn COMMAND
    """
    width = _columns() if width is None else width
    lines = ["Usage: attnlearn COMMAND", "", *textwrap.wrap(ABOUT, width)]
    for title, rows in (*GROUPS.items(), ("Options", OPTIONS)):
        lines += ["", title]
        wide = max(12, *map(len, rows))
        for name, text in rows.items():
            start = f"  {name:<{wide}} "
            lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start))
    for text in (
        "`attnlearn COMMAND --help` shows the options of a command and examples.",
        "https://attnlearn.readthedocs.io has the documentation.",
    ):
        lines += ["", *textwrap.wrap(text, width)]
    return "\n".join(lines)


def _columns() -> int:
    """Columns of the terminal between 40 and 120; 80 where there is none."""
    text = os.environ.get("COLUMNS", "")
    if text.isdigit():
        return min(120, max(40, int(text)))
    try:
        return min(120, max(40, os.get_terminal_size().columns))
    except OSError:
        return 80
