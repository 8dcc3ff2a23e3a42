"""The second paper's figures: explicit margins of the mixture, and the claims' code on small sizes."""

import json

import numpy as np
import pytest

from attnlearn.data import TokenizedMixture
from attnlearn.reproduce import plot
from attnlearn.reproduce._margins import margin_bound
from attnlearn.reproduce._optimization import CLAIMS, starts_claim
from attnlearn.training import AttentionModel, Weights
from attnlearn.training._model import equal_scales
from attnlearn.training._tangent import combine_gradients


def test_explicit_margins_of_the_noiseless_mixture(seed):
    """gamma_U and gamma_W of docs/guarantees.md, section 8, along their own directions."""
    mixture = TokenizedMixture(tokens=10, dim=8, noise=0.0, signal=1.5)
    x, y = mixture.sample(6, seed=seed)
    plus, minus = mixture.signals[:2]
    tokens, heads, s, zeta = 10, 3, mixture.signal, mixture.zeta
    alpha = np.array([1.0, -1.0, 1.0])
    c0 = zeta / 4
    u = alpha[:, None, None] * np.broadcast_to(c0 * (plus - minus), (heads, tokens, 8))
    v_u = np.broadcast_to(plus - minus, (heads, tokens, 8)) / (s * np.sqrt(2 * heads * tokens))
    k = 1 / (s**2 * np.sqrt(2 * heads))
    v_w = alpha[:, None, None] * k * (np.outer(plus, plus) + np.outer(minus, minus))
    assert np.linalg.norm(v_u) == pytest.approx(1)
    assert np.linalg.norm(v_w) == pytest.approx(1)
    from attnlearn._precision import precision

    gamma_u = np.sqrt(tokens / 2) * zeta * s
    gamma_w = tokens / np.sqrt(2) * c0 * s**4 * zeta**2 * (1 - zeta)
    with precision(np.float64):
        for i in range(len(x)):
            gradient = combine_gradients(
                AttentionModel(),
                Weights(u, np.zeros((heads, 8, 8))),
                equal_scales(heads, np.float64),
                x[None, i : i + 1],
                y[None, i : i + 1],
            )
            assert float(np.vdot(gradient.u, v_u)) == pytest.approx(gamma_u)
            assert float(np.vdot(gradient.w, v_w)) == pytest.approx(gamma_w)


def test_margin_bound_limits():
    quiet = TokenizedMixture(tokens=10, dim=8, noise=0.0)
    assert margin_bound(quiet, 50, 0.05) == pytest.approx(np.sqrt(5) * 0.2)
    loud = TokenizedMixture(tokens=10, dim=8, noise=1.0)
    assert margin_bound(loud, 50, 0.05) < 0  # says nothing, and says so


def test_starts_satisfy_their_conditions_and_exceed_the_bound(seed):
    claim = starts_claim(seed=seed, quick=True)
    assert claim["margin_bound"] > 0
    for name in ("zero", "first-step"):
        row = claim["starts"][name]
        assert row["P1"] == row["P2"] == row["P3"] == 1
        assert row["gamma_above_bound"] == 1
    json.dumps(claim, allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["heads", "protocol", "planted", "examples", "unattained", "attention", "bound"]
)
def test_claim_runs_and_draws(name, seed, tmp_path):
    claim = CLAIMS[name](seed=seed, quick=True)
    json.dumps({key: value for key, value in claim.items() if key != "curves"}, allow_nan=False)
    plot({name: claim}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    if name == "attention":
        shares = [np.mean(row["share"]) for row in claim["rows"]]
        assert shares[-1] > shares[0] > 0.9 * claim["uniform_share"]
    if name == "protocol":
        assert [len(row["constant"]["test_loss"]) for row in claim["rows"]] == [claim["trials"]] * 3
        assert all(
            max(row[rule]["heads_apart"]) < 1e-6 for row in claim["rows"] for rule in ("constant", "sqrt")
        )  # float32
        slower = [np.mean(row["constant"]["attention"]) for row in claim["rows"]]
        assert slower[0] > slower[1] > slower[2] > 0.9 * claim["uniform_share"]
    if name == "bound":
        assert claim["violations"] == [0] * len(claim["ratios"])
        assert min(claim["ratios"]) >= 1
