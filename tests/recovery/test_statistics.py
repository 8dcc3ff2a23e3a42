"""Statistics of tokens and outputs: support, whitening, causality, the linear fit; the certify side is not read."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.data import as_examples
from attnlearn.recovery._problem import Problem
from attnlearn.recovery._statistics import (
    dependence,
    linear_rest,
    looks_causal,
    nonlinear_share,
    token_support,
)
from attnlearn.solve._split import Split

from ._problems import problem, start, tokens


def test_white_tokens_have_identity_covariance(rng):
    x = tokens(rng, "normal", 300, 4, 6) @ np.diag(np.logspace(0, -3, 6)) + 3.0
    support = token_support(as_examples(x, x), np.arange(len(x)))
    z = ((x - support.mean) @ support.inverse.T).reshape(-1, 6)
    assert np.abs(z.mean(axis=0)).max() < 1e-10
    assert np.abs(z.T @ z / len(z) - np.eye(6)).max() < 1e-8
    assert (
        np.abs(support.inverse - np.linalg.pinv(support.basis)).max() < 1e-9 * np.abs(support.inverse).max()
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_affine_support_is_found(rng, dtype):
    x = tokens(rng, "normalized", 400, 4, 8).astype(dtype)
    support = token_support(as_examples(x, x), np.arange(len(x)))
    assert support.basis.shape == (8, 7)
    projector = support.basis @ support.inverse
    away = (x - support.mean) @ (np.eye(8) - projector)
    assert np.abs(away).max() < 100 * np.finfo(dtype).eps * np.abs(x).max()


def test_tokens_that_were_cut_to_bfloat16_keep_the_directions_above_that_rounding(rng):
    import ml_dtypes

    x = tokens(rng, "normal", 400, 4, 6) * np.array([1, 1, 1, 1, 1, 1e-3])
    cut = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    indices = np.arange(len(x))
    assert token_support(as_examples(x, x), indices).basis.shape == (6, 6)
    assert token_support(as_examples(cut, cut), indices).basis.shape == (6, 5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_causal_layer_looks_so(rng, causal, masked):
    layer = AttentionLayer.random(2, 6, bias=True, seed=2, causal=causal)
    x = tokens(rng, "normal", 600, 5, 6)
    mask = np.arange(5) < rng.integers(3, 6, len(x))[:, None] if masked else None
    examples, indices = as_examples(x, layer(x, mask), mask), np.arange(len(x))
    assert looks_causal(examples, indices) is causal


def test_a_layer_of_flat_attention_is_linear_and_leaves_nothing(rng):
    x = tokens(rng, "normal", 600, 5, 6)
    flat, layer = (AttentionLayer.random(2, 6, seed=2, scale=scale) for scale in (0.0, 1.0))
    assert nonlinear_share(as_examples(x, flat(x))) < 1e-9
    assert 0.01 < nonlinear_share(as_examples(x, layer(x))) < 1


def test_what_the_linear_fit_leaves_has_the_covariance_that_is_said(rng):
    x = tokens(rng, "normal", 2000, 4, 5)
    y = x @ rng.standard_normal((5, 5)) + rng.standard_normal(x.shape) * np.array([1, 2, 3, 4, 5])
    examples, indices = as_examples(x, y), np.arange(len(x))
    white = token_support(examples, indices)
    found = dependence(examples, indices, white, False)
    rest = linear_rest(examples, indices, white, False, found.linear)
    assert np.diag(rest.covariance) == pytest.approx(np.arange(1, 6) ** 2, rel=0.1)
    assert rest.output_scale == pytest.approx(np.linalg.norm(y.reshape(-1, 5).std(axis=0)), rel=0.1)
    assert rest.share == pytest.approx(np.trace(rest.covariance) / rest.output_scale**2)


def test_leaning_tokens_are_skewed(rng):
    x = np.exp(rng.standard_normal((2000, 4, 5)))
    examples, indices = as_examples(x, x), np.arange(len(x))
    white = token_support(examples, indices)
    assert dependence(examples, indices, white, False).skewness.min() > 1


def test_the_certify_side_is_not_read(rng):
    layer = AttentionLayer.random(2, 6, seed=0)
    x = tokens(rng, "normal", 800, 5, 6)
    y = layer(x)
    spoiled = y.copy()
    spoiled[Split.make(len(x)).certify] = np.nan
    split = problem(layer, x).split
    found = [start(Problem(_Unchecked(x, outputs), split)).weights.layer.theta for outputs in (y, spoiled)]
    assert np.array_equal(*found)


class _Unchecked:
    """Arrays as examples, without the check that they are finite."""

    def __init__(self, x, y):
        self._inner, self._y = as_examples(x, np.nan_to_num(y)), y
        for name in ("num", "tokens", "dim", "out_dim", "dtype", "masked"):
            setattr(self, name, getattr(self._inner, name))

    def chunks(self, size, indices):
        for first in range(0, len(indices), size):
            yield self.take(indices[first : first + size])

    def take(self, indices):
        return self._inner.take(indices)._replace(y=self._y[indices])
