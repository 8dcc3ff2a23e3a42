"""From a page to HTML: a Jinja2 template with automatic escaping, style and script inside, the result as JSON.

The Content-Security-Policy allows exactly the style and the script of this page, by their hashes, and images from data
URIs; everything else, the network above all, is forbidden. JSON inside the page is escaped so that no text in it can
end its script element.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from attnlearn._numbers import cell, power, pretty, seconds
from attnlearn._version import __version__
from attnlearn.reporting._displays import COLOURS, Display
from attnlearn.reporting._heatmap import Heatmap
from attnlearn.reporting._page import Page

TABLE_CELLS = 400
"""Maps with more cells get their table from the embedded JSON when it is asked for, not in the HTML."""

KEY_FACTS = 8
"""Rows of evidence that a phase without a picture shows at once."""

_UNSAFE = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element whatever its strings hold.

    >>> script_json({"name": "</script><script>"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003cscript\\\\u003e"}'
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_UNSAFE)


def unbroken(text: str) -> str:
    """Text whose numbers do not part from their units at the end of a line.

    >>> unbroken("right to 2 × 10⁻⁹ on 99 % of inputs")
    'right to 2\\xa0×\\xa010⁻⁹ on 99\\xa0% of inputs'
    """
    return text.replace(" %", "\u00a0%").replace(" × ", "\u00a0×\u00a0")


_POWERS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d+)(?![\w.]*\w)")


def mathematical(text: str) -> str:
    """Text with signs and powers of ten as a person writes them, unbroken at the end of a line.

    >>> mathematical("error <= 5.5e-15 on 99 % of inputs")
    'error ≤\\xa05.5\\xa0×\\xa010⁻¹⁵ on 99\\xa0% of inputs'
    """
    text = _POWERS.sub(lambda found: f"{found[1]} × {power(int(found[2]))}", text)
    return unbroken(text.replace("<= ", "≤\u00a0").replace(">= ", "≥\u00a0"))


def render(page: Page, document: dict[str, Any]) -> str:
    """The whole HTML file."""
    from markupsafe import Markup

    style, script = _template("report.css"), _template("report.js")
    return _environment().get_template("report.html").render(
        page=page,
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        json=Markup(script_json(document)),
        timeline=Markup(timeline(page)),
        version=__version__,
        key_facts=KEY_FACTS,
    )  # fmt: skip


def timeline(page: Page) -> str:
    """The phases as one bar, long where the time went, with a legend; proposers that were skipped share one part."""
    parts = [(phase.title, phase.seconds or 0.0) for phase in page.phases if not phase.skipped]
    skipped = sum(phase.seconds or 0.0 for phase in page.phases if phase.skipped)
    parts += [("skipped", skipped)] if skipped > 0 else []
    total = sum(spent for _, spent in parts)
    if total <= 0:
        return ""
    bar, legend, left = "", "", 0.0
    for number, (title, spent) in enumerate(parts):
        wide = 100 * spent / total
        colour = f"t{number % COLOURS}"
        tip = escape(f"{title}: {seconds(spent)}")
        bar += f'<rect class="{colour}" x="{left:.3f}" width="{wide:.3f}" height="10" data-tip="{tip}"/>'
        legend += (
            f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="{colour}" width="10" height="10"/></svg>'
            f"{escape(title)} <span>{seconds(spent)}</span></li>"
        )
        left += wide
    return (
        '<div class="timeline"><div class="canvas"><svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        f'aria-label="time by phase">{bar}</svg></div><ul>{legend}</ul></div>'
    )


@cache
def _environment() -> Any:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "cell": cell,
        "mathematical": mathematical,
        "pretty": pretty,
        "seconds": seconds,
        "unbroken": unbroken,
    }
    environment.globals |= {"svg": lambda display: Markup(display.svg()), "small_table": small_table}
    return environment


def small_table(display: Display) -> Any:
    """The table of a display when it is small enough to stand in the HTML, otherwise None."""
    if isinstance(display, Heatmap) and display.matrix.size > TABLE_CELLS and display.source:
        return None
    return display.table()


@cache
def _template(name: str) -> str:
    return resources.files("attnlearn.reporting").joinpath("templates", name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
