"""Certify: claims C1, C2 and C3 about a frozen layer.

What cannot be established is reported as such; a claim whose checks were not run is not established. Each claim says what it
assumes. Cost: one pass over the certify examples, one smallest-singular-value computation, general position of the tokens
and a second opinion (`_position`, `_rivals`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn._canonical import Support, on_support
from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, exactness_limit, rounding_floor
from attnlearn.solve._heads import head_separation
from attnlearn.solve.certification._count import UNSEEN, count_claim, least_apart, look_at_tokens
from attnlearn.solve.certification._function import function_claim
from attnlearn.solve.certification._parameters import LATE, MISFIT, parameter_bounds, parameter_claim


def certify(
    layer: AttentionLayer,
    held: Batch,
    fitted: Batch,
    *,
    scale: float,
    support: Support | None = None,
    target: float | None = None,
    rank: int | None = None,
    delta: float = calibration.DELTA,
    unit: str = "input",
    where: str = "",
    designed: bool = False,
    on_step: Callable[..., None] | None = None,
    deadline: float | None = None,
    precision: np.dtype | None = None,
) -> Certificate:
    """Judge `layer` on the certify examples `held`; the Jacobian is taken on `fitted`, any examples with their outputs.

    How well examples determine a layer is no statistical claim: those of the fit may show it, and the error there is
    measured like the one on `held`. With `target` only C1 is asked for: the others, which need an exact fit, are judged
    when there is one.
    `scale` is the root mean square of an example's output, fixed on the fit side. `unit` and `where` name what C1 counts and
    the inputs it speaks of. `designed` says that the tokens were drawn by us, independently and from a density. `on_step` is
    told how far the Jacobian's spectrum came, which takes the time. After `deadline`, a value of `time.monotonic()`, only C1 is
    judged: what was not computed is not run, and no claim that rests on it is established. `precision` is that of the outputs, if
    it is less than that of their dtype.
    """
    layer = layer.astype(held.x.dtype)
    precision = layer.dtype if precision is None else precision
    floor = rounding_floor(layer, held, scale, precision)
    small = calibration.SMALL_ERROR if target is None else target
    c1, checks = function_claim(layer, held, scale, limit=small, delta=delta, unit=unit, where=where, drawn=designed)  # fmt: skip
    eps = c1.value["error"]
    limit = exactness_limit(floor, precision)
    exact = eps <= limit
    if target is not None and c1.established and not exact:
        return _function_only(c1, checks)
    bounds = MISFIT if eps > max(small, limit) else parameter_bounds(
        layer, fitted, error=max(eps, floor), scale=scale, support=support, rank=rank,
        enough=least_apart(limit) / calibration.STANDS_OUT, established=_established(layer, support),
        on_step=on_step, deadline=deadline,
    ) or LATE  # fmt: skip
    seen = look_at_tokens(layer, held, fitted, designed, deadline) if exact else UNSEEN
    c2, count_checks = count_claim(
        layer, held, fitted, eps=eps, floor=floor, bound=bounds if isinstance(bounds, str) else bounds.worst, scale=scale,
        fraction=1 - c1.value["fraction"], support=support, seen=seen, where=where, precision=precision,
    )  # fmt: skip
    c3, parameter_checks = parameter_claim(layer, bounds, support=support, counted=c2)
    return Certificate((c1, c2, c3), (*checks, *count_checks, *parameter_checks), seen.rival)


def _established(layer: AttentionLayer, support: Support | None) -> float:
    """The largest bound at which C3 says enough and C2 still tells the heads apart."""
    apart = head_separation(layer if support is None else on_support(layer, support))
    return min(calibration.PARAMETER_ERROR, apart / calibration.STANDS_OUT)


def _function_only(c1: Claim, checks: list[Check]) -> Certificate:
    """The certificate of a fit that is as good as was asked for, and not exact."""
    others = (
        Claim("C2", "the number of heads was not asked for", established=False),
        Claim("C3", "the parameters were not asked for", established=False),
    )
    unasked = [
        Check("C2.exact", Status.NOT_RUN, text="fit exact to rounding: not asked for"),
        Check("C3.bound", Status.NOT_RUN, text="bound on the error of every Theta and W: not asked for"),
    ]
    return Certificate((c1, *others), (*checks, *unasked))
