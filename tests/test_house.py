"""The rules of the house: imports point one way, public names explain themselves, start-up stays light."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import attnlearn

PACKAGE = Path(attnlearn.__file__).parent
RANKS = {
    **dict.fromkeys(
        [
            "_version",
            "_types",
            "_errors",
            "_numbers",
            "_outcome",
            "_certificate",
            "_result",
            "_cause",
            "_verdict",
            "_words",
            "_precision",
            "_arrays",
            "_files",
            "_memory",
            "_importing",
            "_interrupts",
            "_extras",
            "_jax",
            "engine",
        ],
        0,
    ),
    **dict.fromkeys(
        [
            "scores",
            "_attention",
            "_forward",
            "_base",
            "_layer",
            "_linear",
            "_parts",
            "_random",
            "_canonical",
            "_storage",
            "_summary",
            "_distance",
            "_maps",
        ],
        1,
    ),
    **dict.fromkeys(["_serialize", "_screen"], 2),
    **dict.fromkeys(["data", "convert", "oracle"], 3),
    "solve": 4,
    **dict.fromkeys(
        ["recovery", "extraction", "compression", "comparison", "training", "train", "hard", "diagnosis"], 5
    ),
    "compat": 6,
    **dict.fromkeys(["reporting", "reproduce", "whole"], 7),
    **dict.fromkeys(["cli", "__main__"], 8),
}
FORBIDDEN = {("recovery", "extraction"), ("extraction", "recovery")}
HEAVY = {"torch", "transformers", "matplotlib", "pandas", "dask", "distributed", "jinja2"}
COMPILED = {"_forward.py", "training", "reproduce/_student.py", "recovery/sculpt"}
"""Where JAX, HiGHS and PIQP may be imported: nothing that a core install runs."""
LIGHT_SCULPT = {
    "__init__.py",
    "_calibration.py",
    "_config.py",
    "_rows.py",
    "_slabs.py",
    "_source.py",
    "_state.py",
}
"""Modules of sculpting that `conditions` reads, without the extra."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path, *, top_level: bool) -> list[tuple[str, ...]]:
    """Dotted names that a module imports, at its top level or anywhere; imports for types do not count."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    nodes = tree.body if top_level else list(ast.walk(tree))
    names: list[tuple[str, ...]] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [(*node.module.split("."), alias.name) for alias in node.names]
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    here = part(path)
    if here in ("__init__", "py"):
        return
    assert here in RANKS, f"say in RANKS where {here} belongs"
    # Inside the lowest layers a function may reach up (layer.save needs storage); packages may not.
    package = path.parent != PACKAGE
    for name in imported(path, top_level=not package):
        if name[0] in HEAVY:
            assert name not in imported(path, top_level=True), f"{name[0]} must be imported inside functions"
        if name[0] != "attnlearn" or len(name) < 2 or name[1] not in RANKS or name[1] == here:
            continue
        assert (here, name[1]) not in FORBIDDEN, f"{here} must not import {name[1]}"
        assert RANKS[name[1]] <= RANKS[here], f"{here} must not import {name[1]}"


RECOVERY = PACKAGE / "recovery"
ORDER = {
    **dict.fromkeys(["_calibration", "_config", "_draw"], 0),
    **dict.fromkeys(["_blocks", "_problem", "_rows", "_intake", "_from_block"], 1),
    **dict.fromkeys(["_statistics", "_plan", "_own_token"], 2),
    "_signals": 3,
    **dict.fromkeys(["moment", "_fit"], 4),
    **dict.fromkeys(["wide", "_trail", "_growth", "_repairs"], 5),
    **dict.fromkeys(["_outcome", "_proposer"], 6),
    **dict.fromkeys(["_of_moment", "_driver", "_conclude"], 7),
    **dict.fromkeys(["_of_search", "positions"], 8),
    **dict.fromkeys(["_proposers", "sculpt", "linear"], 9),
    "_methods": 10,
    "_explain": 11,
    "_planner": 12,
    "_recover": 13,
    "__init__": 14,
}
"""Inside `recovery` a module imports from lower ranks, or from its own sub-package."""


def inside(path: Path) -> str:
    return path.relative_to(RECOVERY).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", sorted(RECOVERY.rglob("*.py")), ids=lambda path: str(path.relative_to(RECOVERY))
)
def test_imports_inside_recovery_point_one_way(path: Path) -> None:
    here = inside(path)
    assert here in ORDER, f"say in ORDER where {here} belongs"
    for name in imported(path, top_level=False):
        if name[:2] != ("attnlearn", "recovery") or len(name) < 3 or name[2] == here:
            continue
        assert name[2] in ORDER, f"say in ORDER where {name[2]} belongs"
        assert ORDER[name[2]] < ORDER[here], f"{here} must not import {name[2]}"


def test_imports_of_sub_packages_of_recovery_go_in_no_circle() -> None:
    for package in ("moment", "wide", "sculpt", "linear"):
        paths = {path.stem: path for path in (RECOVERY / package).glob("*.py")}
        needs = {
            stem: {
                name[3]
                for name in imported(path, top_level=False)
                if name[2:3] == (package,) and len(name) > 3
            }
            & set(paths)
            for stem, path in paths.items()
        }
        list(TopologicalSorter(needs).static_order())  # raises CycleError


def body_lines(function: ast.FunctionDef) -> int:
    """Lines of a function's body as it is written, without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def test_functions_and_files_are_short_enough_to_read_at_once() -> None:
    long: dict[str, int] = {}
    for path in modules():
        text = path.read_text("utf-8")
        if (number := len(text.splitlines())) > 300:
            long[path.name] = number
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        long |= {f"{path.name}: {f.name}": n for f in functions if (n := body_lines(f)) > 40}
    assert not long


def test_jax_is_imported_in_one_place() -> None:
    """Ctrl-C inside its import may end the process."""
    direct = {
        path.name for path in modules() if any(name[0] == "jax" for name in imported(path, top_level=False))
    }
    assert direct == {"_jax.py"}


def test_packages_of_extras_are_imported_where_the_extra_is_needed() -> None:
    bringing = {("attnlearn", "_jax"), ("attnlearn", "_forward"), ("highspy",), ("piqp",)}
    for path in modules():
        place = path.relative_to(PACKAGE).as_posix()
        needs = {name[:size] for name in imported(path, top_level=True) for size in (1, 2)} & bringing
        light = path.parent.name == "sculpt" and path.name in LIGHT_SCULPT
        assert not needs or (not light and any(place.startswith(part) for part in COMPILED)), place


def public_objects() -> list[tuple[str, object]]:
    found: dict[str, object] = {
        name: getattr(attnlearn, name) for name in attnlearn.__all__ if name[0] != "_"
    }
    for name, value in list(found.items()):
        if inspect.ismodule(value):
            found |= {f"{name}.{item}": getattr(value, item) for item in value.__all__}
    return [(name, value) for name, value in sorted(found.items()) if callable(value)]


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=[name for name, _ in public_objects()])
def test_public_names_have_a_docstring_with_an_example(name: str, value: object) -> None:
    text = inspect.getdoc(value) or ""
    assert text, f"{name} has no docstring"
    assert doctest.DocTestParser().get_examples(text), f"{name} has no runnable example"


def test_packages_and_functions_do_not_share_names() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    functions = {name for name in attnlearn.__all__ if inspect.isfunction(getattr(attnlearn, name))}
    assert not packages & functions


def test_dir_lists_what_can_be_had() -> None:
    for name in dir(attnlearn):
        assert getattr(attnlearn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attnlearn.nothing  # noqa: B018
    assert importlib.import_module("attnlearn").__version__


def cpu_seconds(*words: str, times: int = 5) -> float:
    """Least processor time of a fresh process."""
    resource = pytest.importorskip("resource")
    found = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def test_import_and_help_start_at_once() -> None:
    """Measured 2.1 and 2.6 times `python -c pass` in processor time; the promise is 3 and 6."""
    nothing = cpu_seconds("-c", "pass", times=10)
    assert cpu_seconds("-c", "import attnlearn") < 4 * nothing
    assert cpu_seconds("-m", "attnlearn.cli.__main__", "--help") < 6 * nothing


def test_help_and_import_load_nothing_heavy() -> None:
    script = (
        "import sys; from attnlearn.cli.__main__ import main; code = main(['--help']);"
        "loaded = {'jax', 'numpy', 'scipy', 'torch', 'sklearn', 'cyclopts', 'rich'} & set(sys.modules);"
        "print(sorted(loaded), file=sys.stderr); sys.exit(code or len(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_editors_see_the_type_of_every_public_name() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    )
    listed = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(listed) == set(attnlearn.__all__) - {"__version__"}
    for name, path in listed.items():
        module, _, attribute = path.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        assert found is getattr(attnlearn, name)


def test_public_modules_can_be_imported_from() -> None:
    script = "from attnlearn.train import fit; from attnlearn import train; assert train.fit is fit; print(train.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "attnlearn.train\n", done.stderr
    assert not {"train_file", "load_examples"} & set(attnlearn.train.__all__)
    assert attnlearn.train.__all__ == importlib.import_module("attnlearn.training").__all__
