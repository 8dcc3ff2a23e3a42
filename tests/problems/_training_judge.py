"""Whether a training result claims something false. The forward pass here is the judge's own, in plain NumPy.

`broken` holds claims that must never be wrong. `missed` holds statements with a confidence that the fresh examples
contradict: of those a share of 1 - confidence may be wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn import Solution
from attnlearn.training import TrainConfig, fit
from tests.problems._training import TrainingProblem

NEAR = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 1e-4}
"""How far the judge's loss may be from the library's, in units of the larger of 1 and the loss."""


class Judged(NamedTuple):
    """What was claimed, what of it is wrong, and what should have been claimed."""

    claims: int
    intervals: int
    broken: list[str]
    missed: list[str]
    certified: bool
    outcome: str


def run_training(problem: TrainingProblem, seed: int = 0) -> Solution:
    """The problem as a user would run it."""
    config = TrainConfig(replays=0, recursion=False, radius=problem.radius)
    settings = {"num_heads": 4, "max_steps": 100, "seed": seed, "test": problem.test} | problem.options
    return fit(*problem.train, config=config, progress=False, raise_on_failure=False, **settings)


def phi(u: np.ndarray, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(1/sqrt H) sum_h <U_h, softmax(X W_h X^T) X> of every sequence, one head after the other."""
    x = x.astype(np.float64)
    total = np.zeros(len(x))
    for read_out, scores in zip(u.astype(np.float64), w.astype(np.float64)):
        score = x @ scores @ x.transpose(0, 2, 1)
        weight = np.exp(score - score.max(axis=2, keepdims=True))
        attended = weight @ x / weight.sum(axis=2, keepdims=True)
        total += (attended * read_out).sum(axis=(1, 2))
    return total / len(u) ** 0.5


def judge(problem: TrainingProblem, solution: Solution) -> Judged:
    """Every established claim and every interval, against the truth of the problem and fresh examples."""
    certificate, broken, missed = solution.certificate, [], []
    established = {claim.code: claim for claim in certificate.claims if claim.established}
    intervals = 0
    if solution.layer is not None:
        broken += _about_the_run(problem, solution, established)
        if "M" in established:
            misses = _about_new_examples(problem, solution, established["M"].value["error_interval"])
            missed, intervals = misses, 2
    if problem.certified is False and solution.certified:
        broken.append("certified")
    holds = {check.code for check in certificate.checks if check.status.value == "holds"}
    if problem.separable is False and "A.P3" in holds:
        broken.append("A.P3")
    return Judged(len(established), intervals, broken, missed, solution.certified, solution.outcome.name)


def _about_the_run(problem: TrainingProblem, solution: Solution, established: dict[str, Any]) -> list[str]:
    """R: the bound holds for the recorded losses, and these are the judge's where it can compute them."""
    (x, y), broken = problem.train, []
    if not all(claim.assumes for claim in established.values()):
        broken.append("assumes")
    if "R" not in established:
        return broken
    losses = np.logaddexp(0, -y * phi(solution.layer.u, solution.layer.w, x)).mean()
    recorded, bound = np.array(solution.stats["curves"]["loss"]), established["R"].value["bound"]
    share = np.mean(y > 0)
    guessing = -share * np.log(share) - (1 - share) * np.log(1 - share)
    if abs(losses - recorded[-1]) > NEAR[solution.layer.dtype] * max(1, losses):
        broken.append("R: the last loss is not that of the model")
    if losses > bound or recorded[1:].mean() > bound * (1 + 1e-9):
        broken.append("R: above its bound")
    if bound >= min(guessing, recorded[0]):
        broken.append("R: says nothing")
    return broken


def _about_new_examples(problem: TrainingProblem, solution: Solution, error: list[float]) -> list[str]:
    """M: fresh examples outside of training; three standard errors of the judge's own means are allowed."""
    known = {sequence.tobytes() for sequence in problem.train[0]}
    new = np.array([sequence.tobytes() not in known for sequence in problem.fresh[0]])
    if not new.any():
        return ["M: there are no new examples"]
    x, y = problem.fresh[0][new], problem.fresh[1][new]
    values = phi(solution.layer.u, solution.layer.w, x)
    wrong = (np.where(values >= 0, 1.0, -1.0) != y).astype(float)
    spans = {
        "M": (wrong, error),
        "M.loss": (np.logaddexp(0, -y * values), solution.stats["tiers"]["measured"]["loss_interval"]),
    }
    missed = []
    for name, (sample, (low, high)) in spans.items():
        slack = 3 * sample.std() / len(sample) ** 0.5 + 1e-9
        if not low - slack <= sample.mean() <= high + slack:
            missed.append(name)
    return missed
