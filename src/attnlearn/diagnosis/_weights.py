"""What the weights alone say: effective ranks, norms, balance, incoherence, conditioning of projections and sum.

Definitions: docs/mathematics.md, section 2. Cost: a few singular value decompositions of d x d matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from attnlearn._certificate import Check, Status
from attnlearn._layer import AttentionLayer
from attnlearn._summary import RANK_TOLERANCE, effective_ranks, summarize
from attnlearn.diagnosis import _calibration as calibration
from attnlearn.solve._heads import (
    BALANCE,
    CANCELLED,
    COHERENT,
    RANK_ONE,
    balance,
    cancellation,
    largest_cosine,
)

TEXTS = {
    "theta.effective_rank": "least effective rank of a Theta",
    "theta.balance": "largest over smallest norm of a Theta",
    "theta.incoherence": "largest cosine of two Thetas",
    "theta.independence": "smallest singular value of the unit (Theta, c)",
    "w.effective_rank": "least effective rank of a W",
    "w.condition": "largest condition number of a W on its own rank",
    "w.balance": "largest over smallest norm of a W",
    "w.independence": "smallest singular value of the unit W",
    "sum.condition": "condition number of the sum of W on its own rank",
    "sum.cancellation": "smallest singular value of the sum of W, on the rank of all W, over the largest norm of a W",
}
NEEDS_LAYER = "needs the layer"
Measured = dict[str, tuple[float, float, bool]]
"""For every check what was measured, what is wanted, and whether that is the most."""


def weight_checks(layer: AttentionLayer) -> list[Check]:
    """Every condition on the weights, measured, beside what is wanted."""
    heads = summarize(layer)
    stacked = np.concatenate([layer.theta, layer.query_bias[:, None, :]], axis=1)
    spectrum = np.linalg.svd(layer.w.sum(axis=0).astype(float), compute_uv=False)
    measured = {
        "theta.effective_rank": (min(h.theta_effective_rank for h in heads), RANK_ONE, False),
        "theta.balance": (balance(layer.theta), BALANCE, True),
        "theta.incoherence": (largest_cosine(layer.theta), COHERENT, True),
        "theta.independence": (independence(stacked), calibration.INDEPENDENCE, False),
        "w.effective_rank": (min(h.w_effective_rank for h in heads), RANK_ONE, False),
        **_of_projections(layer, spectrum),
    }
    return _compared(measured)


def placed_checks(layer: AttentionLayer, offsets: Sequence[float]) -> list[Check]:
    """The same of a layer with positions; of Theta(offset) the worst over these offsets."""
    thetas = [layer.scores_at(offset).theta.astype(float) for offset in offsets]
    spectrum = np.linalg.svd(layer.w.sum(axis=0).astype(float), compute_uv=False)
    ranks = [effective_ranks(_spectra(theta)).min() for theta in thetas]
    measured = {
        "theta.effective_rank": (float(min(ranks)), RANK_ONE, False),
        "theta.balance": (max(balance(theta) for theta in thetas), BALANCE, True),
        "theta.incoherence": (max(largest_cosine(theta) for theta in thetas), COHERENT, True),
        "theta.independence": (min(independence(theta) for theta in thetas), calibration.INDEPENDENCE, False),
        "w.effective_rank": (float(effective_ranks(_spectra(layer.w)).min()), RANK_ONE, False),
        **_of_projections(layer, spectrum),
    }
    return _compared(measured)


def _of_projections(layer: AttentionLayer, spectrum: np.ndarray) -> Measured:
    return {
        "w.condition": (max(_condition(a) for a in _spectra(layer.w)), calibration.CONDITION, True),
        "w.balance": (balance(layer.w), BALANCE, True),
        "w.independence": (independence(layer.w), calibration.INDEPENDENCE, False),
        "sum.condition": (_condition(spectrum), calibration.CONDITION, True),
        "sum.cancellation": (cancellation(layer.w), CANCELLED, False),
    }


def _compared(measured: Measured) -> list[Check]:
    return [
        Check.compare(code, value, wanted, text=TEXTS[code], at_most=at_most)
        for code, (value, wanted, at_most) in measured.items()
    ]


def unseen_checks(texts: dict[str, str]) -> list[Check]:
    """The same conditions when only data are given: nobody can measure them."""
    return [Check(code, Status.NOT_RUN, text=f"{text}: {NEEDS_LAYER}") for code, text in texts.items()]


def _spectra(matrices: Float[np.ndarray, "m d e"]) -> Float[np.ndarray, "m r"]:
    return np.linalg.svd(matrices.astype(float), compute_uv=False)


def _condition(singular: Float[np.ndarray, "r"]) -> float:
    """Largest over smallest singular value that is not rounding."""
    if singular[0] <= 0:
        return np.inf
    return float(singular[0] / singular[singular > RANK_TOLERANCE * singular[0]][-1])


def independence(matrices: Float[np.ndarray, "m d e"]) -> float:
    """Smallest singular value of the matrices, each of norm one; 0 where one of them is zero."""
    flat = matrices.reshape(len(matrices), -1).astype(float)
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    if len(flat) > flat.shape[1] or not np.all(norms > 0):
        return 0.0
    return float(np.linalg.svd(flat / norms, compute_uv=False)[-1])
