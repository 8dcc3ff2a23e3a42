"""`attnlearn --help`: every command in a line or two, printed before anything else is imported.

Importing the parser takes ten times as long as starting Python. The parser prints the help of a single command.
"""

from __future__ import annotations

import os
import textwrap

ABOUT = "Learn multi-head attention layers from examples or queries, and prove what was learned."
COMMANDS = {
    "compress": "Find the best layer with fewer heads on given activations, and the error for every number of heads.",
    "conditions": "Measure every condition that the learners use, and say which route to take.",
    "convert": "Read a layer in any known layout and write it in another.",
    "doctor": "Show versions, devices, extras and threads, and run one forward in each precision.",
    "explain": "Say which proposers recover would run on these data, in which order and why, and the time and memory it would take.",
    "extract": "Recover every head of a layer by asking it sequences of our choice.",
    "inspect": "Show a layer: shapes, heads, norms, effective ranks, biases, similarity of heads, attention by offset.",
    "leak": "Show the error reached against sequences, tokens and scalars spent, as a table and a plot.",
    "record": "Record the inputs and outputs of an attention block; without a block, list the candidates.",
    "recover": "Recover every head of a layer from random examples, with a certificate.",
    "report": "Turn a JSON result into one HTML file that opens without a network; two results are shown side by side.",
    "reproduce": "Measure what a paper claims and show the numbers.",
    "sample": "Draw examples (X, F(X)) of a layer and write them as a folder of recorded data.",
    "train": "Train a classifier on labelled sequences and certify the run.",
}
"""The commands and the first sentence of each; the function `name` in `attnlearn.cli._name` runs it."""
OPTIONS = {"--help, -h": "Show this text, or that of a command.", "--version": "Show the version."}


def overview(width: int | None = None) -> str:
    """The text of `attnlearn --help`, for a terminal of this width (default: the one at hand).

    >>> print(overview(60)[:24])
    Usage: attnlearn COMMAND
    """
    width = _columns() if width is None else width
    lines = ["Usage: attnlearn COMMAND", "", *textwrap.wrap(ABOUT, width)]
    for title, rows in (("Commands", COMMANDS), ("Options", OPTIONS)):
        lines += ["", title]
        for name, text in rows.items():
            start = f"  {name:<12}"
            lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start))
    lines += ["", *textwrap.wrap("`attnlearn COMMAND --help` shows the options of a command.", width)]
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
