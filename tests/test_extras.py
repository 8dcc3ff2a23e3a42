"""A core install: what runs without JAX, HiGHS and PIQP, and the one line that names a missing extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import attnlearn
from attnlearn._extras import EXTRAS, MissingExtra, installed, require_extra

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "highspy", "piqp"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess:
    words = [sys.executable, "-W", "error", "-c", BLOCKED + code]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=folder)


EVERY_VERB = """
import numpy as np
import attnlearn
from attnlearn import data
from attnlearn.cli.__main__ import main

layer = attnlearn.AttentionLayer.random(2, 6, bias=True, seed=1)
layer.save("layer.safetensors")
x = data.Gaussian(4, 6).sample(3000, seed=1)
np.savez("examples.npz", x=x, y=layer(x))
for method in ("auto", "moment", "wide"):
    assert attnlearn.recover(x, layer(x), method=method, progress=False).certified, method
assert attnlearn.extract(layer, dim=6, progress=False).certified
assert attnlearn.compress(layer, x, num_heads=2, progress=False).layer is not None
attnlearn.report(attnlearn.conditions(layer, x), "conditions.html")
assert attnlearn.explain(x, layer(x)).to_json()
for words in (
    ["doctor"], ["inspect", "layer.safetensors"], ["convert", "layer.safetensors", "again.safetensors"],
    ["explain", "examples.npz"], ["sample", "layer.safetensors", "drawn", "--num", "50", "--tokens", "3"],
    ["recover", "examples.npz", "-o", "found.safetensors", "--json", "found.json", "--report", "found.html", "-q"],
    ["report", "found.json", "-o", "again.html"],
):
    assert main(words) == 0, words
assert attnlearn.hard.parity(4, 2).num_heads
assert not {"jax", "jaxlib", "highspy", "piqp"} & set(sys.modules)
"""


def test_every_verb_but_train_and_sculpt_runs_on_a_core_install(tmp_path: Path) -> None:
    ended = without_extras(EVERY_VERB, tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("attnlearn.recover(x, x, method='sculpt')", "method: needs jax, which is not installed (pip install 'attnlearn[sculpt]')"),
        ("attnlearn.train.fit(x, x[:, 0, 0], num_heads=2)", "attnlearn.train: needs jax, which is not installed (pip install 'attnlearn[train]')"),
        ("import attnlearn.reproduce", "reproduce: needs jax, which is not installed (pip install 'attnlearn[sculpt]')"),
    ],
)  # fmt: skip
def test_a_missing_extra_is_one_line(code: str, line: str, tmp_path: Path) -> None:
    ended = without_extras(
        f"import numpy as np, attnlearn\nx = np.ones((9, 3, 4))\ntry:\n    {code}\n"
        "except ImportError as error:\n    assert isinstance(error, ValueError)\n    print(error)\n",
        tmp_path,
    )
    assert (ended.stdout, ended.stderr) == (line + "\n", "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "nothing.npz"], "attnlearn.train: needs jax"),
        (["recover", "examples.npz", "--method", "sculpt"], "method: needs jax"),
        (["reproduce", "learning"], "reproduce: needs jax"),
    ],
)
def test_the_command_line_exits_with_2(words: list[str], line: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((9, 3, 4))
    np.savez(tmp_path / "examples.npz", x=x, y=x)
    ended = without_extras(f"from attnlearn.cli.__main__ import main; sys.exit(main({words!r}))", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"attnlearn: {line}")
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == ""


def test_the_table_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    names = {
        extra: tuple(
            re.split(r"[<>=]", package)[0].replace("scikit-learn", "sklearn") for package in packages
        )
        for extra, packages in project["optional-dependencies"].items()
    }
    del names["dev"], names["docs"]  # for work on the project itself
    assert names == EXTRAS
    core = {re.split(r"[<>=]", package)[0] for package in project["dependencies"]}
    assert not core & {"jax", "highspy", "piqp", "torch"}


def test_no_requirement_of_the_package_is_exact() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    packages = sum(project["optional-dependencies"].values(), project["dependencies"])
    assert not [package for package in packages if "==" in package]


def test_a_package_that_fails_to_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("import of_nobody_s")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(EXTRAS, "odd", ("broken",))
    assert installed("odd")
    with pytest.raises(
        MissingExtra, match=r"^engine: needs broken, which fails to import: No module named 'of_nobody_s'"
    ):
        require_extra("engine", "odd")


WINDOWS = """
import importlib, pkgutil, signal, os, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "syslog"):
    sys.modules[name] = None
import cyclopts, joblib, numpy, rich, safetensors.numpy, scipy.optimize, sklearn.base, jax, torch  # theirs is their business
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGPIPE", "SIGCHLD", "pthread_sigmask", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("O_NOFOLLOW", "O_NONBLOCK", "uname", "pread", "pwrite", "killpg", "fork", "setsid", "sched_getaffinity", "sysconf"):
    delattr(os, name)
import attnlearn
modules = [module.name for module in pkgutil.walk_packages(attnlearn.__path__, "attnlearn.")]
for name in modules:
    importlib.import_module(name)
assert len(modules) > 200, len(modules)
assert attnlearn.AttentionLayer.random(2, 4)(numpy.ones((1, 2, 4))).shape == (1, 2, 4)
"""


def test_everything_imports_where_there_is_no_posix() -> None:
    ended = subprocess.run([sys.executable, "-c", WINDOWS], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]


PYTREE = """
import attnlearn
layer = attnlearn.AttentionLayer.random(2, 4)
assert "jax" not in sys.modules
import jax
attnlearn.AttentionLayer.random(1, 3)
assert len(jax.tree.leaves(layer)) == 4
"""


def test_a_layer_is_a_pytree_once_jax_is_imported() -> None:
    words = [sys.executable, "-c", "import sys\n" + PYTREE]
    assert subprocess.run(words, capture_output=True, text=True).stderr == ""
    assert attnlearn.__version__
