"""`attnlearn train`: a multi-head attention classifier, and which guarantees hold for this very run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from attnlearn.cli._long import Long, finish, solved


def train(
    data: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    heads: int = 8,
    init: Literal["first-step", "zero", "gaussian"] = "first-step",
    optimizer: Literal["gd", "normalized", "polyak", "decaying", "adam"] = "gd",
    step: str = "auto",
    max_steps: int = 1000,
    options: Long | None = None,
) -> int:
    """Train a classifier on labelled sequences and certify the run.

    Parameters
    ----------
    data
        An .npz file with x (n, tokens, dim), y (n,) of +1 and -1, and optionally x_test, y_test.
    output
        Where to write the trained classifier (safetensors).
    heads
        Number of heads.
    init
        How the weights start.
    optimizer
        Full-batch gradient descent and its variations.
    step
        Step size: a number, auto (from the tangent kernel) or theory (the training theorem's limit).
    max_steps
        Number of steps.
    """
    from attnlearn.training._command import train_file

    options = options or Long()
    keywords = options.keywords(output)
    solution = solved(
        train_file,
        data,
        num_heads=heads,
        init=init,
        optimizer=optimizer,
        step=_step(step),
        max_steps=max_steps,
        **keywords,
    )
    return finish(solution, output, options)


def _step(text: str) -> float | str:
    if text in ("auto", "theory"):
        return text
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"step: must be a number, auto or theory, got {text!r}") from error
