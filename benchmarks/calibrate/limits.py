"""What is checked before and after a run: examples that a certificate needs, and sizes of numbers that can be computed with."""

from __future__ import annotations

import warnings

import numpy as np

from attnlearn import AttentionLayer, distance, recover
from attnlearn.recovery import _calibration as calibration
from attnlearn.solve._sequences import evidence_wanted
from attnlearn.solve._split import Split
from benchmarks.calibrate import instead, show
from benchmarks.calibrate.signals import normal

COVERS = ("CERTIFIED_LEAST", "RANGE")


def certified() -> None:
    """The fewest examples whose certify side can establish claim C1."""
    least = next(num for num in range(20, 500) if len(Split.make(num).certify) >= evidence_wanted())
    side = len(Split.make(calibration.CERTIFIED_LEAST).certify)
    show(
        "CERTIFIED_LEAST",
        f"derived: C1 needs {evidence_wanted()} certify examples, there from {least} on; this many have {side}",
        "recovery",
    )


def error(dtype: str, tokens: float, outputs: float) -> float:
    """The largest error of Theta, W or a bias where tokens and outputs are so large, without the check of their size; inf: none."""
    layer, x = AttentionLayer.random(2, 8, bias=True, seed=0), normal(0, 1_500, 4, 8)
    truth = AttentionLayer(
        layer.theta / tokens**2,
        layer.w * outputs / tokens,
        layer.query_bias / tokens,
        layer.output_bias * outputs,
    )
    given = (tokens * x).astype(dtype), (outputs * layer(x)).astype(dtype)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            np.errstate(all="ignore"),
            instead(RANGE={"float32": np.inf, "float64": np.inf}),
        ):
            found = recover(*given, raise_on_failure=False).layer
            return np.inf if found is None else float(distance(found.astype(np.float64), truth).max)
    except Exception:  # whatever breaks first
        return np.inf


def sizes() -> None:
    """Errors by the size of tokens and of outputs, inside the range and beyond it."""
    for dtype, inside, beyond in (
        ("float32", 1e8, (1e10, 1e14, 1e18)),
        ("float64", 1e14, (1e18, 1e22, 1e30)),
    ):
        for label, factors in (("inside", (inside,)), ("beyond", beyond)):
            said = []
            for factor in factors:
                cases = (factor, 1.0), (1 / factor, 1.0), (1.0, factor), (1.0, 1 / factor)
                off = ", ".join(f"{error(dtype, *case):.1g}" for case in cases)
                said.append(f"{off} at {factor:.0e}")
            show(
                "RANGE",
                f"{label}, errors of large x, small x, large y, small y: {'; '.join(said)}",
                "recovery",
                dtype,
            )


def main() -> None:
    for each in (certified, sizes):
        each()


if __name__ == "__main__":
    main()
