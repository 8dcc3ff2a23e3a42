"""Sweeps equal single runs; plans; the command's function."""

import numpy as np
import pytest

from attnlearn.data import TokenizedMixture
from attnlearn.training import ReadoutModel, TrainConfig, fit, fit_many, plan
from attnlearn.training._command import train_file

EXAMPLES = TokenizedMixture(tokens=3, dim=5).sample(24, seed=1)


@pytest.mark.parametrize("model", [None, ReadoutModel(1)], ids=str)
@pytest.mark.parametrize("optimizer", ["gd", "normalized", "polyak", "decaying", "adam"])
def test_sweep_equals_single_runs(optimizer, model):
    settings = {"step": 0.05 if optimizer == "adam" else 0.5, "max_steps": 130, "optimizer": optimizer}
    sweep = fit_many(*EXAMPLES, num_heads=(1, 3), seeds=(0, 5), model=model, **settings)
    config = TrainConfig(replays=0)
    single = fit(
        *EXAMPLES, num_heads=3, seed=5, model=model, config=config, raise_on_failure=False, **settings
    )
    run = sweep.classifiers[3]
    assert (run.num_heads, run.tokens) == (3, 3)
    np.testing.assert_allclose(run.u, single.layer.u, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(run.w, single.layer.w, rtol=1e-9, atol=1e-11)
    assert sweep.losses.shape == (4, 130)
    assert sweep.steps_to(sweep.losses[3, 40])[3] == 40
    assert sweep.steps_to(0.0)[0] == -1


def test_sweep_does_not_depend_on_blocks(monkeypatch):
    from attnlearn.training import _sweep

    whole = fit_many(*EXAMPLES, num_heads=2, seeds=range(5), step=0.5, max_steps=20)
    monkeypatch.setattr(_sweep, "SWEEP_HEADS", 4)
    pieces = fit_many(*EXAMPLES, num_heads=2, seeds=range(5), step=0.5, max_steps=20)
    np.testing.assert_allclose(pieces.losses, whole.losses, rtol=1e-12)


def test_blocks_are_about_equal():
    from attnlearn.training._sweep import SWEEP_HEADS, _block_size

    assert _block_size(1000, 4) == 100 == SWEEP_HEADS // 4
    assert _block_size(101, 4) == 51
    assert _block_size(7, 10 * SWEEP_HEADS) == 1


def test_a_run_that_diverges_leaves_the_others_alone():
    alone = fit_many(*EXAMPLES, num_heads=2, seeds=(1,), init="gaussian", step=0.5, max_steps=5)
    with pytest.MonkeyPatch.context() as patch:
        from attnlearn.training import _sweep

        start = _sweep._start

        def broken(problem, seed):
            weights = start(problem, seed)
            return weights._replace(u=np.full_like(weights.u, np.nan)) if seed == 0 else weights

        patch.setattr(_sweep, "_start", broken)
        both = fit_many(*EXAMPLES, num_heads=2, seeds=(0, 1), init="gaussian", step=0.5, max_steps=5)
    assert np.isnan(both.losses[0]).all()
    np.testing.assert_allclose(both.losses[1], alone.losses[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": ()}, "seeds: must not be empty"),
        ({"seeds": (0, -1)}, "seeds: must be an integer >= 0"),
        ({"num_heads": ()}, "num_heads: must not be empty"),
        ({"num_heads": (2, 0)}, "num_heads: must be an integer >= 1"),
        ({"step": "theory"}, "step: must be a number or auto for many runs"),
    ],
)
def test_bad_sweep_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        fit_many(*EXAMPLES, **({"num_heads": 2} | change))


def test_plan_predicts_what_fit_measures():
    prediction = plan(*EXAMPLES, num_heads=4)
    assert prediction.separable
    assert [row["heads"] for row in prediction.table] == [1, 4, 16]
    solution = fit(*EXAMPLES, num_heads=4, max_steps=20, config=TrainConfig(replays=0))
    assert prediction.margin == pytest.approx(solution.stats["tiers"]["a-priori"]["gamma"])
    assert prediction.practical_step == pytest.approx(solution.phase("compare").evidence["step"])
    distances = [target.distance for target in prediction.targets]
    assert distances == sorted(distances)
    assert all(target.heads_needed > 1 for target in prediction.targets)
    assert "gamma" in str(prediction)
    assert prediction.to_json()["separable"] is True


def test_plan_of_inseparable_labels_predicts_nothing():
    x = np.ones((4, 2, 3))
    prediction = plan(x, np.array([1, -1, 1, -1]), num_heads=2, heads=())
    assert not prediction.separable
    assert prediction.targets == ()
    assert "predicts nothing" in str(prediction)


def test_realizability_lemma_by_evaluation():
    """With enough heads theta_0 + radius v has the loss the lemma promises."""
    from attnlearn._precision import precision
    from attnlearn.training import AttentionModel, bounds, loss_and_gradient
    from attnlearn.training._calibration import CURVATURE_ALLOWANCE
    from attnlearn.training._compare import tangent
    from attnlearn.training._initialize import initialize
    from attnlearn.training._problem import make_problem

    x, y = 0.5 * EXAMPLES[0], EXAMPLES[1]
    heads = 8192
    problem = make_problem(x, y, num_heads=heads, init="zero")
    begin = initialize(AttentionModel(), "zero", x, y, heads, np.random.default_rng(0))
    with precision(np.float64):
        found = tangent(problem, begin, np.random.default_rng(0))
    loss = 0.5
    radius = bounds.realizability_radius(0.0, found.margin, loss, CURVATURE_ALLOWANCE)
    star = [p + radius * v for p, v in zip(begin, found.direction)]
    norm = float(np.linalg.norm(star[0], axis=(1, 2)).max())
    curvature = problem.constants(norm)[1] / heads**0.5 * radius**2
    assert curvature <= 2 * CURVATURE_ALLOWANCE, "the premise must hold for the test to say anything"
    assert loss_and_gradient(*star, x, y)[0] <= loss


def test_train_file_reports_missing_arrays(tmp_path):
    np.savez(tmp_path / "bad.npz", x=np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"path: bad\.npz must hold x and y"):
        train_file(tmp_path / "bad.npz")
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"path: must be a valid .npz file"):
        train_file(tmp_path / "junk.npz")


def test_the_plan_for_a_test_loss():
    """Every premise of both theorems holds at its numbers, and their two bounds add up to the loss that was asked for."""
    import math

    from attnlearn.training import bounds
    from attnlearn.training._calibration import HEADS_FACTOR, HEADS_RATIO
    from attnlearn.training._problem import make_problem

    x, y = TokenizedMixture(tokens=4, dim=6).sample(30, seed=0)
    found = plan(x, y, num_heads=4, heads=(), test_loss=0.1)
    test = found.test
    assert test is not None
    assert HEADS_RATIO >= HEADS_FACTOR
    problem = make_problem(x, y, num_heads=4)
    norm = bounds.norm_in_ball(found.head_bound + test.distance, test.distance)
    beta1, beta2 = problem.constants(norm)
    rho = bounds.smoothness(beta1, beta2, test.heads)
    limit = bounds.step_limit(
        rho, test.distance, test.steps, test.train_star, math.log(2) + found.value_bound
    )
    assert test.step <= limit * (1 + 1e-6)
    assert test.heads >= bounds.heads_needed(beta2, test.distance) * (1 - 1e-6)
    trained = bounds.mean_loss_bound(test.distance, test.train_star, test.step, test.steps)
    constant = bounds.expansion_constant(bounds.heads_ratio(test.heads, beta2, test.distance))
    gap = bounds.generalization_bound(beta1, test.distance, test.examples, constant)
    assert trained + gap <= 0.1 * (1 + 1e-6)
    assert "provided that" in str(found)
    harder = plan(x, y, num_heads=4, heads=(), test_loss=0.05).test
    assert harder is not None
    assert min(harder.examples / test.examples, harder.steps / test.steps, harder.heads / test.heads) > 1
    with pytest.raises(ValueError, match="test_loss: must lie between"):
        plan(x, y, num_heads=4, test_loss=1.0)
