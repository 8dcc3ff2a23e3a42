"""The theorems on instances that meet every premise, and the leave-one-out recursion against replayed runs."""

import numpy as np
import pytest

from attnlearn._precision import precision
from attnlearn.data import TokenizedMixture
from attnlearn.training import TrainConfig, bounds, fit
from attnlearn.training._calibration import DIVERGED
from attnlearn.training._certify import RunEvidence, verify_run
from attnlearn.training._compare import to_device
from attnlearn.training._descent import Rates, advance, finish, start
from attnlearn.training._loss import cut
from attnlearn.training._model import AttentionModel, Weights, equal_scales


def test_training_theorem_on_an_instance_that_meets_every_premise():
    """T = d = 2, n = 4, R = 0.5, zero start: heads enough for D = 4, so the a-priori bound must hold."""
    tokens = np.array(
        [[[0.5, 0], [0, 0.5]], [[0.5, 0], [0.5, 0]], [[0, -0.5], [-0.5, 0]], [[-0.5, 0], [0, 0.5]]]
    )
    y = np.array([1.0, 1.0, -1.0, -1.0])
    model, distance, num_steps = AttentionModel(), 4.0, 500
    # Comparator: U_h = c (1, 0) in both rows, scaled to length D; its loss is the same for every H.
    heads = 1
    for _ in range(50):  # M* falls as H grows, so the condition settles from above
        comparator_norm = distance / heads**0.5
        norm = bounds.norm_in_ball(comparator_norm, distance)
        needed = int(np.ceil(bounds.heads_needed(model.beta2(2, 0.5, norm), distance)))
        if heads >= needed:
            break
        heads = needed
    assert heads >= needed
    u = np.zeros((heads, 2, 2))
    u[:, :, 0] = distance / np.sqrt(2 * heads)
    star = Weights(u, np.zeros((heads, 2, 2)))
    begin = Weights(np.zeros_like(u), np.zeros((heads, 2, 2)))
    with precision(np.float64):
        chunks, scales = to_device(cut(tokens, y, heads)), equal_scales(heads, np.float64)
        loss_star = float(finish(model, star, chunks, scales, star)[0].loss)
        rho = bounds.smoothness(model.beta1(2, 0.5, norm), model.beta2(2, 0.5, norm), heads)
        step = bounds.step_limit(rho, distance, num_steps, loss_star, np.log(2))
        rates = Rates(*(np.asarray(v, np.float64) for v in (step, 0.5, heads)))
        state, losses = start("gd", Weights(*map(np.asarray, begin)), np.zeros(())), []
        for _ in range(num_steps // 100):
            state, trace = advance(model, "gd", False, state, chunks, scales, star, rates, 100)
            losses.append(np.asarray(trace.loss))
        last = finish(model, state.weights, chunks, scales, star)[0]
        losses = np.concatenate([*losses, [float(last.loss)]])
        away = [np.asarray(a) - b for a, b in zip(state.weights, star)]
    bound = bounds.mean_loss_bound(distance, loss_star, step, num_steps)
    assert losses[1:].mean() <= bound
    assert np.sqrt(sum((part**2).sum() for part in away)) <= np.sqrt(13 / 3) * distance
    assert step * losses[:-1].sum() <= 17 / 4 * distance**2


def test_run_bound_needs_its_violations():
    """A made-up run that climbs: without the violation terms the bound would be false."""
    loss = np.array([0.1, 1.0, 2.0, 3.0])
    end = np.sqrt(1 + 2 * 0.1 * 3 + 0.1**2 * 1.5)  # D_K^2 = D^2 - 2 eta sum inner + eta^2 sum ‖grad‖^2
    run = RunEvidence(loss, np.full(4, 0.5), np.full(4, -1.0), np.ones(4), 0.1, 0.05, 1.0, end, 1.0)
    verdict = verify_run(run, 1e-16)
    assert verdict.real == 6
    bare = bounds.run_bound(1.0, end, 0.05, 0.1, 3.0, 0.1, 3, 0.0)
    assert verdict.mean > bare
    assert verdict.mean <= verdict.bound


def test_recursion_bounds_the_replayed_distances(seed):
    x, y = TokenizedMixture(tokens=3, dim=4, signal=0.6, noise=0.05).sample(20, seed=seed)
    config = TrainConfig(replays=20, init_scale=0.5)
    solution = fit(x, y, num_heads=256, step=0.05, max_steps=60, config=config, raise_on_failure=False)
    evidence = solution.phase("replay").evidence
    true, bound = np.array(evidence["leave_one_out_distance"]), np.array(evidence["distance_bound"], float)
    assert np.all(bound < DIVERGED)
    assert np.all(true > 0)
    assert np.all(true <= bound)
    assert (bound / true).mean() < 30  # a bound that says something
    general = solution.stats["generalization"]
    assert general["leave_one_out_gap"] <= general["draw"]


def test_no_bound_of_a_run_below_its_measurement(seed):
    """500 random problems: any tokens, labels, start and step, also steps that do not descend."""
    finite = climbing = 0
    for index in range(500):
        rng = np.random.default_rng([seed, index])
        x = np.exp(rng.uniform(-1.5, 1.5)) * rng.standard_normal((8, 3, 3))
        y = rng.permutation([1, 1, 1, 1, -1, -1, -1, -1])
        solution = fit(
            x,
            y,
            num_heads=32,
            init=("zero", "gaussian", "first-step")[index % 3],
            step=float(np.exp(rng.uniform(-6, 1))),
            max_steps=30,
            seed=index,
            config=TrainConfig(replays=2, init_scale=float(np.exp(rng.uniform(-2, 1)))),
            raise_on_failure=False,
        )
        run = solution.stats["tiers"]["run-verified"]
        assert run["measured"] <= run["bound"] * (1 + 1e-12)
        climbing += run["violations"] > 0
        evidence = solution.phase("replay").evidence
        for true, bound in zip(evidence["leave_one_out_distance"], evidence["distance_bound"]):
            assert bound is None or true <= bound * (1 + 1e-12)
            finite += bound is not None
    assert finite >= 100, "too few finite bounds to say anything"
    assert climbing >= 5, "too few violations to say anything"


def test_recursion_gives_up_rather_than_lie(seed):
    x, y = TokenizedMixture(tokens=3, dim=4, signal=3.0).sample(20, seed=seed)
    solution = fit(
        x, y, num_heads=2, step=0.5, max_steps=60, config=TrainConfig(replays=1), raise_on_failure=False
    )
    assert solution.phase("replay").evidence["distance_bound"] == [None]
    assert solution.stats["generalization"]["draw"] == np.inf


@pytest.mark.slow
def test_mixture_bound_is_within_eight_times_the_mean(seed):
    x, y = TokenizedMixture(tokens=10, dim=32, dtype=np.float32).sample(300, seed=seed)
    solution = fit(x, y, num_heads=32, max_steps=2000, config=TrainConfig(replays=0))
    figures = solution.stats["tiers"]["run-verified"]
    assert figures["violations"] == 0
    assert figures["ratio"] <= 8
