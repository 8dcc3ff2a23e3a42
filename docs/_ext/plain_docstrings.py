"""Docstrings of attnlearn as reStructuredText: they are plain text with `code`, indented formulas, lists and doctests.

Letters that reStructuredText would read as markup are escaped outside of code. Indented blocks become literal blocks.
"""

from __future__ import annotations

import re
from typing import Any

SPECIAL = re.compile(r"([*_|\\])")


def converted(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText.

    >>> converted(["Uses `x_i` and c_i:", "", "    a = b", "", ">>> 1 + 1", "2"])
    ['Uses ``x_i`` and c\\\\_i:', '', '::', '', '    a = b', '', '>>> 1 + 1', '2']
    """
    out: list[str] = []
    doctest = literal = False
    for line in lines:
        doctest = line.startswith(">>>") or (doctest and bool(line.strip()))
        indented = line.startswith("    ")
        if doctest or not line.strip():
            literal = literal and not doctest
            out.append(line)
        elif indented and not literal and (not out or not out[-1].strip()):
            literal = True
            out += ["::", "", line]
        elif literal and indented:
            out.append(line)
        else:
            literal = False
            out.append(_escaped(line))
    return out


def _escaped(line: str) -> str:
    """One line of prose: code in double backticks, everything else without markup; bullets stay."""
    bullet = re.match(r"\s*- ", line)
    start = bullet.group(0) if bullet else ""
    parts = re.split(r"(`[^`]+`)", line[len(start) :])
    return start + "".join(
        f"`{part}`" if part.startswith("`") else SPECIAL.sub(r"\\\1", part) for part in parts
    )


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx: docstrings are converted before they are parsed."""

    def process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
        lines[:] = converted(lines)

    def anchors(app: Any, name: str, content: list[str]) -> None:
        """Anchors in HTML, which GitHub knows, as targets of MyST."""
        content[0] = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", content[0], flags=re.M)

    app.connect("autodoc-process-docstring", process)
    app.connect("source-read", anchors)
    return {"parallel_read_safe": True}
