"""Claims C1, C2 and C3 about a layer whose outputs carry errors, at the accuracy that the data have.

A fit comes here when both sides share its error and the test of fit explains nothing of it. Each claim says what it assumes of the
errors (`_function`, `_count`, `_parameters`), and is established only at an accuracy of at most `accuracy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._canonical import Support
from attnlearn._certificate import Certificate
from attnlearn._layer import AttentionLayer
from attnlearn.solve._batch import Batch
from attnlearn.solve._deadline import passed
from attnlearn.solve._white import reduce_to_support
from attnlearn.solve.noise._count import count_beside_errors
from attnlearn.solve.noise._function import function_beside_errors
from attnlearn.solve.noise._halves import fit_halves
from attnlearn.solve.noise._parameters import parameters_beside_errors
from attnlearn.solve.noise._setting import Setting, part_norms
from attnlearn.solve.noise._spread import Spread, spread


@dataclass(frozen=True)
class NoisyCertificate:
    """The certificate, and the figures that explain it: standard errors by head and the influence of the worst sequences."""

    certificate: Certificate
    stats: dict[str, Any]


def certify_noisy(
    layer: AttentionLayer,
    held: Batch,
    used: Batch,
    *,
    scale: float,
    accuracy: float,
    support: Support | None = None,
    rank: int | None = None,
    unit: str = "input",
    where: str = "",
    on_step: Callable[..., None] | None = None,
    deadline: float | None = None,
) -> NoisyCertificate:
    """Judge a layer that was fitted to all of `used` on the certify examples `held`."""
    layer = layer.astype(held.x.dtype)
    reduced, tokens = reduce_to_support(layer, held.x, support)
    held_inside = Batch(tokens, held.y, held.mask, held.groups, held.copied, held.hidden)
    used_inside = Batch(reduce_to_support(layer, used.x, support)[1], used.y, used.mask, used.groups)
    at = Setting(reduced, held_inside, used_inside, scale, accuracy, rank, unit, where)
    found = spread(reduced, used_inside, rank=rank, on_step=on_step)
    halves = (
        None
        if at.scarce or passed(deadline)
        else fit_halves(reduced, used_inside, rank=rank, deadline=deadline)
    )
    c1, checks = function_beside_errors(at, found, halves)
    c2, count_checks, seen = count_beside_errors(at, c1, found.carried_by, deadline)
    c3, parameter_checks = parameters_beside_errors(at, found, halves, c2, support)
    certificate = Certificate((c1, c2, c3), (*checks, *count_checks, *parameter_checks), seen.rival)
    return NoisyCertificate(certificate, _figures(at, found))


def _figures(at: Setting, found: Spread) -> dict[str, Any]:
    """Standard errors by head and the influence of the worst sequences, for the result."""
    norms = part_norms(at.layer)
    rest = at.residual
    real = rest.size if at.held.mask is None else int(at.held.mask.sum()) * at.layer.out_dim
    errors: dict[str, Any] = {
        part: (found.typical(part) / norms[part]).tolist() for part in ("theta", "w", "query_bias")
    }
    return {
        "standard_errors": errors
        | {
            "output_bias": float(found.typical("output_bias")[0] / norms["output_bias"][0]),
            "noise": float(np.sqrt(np.sum(np.square(rest, dtype=np.float64)) / real)),
            "examples": found.examples,
        },
        "influence": {
            "carried_by": found.carried_by,
            "worst": [{"sequence": place, "share": share} for place, share in found.worst()],
        },
    }
