"""Claims C1, C2 and C3 about a frozen layer, from examples that nothing has touched before.

C1  On at least a fraction 1 - q of the inputs the relative function error is at most eps, with confidence
    1 - delta: eps is the largest error among n independent examples and q = ln(1/delta)/n, because
    P(all n errors lie in the best 1 - q) = (1 - q)^n <= exp(-q n).
C2  The number of heads, at the resolution of the fit: the fit is exact to rounding, some query sees three keys
    (with two, a head equals its negative plus a constant one), the heads are apart and each is visible.
C3  The parameter error per head: ‖delta‖ <= ‖F_hat - F‖/sigma_min(J), J the Jacobian in parameters scaled by
    each block's norm. Full rank is local uniqueness; that the neighbourhood is the right one rests on C2, without
    which C3 is not established: two close heads fit like one, and the one is in no place where either was.

What cannot be established is reported as such; a claim whose checks were not run is not established.
Cost: one pass over the certify examples and one smallest-singular-value computation.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attnlearn._canonical import Support, on_support
from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._distance import BIAS_FLOOR
from attnlearn._layer import AttentionLayer
from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._jacobian import Conditioning, smallest_singular


@dataclass(frozen=True)
class Held:
    """Examples on one side of the split.

    >>> Held(np.zeros((4, 3, 2)), np.zeros((4, 3, 2))).num
    4
    """

    x: Tokens
    y: Outputs
    mask: Mask | None = None
    groups: np.ndarray | None = None

    @property
    def num(self) -> int:
        """Number of sequences."""
        return len(self.x)

    def fingerprint(self) -> str:
        """SHA-256 of the examples: what was looked at, on record."""
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.mask):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def certify(
    layer: AttentionLayer,
    held: Held,
    fitted: Held,
    *,
    scale: float,
    support: Support | None = None,
    target: float | None = None,
    rank: int | None = None,
    delta: float = calibration.DELTA,
    attempts: int = 1,
    on_step: Callable[..., None] | None = None,
) -> Certificate:
    """Judge `layer` on the certify examples `held`; the Jacobian is taken on `fitted`, any examples with their outputs.

    How well examples determine a layer is no statistical claim: those of the fit may show it, and the error there is
    measured like the one on `held`. With `target` only C1 is asked for: the others, which need an exact fit, are judged
    when there is one.
    `scale` is the root mean square of an example's output, fixed on the fit side. `attempts` counts how many
    answers were judged on these examples, this one included: the confidence is shared among them. `on_step` is told how
    far the Jacobian's spectrum came, which takes the time.
    """
    layer = layer.astype(held.x.dtype)
    errors = unit_errors(layer, held, scale)
    eps = float(errors.max())
    floor = rounding_floor(layer, held, scale)
    c1, function_checks = _function_claim(eps, len(errors), target, delta / attempts)
    if target is not None and c1.established and eps > exactness_limit(floor, layer.dtype):
        return _function_only(c1, function_checks)
    c3, parameter_checks, bound = _parameter_claim(layer, eps, floor, scale, fitted, support, rank, on_step)
    c2, count_checks = _count_claim(layer, eps, floor, bound, held, scale, support)
    counted = Check.compare(
        "C3.count", int(c2.established), 1, unit="claims", text="C2, on which this rests", at_most=False
    )
    c3 = dataclasses.replace(c3, established=c3.established and c2.established)
    return Certificate((c1, c2, c3), (*function_checks, *count_checks, *parameter_checks, counted))


def unit_errors(layer: AttentionLayer, held: Held, scale: float) -> np.ndarray:
    """Relative error of every sequence, or of every group's worst sequence.

    An example's error is divided by the smaller of its own norm and `scale`, so that it bounds the error
    relative to either; examples below a thousandth of `scale` are measured against that.
    """
    error = np.linalg.norm((layer(held.x, held.mask) - _visible(held)).astype(np.float64), axis=(1, 2))
    size = np.linalg.norm(_visible(held).astype(np.float64), axis=(1, 2))
    relative = error / np.clip(size, calibration.SMALL_EXAMPLE * scale, scale)
    if held.groups is None:
        return relative
    _, members = np.unique(held.groups, return_inverse=True)
    worst = np.zeros(members.max() + 1)
    np.maximum.at(worst, members, relative)
    return worst


def total_error(layer: AttentionLayer, held: Held, number: int) -> float:
    """Root of the summed squared errors over the first examples."""
    x, y, mask = (None if a is None else a[:number] for a in (held.x, _visible(held), held.mask))
    return float(np.linalg.norm((layer(x, mask) - y).astype(np.float64)))


def example_scale(held: Held) -> float:
    """Root mean square over examples of the norm of an example's output."""
    squares = np.sum(_visible(held).astype(np.float64) ** 2, axis=(1, 2))
    return float(max(np.sqrt(squares.mean()), np.finfo(np.float64).tiny))


def rounding_floor(layer: AttentionLayer, held: Held, scale: float) -> float:
    """How exact the outputs of this layer can be in the data's dtype, as a relative error.

    The float32 forward is compared with the float64 one; rounding errors are proportional to the machine
    epsilon, so the float64 floor follows from it.
    """
    few = slice(calibration.FLOOR_EXAMPLES)
    sample = Held(held.x[few], held.y[few], None if held.mask is None else held.mask[few])
    single, double = (
        layer.astype(dtype)(sample.x.astype(dtype), sample.mask).astype(np.float64)
        for dtype in (np.float32, np.float64)
    )
    size = np.linalg.norm(double, axis=(1, 2))
    relative = np.linalg.norm(single - double, axis=(1, 2)) / np.clip(
        size, calibration.SMALL_EXAMPLE * scale, scale
    )
    ratio = np.finfo(layer.dtype).eps / np.finfo(np.float32).eps
    return float(max(relative.max() * ratio, np.finfo(layer.dtype).eps))


def _visible(held: Held) -> Outputs:
    return held.y if held.mask is None else held.y * held.mask[..., None]


def _function_claim(eps: float, units: int, target: float | None, delta: float) -> tuple[Claim, list[Check]]:
    uncovered = float(np.log(1 / delta) / units)
    limit = calibration.FUNCTION_ERROR if target is None else target
    checks = [
        Check.compare(
            "C1.error", eps, limit, unit="relative error", text="largest error on certify examples"
        ),
        Check.compare(
            "C1.coverage",
            uncovered,
            calibration.UNCOVERED,
            unit="fraction of inputs",
            text="inputs about which nothing is said",
        ),
    ]
    claim = Claim(
        "C1",
        f"relative function error <= {eps:.3g} on at least {100 * max(0.0, 1 - uncovered):.2f} % of inputs",
        all(check.status is Status.HOLDS for check in checks),
        {"error": eps, "fraction": max(0.0, 1 - uncovered), "examples": units},
        1 - delta,
    )
    return claim, checks


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


def exactness_limit(floor: float, dtype: np.dtype) -> float:
    """The largest certify error that still counts as exact to rounding."""
    limit = max(calibration.ROUNDING_SLACK * floor, calibration.EXACT.get(np.dtype(dtype).name, 0.0))
    return min(limit, calibration.EXACT_MOST)


def _count_claim(
    layer: AttentionLayer,
    eps: float,
    floor: float,
    bound: float,
    held: Held,
    scale: float,
    support: Support | None,
) -> tuple[Claim, list[Check]]:
    limit = exactness_limit(floor, layer.dtype)
    checks = [
        Check.compare("C2.exact", eps, limit, unit="relative error", text="fit exact to rounding: error"),
        Check.compare(
            "C2.keys", _most_keys(held), 3, unit="keys", text="most keys that a query sees", at_most=False
        ),
        Check.compare(
            "C2.apart",
            head_separation(layer if support is None else on_support(layer, support)),
            max(calibration.APART * bound, calibration.APART_LEAST),
            unit="relative distance",
            text="closest two heads",
            at_most=False,
        ),
        Check.compare(
            "C2.visible",
            float(head_visibility(layer, held, scale).min()),
            calibration.VISIBLE * max(eps, floor),
            unit="relative output",
            text="least visible head",
            at_most=False,
        ),
    ]
    claim = Claim(
        "C2",
        f"{layer.num_heads} heads (a further head would change the outputs by less than {eps:.2g})",
        all(check.status is Status.HOLDS for check in checks),
        layer.num_heads,
    )
    return claim, checks


def _most_keys(held: Held) -> int:
    return held.x.shape[1] if held.mask is None else int(held.mask.sum(axis=1).max())


def head_separation(layer: AttentionLayer) -> float:
    """Smallest ‖(Theta, c)_i - (Theta, c)_j‖ over the larger norm of the two; 1 for a single head.

    >>> head_separation(AttentionLayer(np.ones((2, 3, 3)), np.ones((2, 3, 3))))
    0.0
    """
    stacked = np.concatenate([layer.theta, layer.query_bias[:, None, :]], axis=1)
    sizes = np.linalg.norm(stacked, axis=(1, 2))
    smallest = 1.0
    for i in range(layer.num_heads):
        for j in range(i):
            larger = max(sizes[i], sizes[j], np.finfo(float).tiny)
            smallest = min(smallest, float(np.linalg.norm(stacked[i] - stacked[j]) / larger))
    return smallest


def head_visibility(layer: AttentionLayer, held: Held, scale: float) -> Float[np.ndarray, "m"]:
    """Relative output of each head alone, on a sample of the examples."""
    x, mask = (None if a is None else a[: calibration.FLOOR_EXAMPLES] for a in (held.x, held.mask))
    sizes = []
    for head in range(layer.num_heads):
        alone = AttentionLayer(
            layer.theta[head : head + 1],
            layer.w[head : head + 1],
            layer.query_bias[head : head + 1],
            causal=layer.causal,
        )
        outputs = alone(x, mask).astype(np.float64)
        sizes.append(np.sqrt(np.mean(np.sum(outputs**2, axis=(1, 2)))) / scale)
    return np.array(sizes)


def _parameter_claim(
    layer: AttentionLayer,
    eps: float,
    floor: float,
    scale: float,
    fitted: Held,
    support: Support | None,
    rank: int | None,
    on_step: Callable[..., None] | None,
) -> tuple[Claim, list[Check], float]:
    reduced, tokens = reduce_to_support(layer, fitted.x, support)
    conditioning = smallest_singular(reduced, tokens, mask=fitted.mask, rank=rank, on_step=on_step)
    # A fit may be closer to its own examples than to the truth: at least what C1 saw elsewhere, and never below rounding.
    elsewhere = max(eps, floor) * scale * np.sqrt(conditioning.examples)
    distance = calibration.PARAMETER_SAFETY * max(
        elsewhere, total_error(layer, fitted, conditioning.examples)
    )
    weights = distance * np.maximum(conditioning.theta, conditioning.w)
    biases = distance * bias_conditioning(reduced, conditioning)
    worst = float(weights.max())
    bound = max(worst, float(biases.max()))
    checks = [
        Check.compare(
            "C3.tokens",
            token_rank(tokens, fitted.mask),
            reduced.dim,
            unit="directions",
            text="directions in which tokens vary",
            at_most=False,
        ),
        Check.compare(
            "C3.equations",
            conditioning.equations / max(conditioning.unknowns, 1),
            1.0,
            unit="equations per unknown",
            text="equations per unknown",
            at_most=False,
        ),
        Check.compare(
            "C3.bound",
            worst,
            calibration.PARAMETER_ERROR,
            unit="relative error",
            text="bound on the error of every Theta and W",
        ),
    ]
    where = "" if support is None else " (on the span of the tokens)"
    where += _of_zero(layer)
    claim = Claim(
        "C3",
        _parameter_text(worst, float(biases.max())) + where,
        all(check.status is Status.HOLDS for check in checks),
        {
            "bound": bound,
            "heads": weights.tolist(),
            "biases": biases.tolist(),
            "eigenvalue": conditioning.lower,
        },
    )
    return claim, checks, worst


def _of_zero(layer: AttentionLayer) -> str:
    """What the error of a Theta that is zero is relative to."""
    if layer.theta.any(axis=(1, 2)).all():
        return ""
    unit = "the largest" if layer.theta.any() else "one with logits of variance one"
    return f" (a Theta of zero: relative to {unit})"


def _parameter_text(weights: float, biases: float) -> str:
    if not np.isfinite(weights):
        return "nothing bounds the error of some Theta or W"
    bound = f"to {biases:.3g}" if np.isfinite(biases) else "to no bound"
    return f"every Theta and W is right to {weights:.3g}, every bias {bound}"


def bias_conditioning(layer: AttentionLayer, conditioning: Conditioning) -> np.ndarray:
    """Errors of each head's query bias and of the output bias per unit of output error, in the norms of `distance`."""
    size = np.linalg.norm(layer.theta) or conditioning.unit
    norms = np.maximum(np.linalg.norm(layer.query_bias, axis=1), BIAS_FLOOR * size)
    output_norm = max(np.linalg.norm(layer.output_bias), BIAS_FLOOR * np.linalg.norm(layer.w))
    return np.append(conditioning.query_bias / norms, conditioning.output_bias / output_norm)


def token_rank(x: Tokens, mask: Mask | None) -> int:
    """Directions in which the tokens vary: eigenvalues of their covariance above rounding."""
    tokens = (x.reshape(-1, x.shape[2]) if mask is None else x[mask]).astype(np.float64)
    values = np.linalg.eigvalsh(np.atleast_2d(np.cov(tokens, rowvar=False)))
    return int(np.sum(values > calibration.TOKEN_RANK[x.dtype.name] * values[-1]))


def reduce_to_support(
    layer: AttentionLayer, x: Tokens, support: Support | None
) -> tuple[AttentionLayer, Tokens]:
    """The layer and tokens in an orthonormal basis of the directions in which tokens vary."""
    if support is None:
        return layer, x
    basis, _ = np.linalg.qr(np.asarray(support.basis, np.float64))
    basis = basis.astype(layer.dtype)
    inside = on_support(layer, support)
    reduced = AttentionLayer(
        basis.T @ inside.theta @ basis,
        basis.T @ inside.w,
        inside.query_bias @ basis,
        inside.output_bias,
        causal=layer.causal,
    )
    return reduced, x @ basis
