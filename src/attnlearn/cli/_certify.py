"""`attnlearn certify`: how far a candidate is from its reference, with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlearn.cli._long import Common, Long, finish

Fraction = Annotated[
    float | None, Parameter(help="Fraction of the inputs to speak of; all that the data allow when left out.")
]
Target = Annotated[float | None, Parameter(help="Largest error, over an output's norm, that is good enough.")]


def certify(
    candidate: Path,
    reference: Path,
    data: Path,
    /,
    *,
    fraction: Fraction = None,
    target: Target = None,
    common: Common | None = None,
) -> int:
    """Say how far a smaller, quantised or merged layer is from the one it stands for, with a certificate.

    Parameters
    ----------
    candidate
        A safetensors file with the smaller layer.
    reference
        A safetensors file with the layer that it stands for.
    data
        A folder of recorded activations, or an .npz file with x and y, that the candidate was not made from; only x is read.
    """
    import attnlearn

    common = common or Common()
    common.check()
    small, big = attnlearn.load(candidate), attnlearn.load(reference)
    solution = attnlearn.certify(
        small, big, data, fraction=fraction, target=target, seed=common.seed, raise_on_failure=False
    )
    options = Long(
        json=common.json, report=common.report, seed=common.seed, quiet=common.quiet, target=target
    )
    return finish(solution, None, options)
