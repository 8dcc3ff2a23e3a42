"""C3: how far the parameters of every layer as in C2 can be from the found ones.

‖delta‖ <= ‖F_hat - F‖/sigma_min(J), J the Jacobian in parameters scaled by each block's norm. The Jacobian is that of whole
Theta_i where the examples determine them at about the price of the found rank; else the claim speaks of layers of that rank.
With whole Theta_i the curvature is bounded too (`_curvature`): then no layer with these outputs lies between the bound and
the stated radius. Otherwise the claim says "to first order". A factor of three covers the rounding of the smallest singular
value and, to first order, curvature.
Full rank is local uniqueness; that the neighbourhood is the right one rests on C2, without which C3 is not established.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from attnlearn._canonical import Support
from attnlearn._certificate import Check, Claim, Status
from attnlearn._distance import BIAS_FLOOR
from attnlearn._layer import AttentionLayer
from attnlearn._types import Mask, Tokens
from attnlearn.scores import blurred, words
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._curvature import Ball, kantorovich
from attnlearn.solve._heads import score_sizes
from attnlearn.solve._telling import telling_order
from attnlearn.solve._unknowns import sequences_wanted
from attnlearn.solve._white import reduce_to_support, whitening
from attnlearn.solve.certification._conditioning import Conditioning, smallest_singular

LATE = "the time was over"
MISFIT = "the outputs are not explained"
"""With such an error no bound would be established, so none is looked for."""


class Bounds(NamedTuple):
    """Bounds on relative errors: of Theta and W for every head, of every bias; the rank they hold for; the ball, if proved."""

    heads: np.ndarray
    biases: np.ndarray
    conditioning: Conditioning
    rank: int | None
    ball: Ball | None
    directions: int
    dim: int

    @property
    def worst(self) -> float:
        """The largest of the bounds on Theta and W."""
        return float(self.heads.max())

    @property
    def worst_bias(self) -> float | None:
        """The largest bound on a bias, None where it says nothing."""
        worst = float(self.biases.max())
        return worst if worst <= calibration.PARAMETER_ERROR else None


def _telling_first(
    layer: AttentionLayer, fitted: Batch, support: Support | None
) -> tuple[AttentionLayer, Tokens, Batch]:
    """The layer and its tokens on the support, and the examples, those first that tell most: rho is taken over the same ones."""
    reduced, tokens = reduce_to_support(layer, fitted.x, support)
    order = telling_order(reduced.form, tokens, fitted.mask, reduced.visible)
    return (reduced, tokens, fitted) if order is None else (reduced, tokens[order], fitted.take(order))


def parameter_bounds(
    layer: AttentionLayer,
    fitted: Batch,
    *,
    error: float,
    scale: float,
    support: Support | None,
    rank: int | None,
    enough: float,
    established: float,
    on_step: Callable[..., None] | None,
    deadline: float | None = None,
) -> Bounds | None:
    """Bounds at full rank where that is affordable and says something, else at `rank`; None after the deadline.

    `error` is C1's or rounding's. A bound of `enough` or less changes no claim: it need not be sharp. One of `established` or less is
    enough for the claims to hold, and is within a factor of two of the sharpest.
    """
    reduced, tokens, fitted = _telling_first(layer, fitted, support)
    established = max(enough, established)
    looks = (True, False) if calibration.STANDS_OUT**2 * error <= established else (False,)
    directions, found = whitening(tokens, fitted.mask).directions, None
    errors = _Errors(layer, fitted, error * scale)
    for tangent, rough in product(_ranks(reduced, tokens, fitted.mask, rank), looks):
        if found is not None and _settled(found, tangent, rank):
            continue

        def bounds(conditioning: Conditioning, tangent: int | None = tangent) -> Bounds:
            return _bounds(reduced, conditioning, tangent, errors.total(conditioning.weights), directions)

        conditioning = smallest_singular(
            reduced, tokens, mask=fitted.mask, rank=tangent, rough=rough, good=_good(bounds, enough, established),
            delta=calibration.DELTA / 4,  # two ranks and two looks at most
            on_step=on_step, deadline=deadline,
            hurried=tangent != rank,  # the found rank says less, and may take far fewer products
        )  # fmt: skip
        if conditioning is None:
            return None
        now = bounds(conditioning)
        found = now if found is None or not found.worst <= now.worst else found
        if found.worst <= established:
            break
    assert found is not None, "there is at least one rank to try"
    return found


def _good(
    bounds: Callable[[Conditioning], Bounds], enough: float, established: float
) -> Callable[[Conditioning], bool]:
    """Whether what is known so far of the Jacobian is enough for the claims, and near what could be known."""

    def good(conditioning: Conditioning) -> bool:
        worst = bounds(conditioning).worst
        near = conditioning.guaranteed >= calibration.ENOUGH_SHARE * conditioning.eigenvalue
        return worst <= enough or (near and worst <= established)

    return good


class _Errors:
    """Errors of a layer on the first of some examples, computed when they are first needed.

    A fit may be closer to its own examples than to the truth: all together count at least with what C1 saw `elsewhere`.
    """

    def __init__(self, layer: AttentionLayer, fitted: Batch, elsewhere: float) -> None:
        self.layer, self.fitted, self.elsewhere, self.own = layer, fitted, elsewhere, np.zeros(0)

    def total(self, weights: np.ndarray) -> float:
        """Root of the weighted sum of squares over as many examples as there are weights."""
        if len(self.own) < len(weights):
            held = self.fitted.first(len(weights))
            off = (self.layer(held.x, held.mask) - held.visible).astype(np.float64)
            self.own = np.linalg.norm(off, axis=(1, 2))
        own = np.linalg.norm(weights * self.own[: len(weights)])
        return float(max(self.elsewhere * np.linalg.norm(weights), own))


def _settled(found: Bounds, tangent: int | None, rank: int | None) -> bool:
    """Whether a look at `tangent` is needless: bounds at another one do, or a hurried look at this one gave up."""
    if found.rank != tangent:
        return found.worst <= calibration.PARAMETER_ERROR
    return tangent != rank and not np.isfinite(found.worst)


def _ranks(layer: AttentionLayer, x: Tokens, mask: Mask | None, rank: int | None) -> Iterator[int | None]:
    """Ranks at which to take the Jacobian, the whole first where it takes about as many rows."""
    if rank is None or rank >= layer.dim:
        yield None
        return
    tokens = x.shape[1] if mask is None else mask.sum() / len(mask)
    whole, low = (
        sequences_wanted(layer.form.of_rank(tangent), layer.out_dim, tokens, layer.visible)
        for tangent in (None, rank)
    )
    if whole <= calibration.WHOLE_ROWS * low and whole <= len(x):
        yield None
    yield rank


def _bounds(
    layer: AttentionLayer, conditioning: Conditioning, rank: int | None, rho: float, directions: int
) -> Bounds:
    safe = calibration.PARAMETER_SAFETY * rho
    ball = kantorovich(safe, np.sqrt(conditioning.lower), conditioning.curvature, conditioning.reach)
    # The ball's inner radius in the coordinates, as a multiple of the linear bound rho / sigma.
    bent = 1.0 if ball is None else ball.inner * np.sqrt(conditioning.lower) / safe if safe else 1.0
    with np.errstate(invalid="ignore"):
        heads = safe * bent * np.maximum(conditioning.theta, conditioning.w)
        biases = safe * bent * bias_conditioning(layer, conditioning)
    return Bounds(heads, biases, conditioning, rank, ball, directions, layer.dim)


def parameter_claim(
    layer: AttentionLayer, bounds: Bounds | str, *, support: Support | None, counted: Claim
) -> tuple[Claim, list[Check]]:
    """The claim, which rests on C2 (`counted`) and assumes what C2 assumes, and its checks; `bounds` may be the reason why there are none."""
    if isinstance(bounds, str):
        return _unbounded(bounds)
    conditioning = bounds.conditioning
    checks = [
        Check.compare(
            "C3.tokens", bounds.directions, bounds.dim,
            unit="directions", text="directions in which tokens vary", at_most=False,
        ),
        Check.compare(
            "C3.equations", conditioning.equations / max(conditioning.unknowns, 1), 1.0,
            unit="equations per unknown", text="equations per unknown", at_most=False,
        ),
        Check.compare(
            "C3.bound", bounds.worst, calibration.PARAMETER_ERROR,
            unit="relative error", text="bound on the error of every Theta and W",
        ),
        Check.compare(
            "C3.count", int(counted.established), 1, unit="claims", text="C2, on which this rests", at_most=False
        ),
    ]  # fmt: skip
    bias = bounds.worst_bias
    value = {
        "bound": max(bounds.worst, bias or 0.0),
        "weights": bounds.worst,
        "heads": bounds.heads.tolist(),
        "biases": bias,
        "eigenvalue": conditioning.lower,
        "proved": bounds.ball is not None,
        "rank": bounds.rank,
    }
    established = all(check.status is Status.HOLDS for check in checks)
    text = _text(layer, bounds, support)
    return Claim.stated("C3", text, established, value, assumes=counted.assumes, scope=counted.scope), checks


def _unbounded(why: str) -> tuple[Claim, list[Check]]:
    """The claim where there is no bound."""
    codes = ("C3.tokens", "C3.equations", "C3.bound", "C3.count")
    checks = [Check(code, Status.NOT_RUN, text=why) for code in codes]
    return Claim("C3", f"the error of the parameters is not bounded: {why}", established=False), checks


def _text(layer: AttentionLayer, bounds: Bounds, support: Support | None) -> str:
    if not bounds.worst <= 1:  # larger than the matrices themselves, or not finite
        return "nothing bounds the error of some Theta or W by less than its own norm"
    bias = bounds.worst_bias
    name = "Theta" if layer.plain_scores else "Theta(offset), at every offset seen,"
    text = f"in every such layer each {name} and W is within {bounds.worst:.3g} of the found one, "
    text += "biases are not bounded" if bias is None else f"each bias within {bias:.3g}"
    notes = ["curvature included" if bounds.ball is not None else "to first order"]
    if support is not None:
        notes.append("on the span of the tokens")
    if not layer.plain_scores:
        notes.append(f"among layers with {words(layer.form)}")
        together = blurred(layer.form, layer.visible.offsets(bounds.conditioning.tokens))
        notes += [] if together is None else [together]
    if bounds.rank is not None:
        notes.append(f"among layers whose Theta have rank at most {bounds.rank}")
    sizes = score_sizes(layer, bounds.conditioning.tokens).theta
    if not sizes.all():
        unit = "the largest" if sizes.any() else "one with logits of variance one"
        notes.append(f"a Theta of zero: relative to {unit}")
    return f"{text} ({', '.join(notes)})"


def bias_conditioning(layer: AttentionLayer, conditioning: Conditioning) -> np.ndarray:
    """Errors of each head's query bias and of the output bias per unit of output error, in the norms of `distance`."""
    sizes = score_sizes(layer, conditioning.tokens)
    size = np.linalg.norm(sizes.theta) or conditioning.unit
    norms = np.maximum(sizes.biases, BIAS_FLOOR * size)
    output_norm = max(np.linalg.norm(layer.output_bias), BIAS_FLOOR * np.linalg.norm(layer.w))
    return np.append(conditioning.query_bias / norms, conditioning.output_bias / output_norm)
