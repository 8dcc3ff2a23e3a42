"""`report`: one self-contained HTML file from a result.

The page is made from the JSON result alone, so that it can be made later and elsewhere. Cost: well under a second for
a layer with 8 heads. What can fail: a file that is no result of attnlearn is refused with one line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlearn._errors import describe, require
from attnlearn._files import atomic_path, existing_file, read_json
from attnlearn._serialize import upgraded
from attnlearn.reporting._compare import comparison_page
from attnlearn.reporting._leak import leak_page
from attnlearn.reporting._others import conditions_page, other_page
from attnlearn.reporting._page import Page, solution_page
from attnlearn.reporting._reproduction import reproduce_page
from attnlearn.reporting._scrub import scrub

if TYPE_CHECKING:
    from attnlearn._layer import AttentionLayer

MOST_BYTES = 64 * 2**20
"""A result file larger than this is no result: real ones are a few megabytes."""

PAGES = {
    "attnlearn/solution": solution_page,
    "attnlearn/leak": leak_page,
    "attnlearn/reproduce": reproduce_page,
    "attnlearn/conditions": conditions_page,
}
VERSIONS = {"attnlearn/solution": (1, 2)}
"""Versions that can be read, by schema; of the other schemas there is only version 1."""


def report(
    solution_or_path: Any,
    path: str | os.PathLike[str],
    *,
    beside: Any = None,
    truth: AttentionLayer | str | os.PathLike[str] | None = None,
) -> Path:
    """Write a result as one HTML file that needs no network, and return its path.

    `solution_or_path` is a `Solution`, the JSON file that one was saved to, or what any command wrote with `--json`.
    `beside` is a second result: both are then shown side by side. `truth` is the true layer or its file, where it is known: the page
    then compares it with the answer.
    Home folders, user and host names are taken out of everything that is written.

    >>> import tempfile
    >>> from attnlearn import AttentionLayer, Outcome, Solution
    >>> page = Path(tempfile.mkdtemp()) / "report.html"
    >>> report(Solution(AttentionLayer.random(2, 4), Outcome.NOT_ESTABLISHED), page).name
    'report.html'
    >>> "not certified" in page.read_text("utf-8")
    True
    """
    from attnlearn.reporting._render import render

    document = scrub(_with_truth(solution_or_path, as_document(solution_or_path), truth))
    if beside is None:
        with _whole(document):
            text = render(make_page(document), document)
    else:
        other = scrub(as_document(beside))
        for one in (document, other):
            require(one["schema"] == "attnlearn/solution", "beside", "must both be solutions", one["schema"])
        with _whole(document):
            text = render(comparison_page(document, other), {"results": [document, other]})
    target = Path(path)
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def make_page(document: dict[str, Any]) -> Page:
    """The page of a result; a result that does not hold what its schema asks for is refused."""
    with _whole(document):
        return PAGES.get(str(document.get("schema")), other_page)(document)


@contextmanager
def _whole(document: dict[str, Any]) -> Iterator[None]:
    """Whatever a page cannot be made of is missing from the result, or not of the kind that its schema asks for."""
    from jinja2 import TemplateError

    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, TemplateError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        schema = describe(document.get("schema"))
        raise ValueError(
            f"path: must hold a whole result of schema {schema}, got one without ({what})"
        ) from error


def as_document(source: Any) -> dict[str, Any]:
    """A result as JSON: from an object that has `to_json`, from JSON itself, or from a file."""
    if hasattr(source, "to_json"):
        return source.to_json()
    if not isinstance(source, dict):
        known = isinstance(source, str | os.PathLike)
        require(known, "solution_or_path", "must be a Solution, a JSON result or the path of one", source)
        source = _read(source)
    schema = source.get("schema") if isinstance(source, dict) else None
    require(
        isinstance(schema, str) and schema.startswith("attnlearn/"),
        "path", "must be a JSON result of attnlearn, as --json writes it", f"the schema {schema!r}",
    )  # fmt: skip
    versions, version = VERSIONS.get(str(schema), (1,)), source.get("version")
    require(version in versions, "path", f"must have version {' or '.join(map(str, versions))}", version)
    if schema != "attnlearn/solution":
        return source
    with _whole(source):
        return upgraded(source)


def _with_truth(source: Any, document: dict[str, Any], truth: Any) -> dict[str, Any]:
    """The document with the comparison of its layer and the truth, where a truth was given."""
    if truth is None:
        return document
    from attnlearn.convert import load
    from attnlearn.reporting._truth import beside_truth

    layer, support = getattr(source, "layer", None), getattr(source, "stats", {}).get("support")
    if layer is None and isinstance(source, str | os.PathLike):
        named = (document.get("layer") or {}).get("path")
        rule = "must name its weights (recover -o) to be compared with a truth"
        require(bool(named), "solution_or_path", rule, Path(source).name)
        layer = load(Path(source).parent / str(named))
    if isinstance(truth, str | os.PathLike):
        truth = load(truth)
    return document | {"stats": document["stats"] | {"truth": beside_truth(layer, truth, support)}}


def _read(source: str | os.PathLike[str]) -> Any:
    found = existing_file(source)
    try:
        return read_json(found, MOST_BYTES, finite=True)
    except ValueError as error:
        raise ValueError(
            f"path: must be a JSON result, as --json writes it, got {found.name} ({error})"
        ) from error
