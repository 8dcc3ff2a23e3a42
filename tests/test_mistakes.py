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
    "a NaN": (lambda: attnlearn.recover(X, BROKEN), r"y: must be finite, got nan at index \(3, 0, 0\)"),
    "no outputs": (lambda: attnlearn.recover(X), "y: must be given when x is an array, got None"),
    "a handful of examples": (lambda: attnlearn.recover(X[:5], Y[:5]), "x: must hold at least 20 sequences"),
    "the batch on the second axis": (lambda: attnlearn.recover(X.swapaxes(0, 1), Y.swapaxes(0, 1)), r"x: must hold the sequences on its first axis; try x.swapaxes\(0, 1\)"),
    "one sequence": (lambda: attnlearn.recover(X[0], Y[0]), r"x: must have shape \(n, k, d\); one sequence is x\[None\]"),
    "tokens after coordinates": (lambda: attnlearn.recover(X.swapaxes(1, 2), Y), r"x: must be \(n, k, d\), tokens before coordinates; try x.swapaxes\(1, 2\)"),
    "a function that does not say its dimension": (lambda: attnlearn.extract(np.sin), "dim: must be given for an oracle that does not say its token dimension"),
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
        (
            "recover layer.safetensors",
            "a layer gives examples by attnlearn sample, a model by attnlearn record, got 'layer.safetensors'",
        ),
        (
            "recover flat.npz",
            "x: must have shape (n, k, d); one sequence is x[None], y[None], got an array of shape (60, 6)",
        ),
        ("recover ids.npz", "x: must hold vectors (n, k, d), not integers (embed token ids first)"),
        (
            "recover pooled.npz",
            "y: must have shape (n, k, d_out), the output of every token and no average of them",
        ),
        ("recover turned.npz", "tokens before coordinates; try x.swapaxes(1, 2)"),
        ("extract", "--oracle: must be given, for example attnlearn extract --oracle layer.safetensors"),
        ("extract --oracle lost.safetensors", "got 'lost.safetensors' (no such file)"),
        ("recover nowhere.npz", "got 'nowhere.npz' (no such file)"),
        ("recover model.py:make", "a model takes --layers all, got 'model.py:make'"),
        ("recover named.npz", "named.npz must hold x and y (np.savez(path, x=x, y=y)), got inputs, outputs"),
        ("recover empty.npz", "x: must not be empty, got 'shape (0, 4, 6)'"),
        (
            "inspect named.npz",
            "path: must be a file with weights, got named.npz, which holds arrays of NumPy",
        ),
        ("inspect .", "got the directory . (give one of its files: layer.safetensors)"),
        ("inspect hollow", "got the directory hollow (which holds no .safetensors or .json file)"),
        ("demo named.npz", "folder: must be a folder to write into, got named.npz (a file has that name)"),
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
    np.savez("named.npz", inputs=X, outputs=Y)
    np.savez("empty.npz", x=X[:0], y=Y[:0])
    np.savez("flat.npz", x=X[:, 0], y=Y[:, 0])
    np.savez("ids.npz", x=np.ones((60, 4), int), y=Y)
    np.savez("pooled.npz", x=X, y=Y.mean(1))
    np.savez("turned.npz", x=X.swapaxes(1, 2), y=Y)
    (tmp_path / "hollow").mkdir()
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


MANY = data.Gaussian(4, 6).sample(800)
FOUND: dict[str, tuple[Any, str]] = {
    "too few examples": (lambda: attnlearn.recover(X, Y), r"What to do: give about \d+ examples in all\."),
    "a residual left in": (lambda: attnlearn.recover(MANY, LAYER(MANY) + MANY), "the likeliest cause is “residual”: .*subtract X from Y"),
    "a wrong number of heads": (lambda: attnlearn.recover(MANY, LAYER(MANY), num_heads=1, method="moment"), "leave out the number of heads, which was given as 1"),
    "outputs in another order": (lambda: attnlearn.recover(MANY, LAYER(MANY)[::-1]), "the likeliest cause is “unrelated”: nothing in the outputs of 600 sequences follows their tokens"),
    "noise as outputs": (lambda: attnlearn.recover(MANY, np.random.default_rng(0).standard_normal(MANY.shape), num_heads=2), "check that x and y are in the same order, and that y are the outputs for x[.]"),
    "all tokens equal": (lambda: attnlearn.recover(1 + 0 * MANY, LAYER(MANY)), r"\(all tokens are equal\)"),
    "one token repeated": (lambda: attnlearn.recover(MANY[:, :1].repeat(4, 1), LAYER(MANY)), "each token of a sequence is a copy of the others"),
    "few different sequences": (lambda: attnlearn.recover(np.tile(X[:7], (9, 1, 1)), np.tile(Y[:7], (9, 1, 1))), "only 7 of the 63 sequences differ from each other"),
    "two tokens a sequence": (lambda: attnlearn.recover(MANY[:, :2], LAYER(MANY[:, :2])), "give sequences of three tokens or more"),
    "constant outputs": (lambda: attnlearn.recover(MANY, 2.0 + 0 * MANY), "the outputs are the same for every input"),
    "outputs without attention": (lambda: attnlearn.recover(MANY, MANY @ LAYER.w[0]), r"a linear function of the tokens explains all but \de-1\d of the outputs"),
    "axes exchanged in both": (lambda: attnlearn.recover(MANY.swapaxes(1, 2), LAYER(MANY).swapaxes(1, 2)), r"6 tokens of dimension 4: if that is the wrong way round"),
    "an oracle that is not there": (lambda: attnlearn.extract(attnlearn.oracle.parse("http://127.0.0.1:9/", retries=0), 6), "connection refused"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_a_run_finds_out(name: str) -> None:
    """Mistakes that only a run can notice: the exception says the cause, the numbers and the remedy, and no key of `stats`."""
    call, message = FOUND[name]
    with pytest.raises(attnlearn.NotEstablished, match=message) as caught:
        call()
    assert "stats[" not in str(caught.value)


def test_no_outcome_sends_its_reader_to_a_key() -> None:
    for outcome in attnlearn.Outcome:
        assert "stats" not in outcome.reason + outcome.remedy
