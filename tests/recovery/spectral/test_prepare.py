from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.engine import Stop
from attnlearn.recovery.spectral._prepare import token_support
from attnlearn.recovery.spectral._unmix import from_white, to_white
from attnlearn.solve._split import Split

from ._problems import problem, run, tokens


def test_whitening_identities(rng):
    layer = AttentionLayer.random(3, 5, bias=True, seed=1)
    x = tokens(rng, "normal", 400, 4, 5) @ rng.standard_normal((5, 5)) + rng.standard_normal(5)
    state, _ = run(problem(layer, x), "prepare")
    theta, c, w, b = to_white(state, layer.theta, layer.query_bias, layer.w, layer.output_bias)
    z = (x - state.mean) @ state.inverse.T
    assert np.abs(AttentionLayer(theta, w, c, b)(z) - layer(x)).max() < 1e-12
    back = AttentionLayer(**from_white(state, theta, c, w, b))
    for name in ("theta", "w", "query_bias", "output_bias"):
        assert np.abs(getattr(back, name) - getattr(layer, name)).max() < 1e-12, name


def test_white_tokens_have_identity_covariance(rng):
    x = tokens(rng, "normal", 300, 4, 6) @ np.diag(np.logspace(0, -3, 6)) + 3.0
    support, _ = token_support(as_examples(x, x), np.arange(len(x)))
    z = ((x - support.mean) @ np.linalg.pinv(support.basis).T).reshape(-1, 6)
    assert np.abs(z.mean(axis=0)).max() < 1e-10
    assert np.abs(z.T @ z / len(z) - np.eye(6)).max() < 1e-8


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_affine_support_is_found(rng, dtype):
    x = tokens(rng, "normalized", 400, 4, 8).astype(dtype)
    support, spectrum = token_support(as_examples(x, x), np.arange(len(x)))
    assert support.basis.shape == (8, 7)
    projector = support.projector()
    away = (x - support.mean) @ (np.eye(8) - projector)
    assert np.abs(away).max() < 100 * np.finfo(dtype).eps * np.abs(x).max()
    assert spectrum[7] < 1e-11 * spectrum[0]


@pytest.mark.parametrize("causal", [False, True])
def test_causal_mask_is_recognised(rng, causal):
    layer = AttentionLayer.random(2, 6, bias=True, seed=2, causal=causal)
    state, evidence = run(problem(layer, tokens(rng, "normal", 600, 5, 6)), "prepare")
    assert state.causal is causal
    assert evidence["prepare"]["causal"] is causal


def test_dependence_and_kurtosis_are_measured_only_where_they_are(rng):
    layer = AttentionLayer.random(2, 6, seed=0)
    plain, _ = run(problem(layer, tokens(rng, "normal", 3000, 5, 6)), "prepare")
    assert np.array_equal(plain.position_correlation, np.eye(5))
    assert not plain.kurtosis.any()
    assert not plain.position_mean.any()
    boolean, _ = run(problem(layer, tokens(rng, "boolean", 3000, 5, 6)), "prepare")
    assert np.abs(boolean.kurtosis + 2).max() < 0.05
    correlated, _ = run(problem(layer, tokens(rng, "correlated", 3000, 5, 6)), "prepare")
    wanted = 0.7 ** np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    assert np.abs(correlated.position_correlation - wanted).max() < 0.05


def test_what_cannot_be_learned_stops_the_run(rng):
    x = tokens(rng, "normal", 300, 4, 5)
    with pytest.raises(Stop) as stopped:
        run(problem(AttentionLayer.random(2, 5, scale=0.0), x), "prepare")
    assert stopped.value.outcome_name == "ATTENTION_TOO_WEAK"
    same = np.repeat(x[:, :1], 4, axis=1)
    with pytest.raises(Stop) as stopped:
        run(problem(AttentionLayer.random(2, 5), same), "prepare")
    assert stopped.value.outcome_name == "TOKENS_DEGENERATE"
    line = x[..., :1] * np.ones(5)
    with pytest.raises(Stop) as stopped:
        run(problem(AttentionLayer.random(2, 5), line), "prepare")
    assert stopped.value.outcome_name == "TOKENS_DEGENERATE"


def test_the_certify_side_is_not_read(rng):
    layer = AttentionLayer.random(2, 6, seed=0)
    x = tokens(rng, "normal", 800, 5, 6)
    y = layer(x)
    spoiled = y.copy()
    spoiled[Split.make(len(x)).certify] = np.nan
    states = []
    for outputs in (y, spoiled):
        whole = problem(layer, x)
        hidden = type(whole)(_Unchecked(x, outputs), whole.split)
        states.append(run(hidden, "unmix")[0])
    assert np.array_equal(states[0].theta, states[1].theta)


class _Unchecked:
    """Arrays as examples, without the check that they are finite."""

    def __init__(self, x, y):
        self._inner, self._y = as_examples(x, np.nan_to_num(y)), y
        for name in ("num", "tokens", "dim", "out_dim", "dtype", "masked"):
            setattr(self, name, getattr(self._inner, name))

    def chunks(self, size, indices):
        for start in range(0, len(indices), size):
            yield self.take(indices[start : start + size])

    def take(self, indices):
        return self._inner.take(indices)._replace(y=self._y[indices])
