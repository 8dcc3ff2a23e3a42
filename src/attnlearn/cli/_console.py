"""Printing: tables and text for people on standard output, JSON to a file or, with `-`, alone on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

Json = Annotated[
    str | None,
    Parameter(
        name="--json",
        allow_leading_hyphen=True,
        help="Write the result as JSON to this file; - is standard output.",
    ),
]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], negative="", help="Print errors only.")]
Seed = Annotated[int, Parameter(name="--seed", help="Seed of everything random.")]


class Console:
    """Where a command's output goes: nothing but JSON on standard output when JSON was asked for there."""

    def __init__(self, json_path: str | None = None, quiet: bool = False) -> None:
        self.json_path, self.quiet = json_path, quiet
        self.stream = sys.stderr if json_path == "-" else sys.stdout

    def text(self, text: str = "") -> None:
        """One paragraph for people."""
        if not self.quiet:
            print(text, file=self.stream)

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
