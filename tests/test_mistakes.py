"""The mistakes a new user makes first: each gets one line that names the parameter, the rule and the value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnlearn
from attnlearn import AttentionLayer, data
from attnlearn.cli.__main__ import main

LAYER = AttentionLayer.random(2, 6, seed=1)
X = data.Gaussian(4, 6).sample(60)
Y = LAYER(X)
BROKEN = np.where(np.arange(Y.size).reshape(Y.shape) == 72, np.nan, Y)

IN_PYTHON: dict[str, tuple[Any, str]] = {
    "token ids": (lambda: attnlearn.recover(np.ones((10, 4), int), Y), r"x: must hold vectors .*embed token ids first"),
    "one sequence lost": (lambda: attnlearn.recover(X, Y[:-1]), r"y: must have as many sequences as x \(60\)"),
    "mixed dtypes": (lambda: attnlearn.recover(X.astype(np.float32), Y), r"y: must have the dtype of x \(float32\), got float64"),
    "a NaN": (lambda: attnlearn.recover(X, BROKEN), r"y: must be finite, got nan at index \(3, 0, 0\)"),
    "no outputs": (lambda: attnlearn.recover(X), "y: must be given when x is an array, got None"),
    "a handful of examples": (lambda: attnlearn.recover(X[:5], Y[:5]), "x: must hold at least 20 sequences"),
    "a method misspelt": (lambda: attnlearn.recover(X, Y, method="spectal"), "method: must be one of auto, moment, wide, sculpt, linear, spectral, got 'spectal'"),
    "the wrong dimension": (lambda: attnlearn.extract(LAYER, 5), r"dim: must be the oracle's token dimension \(6\), got 5"),
    "no oracle": (lambda: attnlearn.extract(42, 5), "oracle: must be a callable, a layer, a torch module"),
    "labels 0 and 1": (lambda: attnlearn.train.fit(X, np.arange(60) % 2, num_heads=2), "y: must hold the labels -1 and [+]1 only"),
    "a report of nothing": (lambda: attnlearn.report(42, "x.html"), "solution_or_path: must be a Solution, a JSON result"),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PYTHON)
def test_in_python(name: str) -> None:
    call, message = IN_PYTHON[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("recver x", 'Did you mean "recover"?'),
        ("recover layer.safetensors --head 2", "Did you mean --heads?"),
        ("recover layer.safetensors", "must be a recorded folder or an .npz file"),
        ("recover nowhere", "must be a recorded folder or an .npz file, got 'nowhere'"),
        ("recover . --resume", "resume: needs --checkpoint DIR"),
        ("inspect layer.safetensor", "no such file, got layer.safetensor"),
        (
            "extract --oracle layer.safetensors --dim 5 --quiet",
            "dim: must be the oracle's token dimension (6), got 5",
        ),
        (
            "report layer.safetensors",
            "path: must be a JSON result, as --json writes it, got layer.safetensors",
        ),
        ("train layer.safetensors", "path: must be a valid .npz file"),
        (
            "extract --oracle layer.safetensors --dim 6 --report no/such/r.html",
            "report: cannot write no/such/r.html",
        ),
    ],
)
def test_on_the_command_line(words: str, message: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    LAYER.save("layer.safetensors")
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
