"""Hostile problems: no established claim is false, and what deserves a certificate gets one."""

from functools import cache

import numpy as np
import pytest

from attnlearn.training import plan
from tests.problems._training import TRAINING
from tests.problems._training_judge import judge, phi, run_training


@pytest.fixture(scope="module")
def learned():
    """A learnable problem and its run, for every seed once."""

    @cache
    def run(seed):
        problem = TRAINING["learnable"](np.random.default_rng(seed))
        return problem, run_training(problem)

    return run


@pytest.mark.parametrize("family", TRAINING)
def test_no_claim_is_false(family, seed):
    problem = TRAINING[family](np.random.default_rng([seed, 5]))
    if problem.refused:
        with pytest.raises(ValueError, match=problem.refused):
            run_training(problem)
        return
    solution = run_training(problem)
    judged = judge(problem, solution)
    assert judged.broken == []
    assert (
        judged.missed == []
    )  # 95 % each, and wide for so few examples: `benchmarks training_honesty` counts
    if problem.certified:
        assert judged.certified
    assert str(solution)


def test_one_contradiction_makes_a_plan_inseparable(seed):
    problem = TRAINING["one_contradiction"](np.random.default_rng(seed))
    assert not plan(*problem.train, num_heads=4, heads=(), seed=seed).separable


def test_the_judge_computes_the_model_itself(seed, learned):
    problem, solution = learned(seed)
    model = solution.layer
    np.testing.assert_allclose(
        phi(model.u, model.w, problem.train[0]), model.decision(problem.train[0]), rtol=1e-9
    )


def test_the_judge_sees_a_false_claim(seed, learned):
    """A judge that never objects proves nothing."""
    import dataclasses

    problem, solution = learned(seed)
    lying = []
    for claim in solution.certificate.claims:
        lie = {"error_interval": [0.4, 0.5]} if claim.code == "M" else {"bound": 1e-6}
        lying.append(dataclasses.replace(claim, value=claim.value | lie))
    certificate = dataclasses.replace(solution.certificate, claims=tuple(lying))
    judged = judge(problem, dataclasses.replace(solution, certificate=certificate))
    assert judged.missed == ["M"]
    assert judged.broken == ["R: above its bound"]
