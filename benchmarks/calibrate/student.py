"""What a stochastic descent in many directions leaves: by its rate, by its memory, and from where Gauss-Newton finds the heads.

Layers of three heads of rank 3 on dependent tokens in 24 directions, students of eight heads of rank 6: small enough for a minute. The
course has the length that it has in 128 directions; fewer steps stand for layers that are harder to learn.
"""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.engine import Tools
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery.wide._many import from_student
from attnlearn.recovery.wide._prune import Pruner, WideFit
from attnlearn.recovery.wide._starts import Width
from attnlearn.recovery.wide._stochastic import Source
from benchmarks.calibrate import instead, show, span
from benchmarks.calibrate.signals import measured, posed

COVERS = ("STUDENT_RATE", "ADAM_MEMORY", "STUDENT_ROUGH")
SEEDS = range(3)
DIM, HEADS, RANK = 24, 3, 3
STEPS = (30, 60, 100, 150, 300)
"""Steps of courses that are cut short."""


def tokens(seed: int, num: int) -> np.ndarray:
    """Words of a list that lean on the word before them, every position with a mean of its own."""
    rng = np.random.default_rng(seed)
    words = rng.standard_normal((200, DIM))[rng.integers(200, size=(num, 8))]
    words[:, 1:] += 0.5 * words[:, :-1]
    return words + rng.standard_normal((8, DIM)) + 0.3 * rng.standard_normal((num, 8, DIM))


def taught(seed: int, **changed) -> tuple[WideFit, WideFit | None]:
    """A student's own fit and that of the heads it needs, with other constants."""
    with instead(WIDE_FIRST=DIM - 1, **changed):
        problem = posed(AttentionLayer.random(HEADS, DIM, rank=RANK, seed=seed), tokens(seed, 3_000))
        found = measured(problem, seed)
        return from_student(
            Pruner(problem, found, Tools(seed=seed)), Source(problem, found), Width(8, 2 * RANK)
        )


def errors(**changed) -> str:
    """Select errors of students with other constants; the heads are not looked for."""
    return span(
        [taught(seed, STUDENT_ROUGH=0.0, STUDENT_STEPS=600, **changed)[0].select_error for seed in SEEDS]
    )


def rates() -> None:
    """Select errors by the first rate."""
    tried = (calibration.STUDENT_RATE * factor for factor in (0.25, 0.5, 1, 2, 8))
    said = "; ".join(f"{errors(STUDENT_RATE=rate)} at {rate:.2g}" for rate in tried)
    show("STUDENT_RATE", f"select errors: {said}", "recovery")


def memories() -> None:
    """Select errors by the weights of the past."""
    tried = ((0.0, 0.99), (0.9, 0.9), calibration.ADAM_MEMORY, (0.9, 0.999), (0.99, 0.99))
    said = "; ".join(f"{errors(ADAM_MEMORY=memory)} with {memory[0]:g}, {memory[1]:g}" for memory in tried)
    show("ADAM_MEMORY", f"select errors: {said}", "recovery")


def rough() -> None:
    """Select errors of students from which the heads were found, and from which they were not."""
    led: dict[bool, list[float]] = {True: [], False: []}
    for steps in STEPS:
        for seed in SEEDS:
            wide, left = taught(seed, STUDENT_STEPS=steps, STUDENT_ROUGH=np.inf)
            led[left is not None and left.layer.num_heads == HEADS].append(wide.select_error)
    said = [
        f"{len(found)} students of error {span(found)} {'led' if good else 'did not lead'} to the heads"
        for good, found in led.items()
        if found
    ]
    show("STUDENT_ROUGH", "; ".join(said), "recovery")


def main() -> None:
    for each in (rates, memories, rough):
        each()


if __name__ == "__main__":
    main()
