"""The measured tier: intervals that hold, new examples told from old ones."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from attnlearn.data import TokenizedMixture
from attnlearn.training import TrainConfig, bounds, fit
from attnlearn.training._calibration import INTERVAL_CONFIDENCE
from attnlearn.training._held_out import error_interval, loss_interval, measured_checks, sort_out
from attnlearn.training._problem import make_problem

DRAWS = 1500
LEAST = INTERVAL_CONFIDENCE - 3 * math.sqrt(INTERVAL_CONFIDENCE * (1 - INTERVAL_CONFIDENCE) / DRAWS)
LARGEST = 12.0


def badly_wrong(rng, shape):
    """Losses of which 2 % are badly wrong: a t interval covers their mean in 71 % of the sets of 60."""
    return np.where(rng.random(shape) < 0.02, 10.0, 0.05), 0.02 * 10 + 0.98 * 0.05


def rarely_huge(rng, shape):
    return np.where(rng.random(shape) < 0.005, LARGEST, 0.0), 0.005 * LARGEST


def ordinary(rng, shape):
    return rng.beta(0.5, 8, shape) * LARGEST, LARGEST * 0.5 / 8.5


def always_wrong(rng, shape):
    return np.full(shape, 4.0), 4.0


@pytest.mark.parametrize("num", [20, 60, 400])
@pytest.mark.parametrize("family", [badly_wrong, rarely_huge, ordinary, always_wrong])
@pytest.mark.parametrize("largest", [LARGEST, math.inf])
def test_the_loss_interval_covers(family, num, largest, seed):
    losses, mean = family(np.random.default_rng([seed, num]), (DRAWS, num))
    ends = np.array([loss_interval(row, largest) for row in losses])
    covered = np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1]))
    assert covered >= LEAST
    assert np.all(ends[:, 0] <= losses.mean(axis=1))
    assert np.all(losses.mean(axis=1) <= ends[:, 1])


def test_the_old_interval_did_not_cover(seed):
    """The judge of the test above can fail: a t interval of the same losses does."""
    from scipy import stats

    losses, mean = badly_wrong(np.random.default_rng(seed), (DRAWS, 60))
    half = stats.t.ppf(0.975, 59) * losses.std(axis=1, ddof=1) / 60**0.5
    assert np.mean(np.abs(losses.mean(axis=1) - mean) <= half) < 0.8


def test_answers_that_overflowed_are_wrong_at_any_loss(rng):
    x = rng.standard_normal((40, 3, 2))
    problem = make_problem(x, np.sign(x[:, 0, 0]), num_heads=1, test=(x[:5] + 1, np.ones(5)))
    classifier = SimpleNamespace(u=np.ones((1, 3, 2)), decision=lambda x: np.full(len(x), np.nan))
    claims, _, figures = measured_checks(problem, classifier, 0.5)
    assert (figures["error"], figures["loss"]) == (1.0, math.inf)
    assert 0 < figures["loss_interval"][0] < figures["loss_interval"][1] == math.inf
    assert "between 47.82 % and 100.00 %" in claims[0].text


def test_the_loss_interval_shrinks(seed):
    rng = np.random.default_rng(seed)
    few, many = (np.diff(loss_interval(ordinary(rng, num)[0], LARGEST))[0] for num in (100, 10_000))
    assert many < few / 5
    assert loss_interval(np.zeros(50), 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("error", [0.0, 0.02, 0.5])
def test_the_error_interval_covers(error, seed):
    wrong = np.random.default_rng(seed).random((DRAWS, 60)) < error
    ends = np.array([error_interval(row) for row in wrong])
    assert np.mean((ends[:, 0] <= error) & (error <= ends[:, 1])) >= LEAST


def test_the_value_bound_holds_and_is_attained(seed):
    from attnlearn.training import TrainedClassifier

    rng = np.random.default_rng(seed)
    u, w = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 5))
    x = rng.standard_normal((500, 4, 5))
    x *= 2.0 / np.linalg.norm(x, axis=2).max()
    assert np.abs(TrainedClassifier(u, w).decision(x)).max() <= bounds.value_bound(u, 2.0)
    same = np.broadcast_to(u[:1, :1], u.shape)
    one = np.broadcast_to(2 * u[0, 0] / np.linalg.norm(u[0, 0]), (1, 4, 5))
    assert TrainedClassifier(same, w).decision(one)[0] == pytest.approx(bounds.value_bound(same, 2.0))


def test_sequences_of_training_are_not_new(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((6, 2, 3))
    x[5, 0, 0] = 0.0
    held_out = np.concatenate([x[:2], rng.standard_normal((2, 2, 3)), x[5:]])
    held_out[4, 0, 0] = -0.0  # the same number
    held_out = np.concatenate([held_out, held_out[2:3]])
    new, first = sort_out(x, held_out)
    assert new.tolist() == [False, False, True, True, False, True]
    assert first.tolist() == [False, False, True, True, False, False]


@pytest.fixture(scope="module")
def examples():
    return TokenizedMixture(tokens=4, dim=6, noise=0.2).sample(40, seed=3)


def trained(examples, test, **config):
    settings = {"num_heads": 2, "max_steps": 60, "raise_on_failure": False}
    return fit(*examples, test=test, config=TrainConfig(replays=0, **config), **settings)


def test_leaked_examples_are_set_aside(examples):
    new = TokenizedMixture(tokens=4, dim=6, noise=0.2).sample(50, seed=4)
    alone = trained(examples, new).stats["tiers"]["measured"]
    leaked = trained(examples, tuple(np.concatenate(pair) for pair in zip(examples, new)))
    figures = leaked.stats["tiers"]["measured"]
    assert (figures["given"], figures["seen"], figures["examples"]) == (90, 40, 50)
    assert figures["error_interval"] == alone["error_interval"]
    assert "40 more are set aside" in leaked.certificate.claim("M").text


def test_copies_do_not_narrow_the_interval(examples):
    new = TokenizedMixture(tokens=4, dim=6, noise=0.2).sample(10, seed=4)
    alone = trained(examples, new).stats["tiers"]["measured"]
    copied = trained(examples, tuple(np.repeat(part, 50, axis=0) for part in new)).stats["tiers"]["measured"]
    assert copied["repeated"] == 490
    for name in ("error_interval", "loss_interval"):
        assert copied[name][0] <= alone[name][0] * (1 + 1e-9)
        assert copied[name][1] >= alone[name][1] * (1 - 1e-9)


def test_nothing_is_claimed_about_new_examples_without_any(examples):
    for test, why in ((None, "no held-out examples"), (examples, "stands among the training sequences")):
        result = trained(examples, test)
        assert [claim.code for claim in result.certificate.claims] == ["R"]
        assert why in result.stats["new_examples"]
        assert why in " ".join(str(result).split())


def test_the_loss_has_an_upper_end_only_with_a_radius(examples):
    new = TokenizedMixture(tokens=4, dim=6, noise=0.2).sample(50, seed=4)
    without, known = (trained(examples, new, radius=radius) for radius in (None, 20.0))
    assert without.stats["tiers"]["measured"]["loss_interval"][1] == math.inf
    assert "no upper bound" in without.certificate.check("M.loss").text
    low, high = known.stats["tiers"]["measured"]["loss_interval"]
    assert (
        low
        <= known.stats["tiers"]["measured"]["loss"]
        <= high
        < known.stats["tiers"]["measured"]["largest_loss"]
    )


def test_a_radius_must_bound_held_out_tokens_too(examples):
    with pytest.raises(ValueError, match="radius: must bound every token norm"):
        trained(examples, (100 * examples[0], examples[1]), radius=20.0)


@pytest.mark.parametrize("dtypes", [(np.float32, np.float64), (np.float64, np.float32)])
def test_copies_in_another_dtype_are_no_new_examples(dtypes):
    x, y = TokenizedMixture(tokens=3, dim=4).sample(20, seed=0)
    x = x.astype(np.float32)  # so that every dtype holds the same numbers
    problem = make_problem(x.astype(dtypes[0]), y, num_heads=1, test=(x.astype(dtypes[1]), y))
    assert problem.dtype == problem.test[0].dtype == problem.test[1].dtype == np.float64
    new, _ = sort_out(problem.x, problem.test[0])
    assert not new.any()
