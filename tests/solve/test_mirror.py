"""The tests mirror the package: every module of `solve` has a test file of its name that imports it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import attnlearn.solve as solve
from tests.test_house import imported

PACKAGE = Path(solve.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("_*.py") if path.stem != "__init__")
LINES, FILE_LINES = 40, 300


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_each_module_has_its_tests(module: Path) -> None:
    name = module.stem.removeprefix("_")
    mirrored = Path(__file__).parent / module.parent / f"test_{name}.py"
    dotted = ("attnlearn", "solve", *module.with_suffix("").parts)
    assert any(found[: len(dotted)] == dotted for found in imported(mirrored, top_level=False))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_files_and_functions_are_short(module: Path) -> None:
    text = (PACKAGE / module).read_text("utf-8")
    assert len(text.splitlines()) <= FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            words = node.body[0] if ast.get_docstring(node) else None
            spent = words.end_lineno - words.lineno + 1 if words else 0
            assert node.end_lineno - node.lineno + 1 - spent <= LINES, node.name
