"""Formulas as MathML, made when the site is built: no script, no network, and a screen reader can read them.

docutils turns LaTeX into MathML Core, which every browser draws since 2023. A formula that docutils cannot read is a warning, and
`make docs` makes warnings errors.
"""

from __future__ import annotations

from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

_log = logging.getLogger(__name__)


def _formula(node: Any, *, block: bool) -> str:
    """The MathML of a node."""
    text = node.astext()
    try:
        return tex2mathml(text, as_block=block)
    except MathError as error:
        _log.warning("formula that cannot be read (%s): %s", error, text, location=node)
        return ""


def _inline(writer: Any, node: Any) -> None:
    writer.body.append(_formula(node, block=False))
    raise SkipNode


def _displayed(writer: Any, node: Any) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    writer.body.append(_formula(node, block=True) + "</div>\n")
    raise SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer, as Sphinx asks an extension to."""
    app.add_html_math_renderer("mathml", (_inline, None), (_displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
