"""The planted teacher: its labels are the sign of the formula, its tokens are normal, its margin holds."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.data import Planted


def by_hand(model, x):
    """Phi of one sequence, written as it stands."""
    total = 0.0
    for u, w in zip(model.u, model.w):
        scores = x @ w @ x.T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        total += np.sum(u * (weights / weights.sum(axis=1, keepdims=True) @ x))
    return total / np.sqrt(model.num_heads)


def test_labels_are_the_sign_of_the_teacher(seed):
    model = Planted(5, 4, num_heads=3, teacher_seed=seed)
    x, y = model.sample(60, seed)
    values = np.array([by_hand(model, one) for one in x])
    assert np.allclose(values, model.phi(x))
    assert np.array_equal(y, np.sign(values))


def test_without_a_margin_tokens_are_standard_normal_and_labels_fair(seed):
    x, y = Planted(4, 5).sample(20_000, seed)
    assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(len(x))
    flat = x.reshape(len(x), -1)
    assert np.abs(flat.T @ flat / len(x) - np.eye(20)).max() < 6 / np.sqrt(len(x)) * np.sqrt(2)
    assert abs(y.mean()) < 5 / np.sqrt(len(x))  # Phi is odd in X


def test_the_margin_holds_and_phi_has_size_one(seed):
    model = Planted(4, 5, num_heads=2, margin=0.7)
    x, y = model.sample(2000, seed)
    assert (y * model.phi(x)).min() >= 0.7
    plain = Planted(4, 5, num_heads=2)
    assert np.isclose(np.mean(plain.phi(plain.sample(20_000, seed)[0]) ** 2), 1, rtol=0.1)


def test_the_teacher_does_not_depend_on_the_seed_of_the_examples():
    assert np.array_equal(Planted(4, 5).u, Planted(4, 5).u)
    assert not np.array_equal(Planted(4, 5).u, Planted(4, 5, teacher_seed=1).u)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"margin": 9.0}, "^margin: must leave 1 % of the examples"),
        ({"margin": -1.0}, "^margin: must be a finite number >= 0"),
        ({"scale": np.nan}, "^scale: must be a finite number >= 0"),
        ({"num_heads": 0}, "^num_heads: must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Planted(4, 5, **arguments)
