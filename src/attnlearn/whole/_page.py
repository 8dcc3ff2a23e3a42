"""The page of a whole model: one table, with a link to the report of every block."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from attnlearn._files import atomic_path

if TYPE_CHECKING:
    from attnlearn.whole._recover_model import BlockResult

STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 3em auto; padding: 0 1em; color: #1c2430; background: #fff; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .4em .8em; border-bottom: 1px solid #d8dde5; }
@media (prefers-color-scheme: dark) { body { color: #e6e9ef; background: #12161c; } a { color: #8ab4ff; } th, td { border-color: #333b47; } }"""
HEADINGS = ("block", "outcome", "certified", "heads", "error", "seconds")


def write_page(path: Path, model: str, sentence: str, blocks: Sequence[BlockResult]) -> None:
    """Write the table as one HTML file that needs no network."""
    rows = "\n".join(_row(block) for block in blocks)
    head = "".join(f"<th scope='col'>{name}</th>" for name in HEADINGS)
    text = (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(model)}: all blocks</title>\n"
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(model)}</h1>\n<p>{escape(sentence)}</p>\n"
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></body></html>\n"
    )
    with atomic_path(path) as place:
        place.write_text(text, "utf-8")


def _row(block: BlockResult) -> str:
    name, *cells = (escape(cell) for cell in block.row())
    link = f"<a href='{escape(block.folder, quote=True)}/report.html'>{name}</a>" if block.folder else name
    return "<tr><th scope='row'>" + link + "</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
