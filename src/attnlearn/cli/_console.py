"""Printing: tables and text for people on standard output, JSON to a file or, with `-`, alone on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())
"""The words of the command that is running, so that a result can say how to repeat it."""

Json = Annotated[
    str | None,
    Parameter(
        name="--json",
        allow_leading_hyphen=True,
        help="Write the result as JSON to this file; - is standard output.",
    ),
]
Report = Annotated[
    Path | None,
    Parameter(name="--report", help="Write the result as one HTML file that needs no network."),
]
Quiet = Annotated[
    bool,
    Parameter(
        name=["--quiet", "-q"],
        negative="",
        show_default=False,
        help="Print nothing but one line if the command fails.",
    ),
]
Seed = Annotated[int, Parameter(name="--seed", help="Seed of everything random.")]


class Console:
    """Where a command's output goes: nothing but JSON on standard output when JSON was asked for there."""

    def __init__(self, json_path: str | None = None, quiet: bool = False) -> None:
        self.json_path, self.quiet = json_path, quiet
        self.stream = sys.stderr if json_path == "-" else sys.stdout

    def text(self, text: str = "") -> None:
        """One paragraph for people, broken between words where a terminal is narrower."""
        if self.quiet:
            return
        if self.stream.isatty():
            text = "\n".join(_broken(line) for line in text.split("\n"))
        print(text, file=self.stream)

    @property
    def colour(self) -> bool:
        """Whether the reader is a terminal that wants colours."""
        return self.stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def solution(self, solution: Any) -> None:
        """A result as `print` shows it, as wide as the terminal and in colours where there are any."""
        from attnlearn._screen import WIDTH, solution_text

        width = min(columns(), 120) if self.stream.isatty() else WIDTH
        self.text(solution_text(solution, width, self.colour))

    def report(self, value: Any, path: Path | None) -> None:
        """The result as HTML, if it was asked for."""
        if path is None:
            return
        from attnlearn.reporting import report

        written = report(value, path).resolve()
        self.text(f"report   {written}" if not self.colour else f"report   {written.as_uri()}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A plain aligned table: it reads the same in a terminal, a file and a mail."""
        if self.quiet:
            return
        widths = [max(len(str(cell)) for cell in column) for column in zip(columns, *rows)]
        for row in (columns, *rows):
            print(
                "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)).rstrip(),
                file=self.stream,
            )

    def json(self, value: Any) -> None:
        """The result as JSON, where the user wants it."""
        if self.json_path is None:
            return
        if self.json_path == "-":
            print(json.dumps(value, indent=2, allow_nan=False))
        else:
            from attnlearn._files import write_json

            write_json(self.json_path, value)


def _broken(line: str) -> str:
    """A line of prose as lines that fit; what cannot be broken (a path, a table) stays whole."""
    import textwrap

    if len(line) <= columns() or "\x1b" in line:
        return line
    indent = 9 * " " if line[:9].endswith(" ") else ""
    return textwrap.fill(
        line, columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def columns() -> int:
    """Columns of the terminal."""
    import shutil

    return max(40, shutil.get_terminal_size().columns)


def with_command(document: dict[str, Any]) -> dict[str, Any]:
    """A result that says which command made it: folders by their names only, nothing that names a person."""
    from attnlearn.reporting._scrub import command_line

    words = arguments.get()
    if not words:
        return document
    return document | {"provenance": {**document.get("provenance", {}), "command": command_line(words)}}
