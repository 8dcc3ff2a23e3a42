"""The tokenized mixture: signals, positions, noise and labels are what the definition says."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.data import TokenizedMixture


def test_signals_are_orthogonal_of_equal_norm():
    model = TokenizedMixture(10, 12, signal=3.0, num_distractors=5)
    np.testing.assert_allclose(model.signals @ model.signals.T, 9 * np.eye(7), atol=1e-12)
    assert model.signal == pytest.approx(3)


def test_every_position_holds_what_it_should(seed):
    model = TokenizedMixture(10, 12, relevant=0.3, signal=2.0, num_distractors=3, noise=0.05)
    x, y = model.sample(500, seed)
    relevant = model.relevant_positions(x, y)
    assert (relevant.sum(axis=1) == 3).all()
    assert model.zeta == pytest.approx(0.3)
    scores = x @ model.signals.T / model.signal**2
    label = np.where(y > 0, 0, 1)
    np.testing.assert_allclose(np.take_along_axis(scores, label[:, None, None], 2)[..., 0][relevant], 1)
    others = scores[~relevant]
    assert (others[:, 2:].argmax(axis=1)[:, None] == others.argmax(axis=1)[:, None] - 2).all()
    distractor = model.signals[others.argmax(axis=1)]
    np.testing.assert_allclose(np.linalg.norm(x[~relevant] - distractor, axis=1), 0.05 * np.sqrt(12))


def test_labels_positions_and_distractors_are_uniform(seed):
    model = TokenizedMixture(5, 6, relevant=0.4, num_distractors=2)
    x, y = model.sample(20_000, seed)
    deviation = 5 * 0.5 / np.sqrt(len(y))
    assert abs((y > 0).mean() - 0.5) < deviation
    relevant = model.relevant_positions(x, y)
    assert np.abs(relevant.mean(axis=0) - 0.4).max() < deviation
    # Pairs of positions: 10 equally likely sets.
    assert abs((relevant[:, 0] & relevant[:, 1]).mean() - 0.1) < deviation
    first = (x @ model.signals.T).argmax(axis=-1)[~relevant] == 2
    assert abs(first.mean() - 0.5) < deviation


@pytest.mark.parametrize("law", ["sphere", "gaussian"])
def test_noise_has_the_stated_covariance(law, seed):
    model = TokenizedMixture(4, 5, relevant=0.25, num_distractors=1, noise=0.5, noise_law=law)
    x, y = model.sample(20_000, seed)
    z = x[~model.relevant_positions(x, y)] - model.signals[2]
    # Entries of z z^T have variance at most 2 noise^4.
    assert np.abs(z.T @ z / len(z) - 0.25 * np.eye(5)).max() < 5 * np.sqrt(2) * 0.25 / np.sqrt(len(z))
    assert np.abs(z.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(len(z))


def test_radius_bounds_spherical_tokens_only(seed):
    model = TokenizedMixture(4, 5, num_distractors=1, noise=0.5, relevant=0.25)
    norms = np.linalg.norm(model.sample(20_000, seed)[0], axis=-1)
    assert 0.9 * model.radius < norms.max() <= model.radius
    assert TokenizedMixture(4, 5, noise_law="gaussian").radius == np.inf
    assert TokenizedMixture(4, 5, noise_law="gaussian", noise=0.0).radius == pytest.approx(1)


def test_train_and_test_share_their_signals():
    signals = TokenizedMixture(4, 6).signals
    assert (TokenizedMixture(9, 6).signals == signals).all()
    assert not np.allclose(TokenizedMixture(4, 6, direction_seed=1).signals, signals)
    given = 2 * np.eye(3, 6)
    assert (TokenizedMixture(4, 6, signals=given).signals == given).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relevant": 0.0}, r"^relevant: must be a fraction in \(0, 1\]"),
        ({"relevant": float("nan")}, "^relevant: must be a fraction"),
        ({"signal": -1.0}, "^signal: must be a finite number > 0"),
        ({"noise": float("inf")}, "^noise: must be a finite number >= 0"),
        ({"noise_law": "cauchy"}, "^noise_law: must be one of"),
        ({"num_distractors": 5}, "^num_distractors: must be at most dim - 2 = 4"),
        ({"num_distractors": 0}, "^num_distractors: must be an integer >= 1"),
        ({"signals": np.eye(2, 6)}, "^signals: must have shape"),
        ({"signals": np.ones((3, 6))}, "^signals: must be orthogonal and of equal norm"),
        ({"signals": np.zeros((3, 6))}, "^signals: must be orthogonal and of equal norm"),
    ],
)
def test_bad_mixtures_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenizedMixture(4, 6, **arguments)
