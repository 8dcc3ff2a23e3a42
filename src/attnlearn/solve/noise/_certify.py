"""Claims C1, C2 and C3 about a layer whose outputs carry errors, at the accuracy that the data have.

A fit comes here when both sides share its error and the test of fit explains nothing of it. The claims are as in `certification`, but

C1  is about the outputs as recorded where these are exact enough. Otherwise it is about the layer behind the errors, by the spread.
C2  each head is needed (`_needed`), and a further head would have been seen if it is as visible as those planted (`_planted`).
C3  is the spread of each head (`_spread`), plus the bias that two halves show (`_halves`), at `CONFIDENCE`.

Every claim says what it assumes of the errors. Each is established only at an accuracy of at most `accuracy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnlearn._canonical import Support
from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._distance import BIAS_FLOOR
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, clipped_norms, largest_of_groups
from attnlearn.solve._deadline import passed
from attnlearn.solve._heads import drop_effects, head_separation, visibility
from attnlearn.solve._unknowns import layer_unknowns
from attnlearn.solve._white import reduce_to_support, whitening
from attnlearn.solve.certification import function_claim
from attnlearn.solve.certification._count import Seen, look_at_tokens, token_checks
from attnlearn.solve.noise._halves import Halves, fit_halves
from attnlearn.solve.noise._needed import heads_needed, split_heads
from attnlearn.solve.noise._planted import PLANTED, detection_limits
from attnlearn.solve.noise._spread import Spread, spread, tail
from attnlearn.solve.noise._test_of_fit import some_sequences

CONFIDENCE = 1 - 1e-3
"""Confidence of claims that rest on the spread: it is a normal approximation, which says little about rarer events."""
CARRIED_BY = 30.0
"""Sequences of equal influence below which the normal approximation is not trusted: three foreign sequences among 8,000 leave about 3, honest
noise 250 and more of 1,500."""
HALF = 0.5
"""The share of the inputs on which visibility is measured."""
ERRORS = "the errors of the outputs have mean zero given the inputs and are independent between {unit}s"
LIKE_PLANTED = "a further head is like those planted and two close heads would be found from one split in two"
LATE = "the time was over"


@dataclass(frozen=True)
class NoisyCertificate:
    """The certificate, and the figures that explain it: standard errors by head, influence, and what was measured on the way."""

    certificate: Certificate
    stats: dict[str, Any]


class Setting(NamedTuple):
    """What every claim needs: the layer on the directions in which tokens vary, both sides, and the words."""

    layer: AttentionLayer
    held: Batch
    used: Batch
    scale: float
    accuracy: float
    rank: int | None
    unit: str
    where: str

    @property
    def errors(self) -> str:
        """What is assumed of the errors."""
        return ERRORS.format(unit=self.unit)


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
        if _scarce(at) or passed(deadline)
        else fit_halves(reduced, used_inside, rank=rank, deadline=deadline)
    )
    c1, checks = _function(at, found, halves)
    c2, count_checks, seen = _count(at, c1, deadline)
    c3, parameter_checks = _parameters(at, found, halves, c2, support)
    certificate = Certificate((c1, c2, c3), (*checks, *count_checks, *parameter_checks), seen.rival)
    return NoisyCertificate(certificate, _figures(at, found))


def _scarce(at: Setting) -> bool:
    """Whether a half of the sequences has less than two equations for every unknown."""
    rows = at.used.x.shape[0] * at.used.x.shape[1] if at.used.mask is None else int(at.used.mask.sum())
    return rows * at.layer.out_dim < calibration.EQUATIONS_PER_UNKNOWN * layer_unknowns(at.layer, at.rank)


# --- C1 ------------------------------------------------------------------------------------------------------


def _function(at: Setting, found: Spread, halves: Halves | None) -> tuple[Claim, list[Check]]:
    """C1 about the outputs as recorded; where they are not exact enough, about the layer behind the errors."""
    claim, checks = function_claim(
        at.layer, at.held, at.scale, limit=at.accuracy, unit=at.unit, where=at.where, name="error of the recorded outputs"
    )  # fmt: skip
    recorded = claim.value["error"]
    if claim.established or halves is None or recorded <= at.accuracy:
        return claim, checks
    # An input exceeds its own bound with chance exp(-t); more than `rest` of all inputs do with chance 1 - CONFIDENCE at most.
    rest = 1 - CONFIDENCE
    errors = _behind(at, found, halves, np.log(1 / rest**2))
    behind = float(errors.max())
    fraction = claim.value["fraction"] - rest
    checks = [
        Check.compare(
            "C1.error", behind, at.accuracy, unit="relative error",
            text=f"error against the layer behind the errors (the recorded outputs differ by {recorded:.2g}):",
        ),
        *checks[1:],
    ]  # fmt: skip
    text = (
        f"function error against the layer behind the errors <= {behind:.3g} of an output's norm (of {claim.value['floor']:.3g} where "
        f"the norm is smaller) on at least {100 * fraction:.2f} % of {at.unit}s{at.where}"
    )
    stated = Claim.stated(
        "C1", text, all(check.status is Status.HOLDS for check in checks),
        claim.value | {"error": behind, "fraction": fraction, "recorded": recorded, "against": "layer"}, CONFIDENCE,
        assumes=(*claim.assumes, at.errors), scope=claim.scope | {"fraction": fraction},
    )  # fmt: skip
    return stated, checks


def _behind(at: Setting, found: Spread, halves: Halves, t: float) -> np.ndarray:
    """For every unit a bound on the error of the function, by the draws of the spread and the bias of the halves."""
    layer, x, mask = at.layer.astype(np.float64), at.held.x.astype(np.float64), at.held.mask
    ours = layer(x, mask)
    moved = np.stack(
        [
            layer.replace(**{name: getattr(layer, name) + part for name, part in draw._asdict().items()})(x, mask) - ours
            for draw in found.draws
        ],
        axis=1,
    )  # fmt: skip
    moved = moved.reshape(len(x), len(found.draws), -1)
    bias = (halves.first(x, mask) + halves.second(x, mask)) / 2 - ours
    bound = tail(moved @ np.swapaxes(moved, 1, 2), t) + np.linalg.norm(bias, axis=(1, 2))
    relative = bound / clipped_norms(ours, at.scale)
    return relative if at.held.groups is None else largest_of_groups(relative, at.held.groups)


# --- C2 ------------------------------------------------------------------------------------------------------


def _count(at: Setting, c1: Claim, deadline: float | None) -> tuple[Claim, list[Check], Seen]:
    layer, held = at.layer, at.held
    if passed(deadline):
        late = [
            Check(code, Status.NOT_RUN, text=LATE)
            for code in ("C2.needed", "C2.further", "C2.apart", "C2.rivals")
        ]
        return (
            Claim("C2", f"the number of heads was not looked at: {LATE}", False),
            late,
            Seen(None, None, LATE),
        )
    units = c1.value["examples"]
    needed = heads_needed(layer, at.used, held, rank=at.rank, deadline=deadline)
    split = split_heads(layer, at.used, held, deadline=deadline)
    some = at.used.take(np.arange(some_sequences(at.used.num, at.used.x.shape[1])))
    limits = detection_limits(layer, some, at.scale, judged=units, rank=at.rank)
    effects = drop_effects(layer, some, held.first(calibration.SAMPLE), at.scale)
    seen_alone = visibility(effects, HALF)
    seen = look_at_tokens(
        layer, held, at.used, False, deadline, tolerance=_indistinct(at, float(seen_alone.min()))
    )
    checks = [
        Check.compare(
            "C2.evidence", 1 - c1.value["fraction"], calibration.UNCOVERED, unit="fraction of inputs", text="inputs that were not looked at"
        ),
        Check.compare(
            "C2.needed", needed.doubtful, calibration.DELTA, unit="probability",
            text="chance that a fit without the least needed head loses so often:",
        ),
        Check.compare(
            "C2.split", split, calibration.DELTA, unit="probability", at_most=False,
            text="chance of what a fit with a head split in two wins:",
        ),
        Check.compare(
            "C2.further", limits.visible, at.accuracy, unit="relative output", text="least visible head that was seen when planted"
        ),
        Check.compare(
            "C2.visible", float(seen_alone.min()), limits.visible, unit="relative output", text="least visible head", at_most=False
        ),
        Check.compare(
            "C2.apart", head_separation(layer), limits.apart, unit="relative distance", text="closest two heads", at_most=False
        ),
        *token_checks(held, seen),
    ]  # fmt: skip
    scope = {"apart": limits.apart, "visible": limits.visible, "fraction": HALF}
    text = (
        f"{layer.num_heads} head{'s' * (layer.num_heads > 1)}: no fit with one less that was found does as well (sign test for each head, "
        f"{needed.refitted} with all others refitted), and a further head that is at least {limits.visible:.2g} visible on half of the inputs and "
        f"{limits.apart:.2g} apart from the others would probably have been seen ({PLANTED} of {PLANTED} planted ones were: at least 86 % with "
        f"confidence 95 %)"
    )
    assumes = (*seen.assumes, at.errors, LIKE_PLANTED)
    established = all(check.status is Status.HOLDS for check in checks)
    return Claim.stated("C2", text, established, layer.num_heads, assumes=assumes, scope=scope), checks, seen


def _indistinct(at: Setting, visible: float) -> float:
    """The share of the least visible head's outputs by which another layer may differ without a difference that examples show."""
    rest = at.layer(at.held.x, at.held.mask) - at.held.visible
    error = float(np.sqrt(np.mean(np.sum(np.square(rest, dtype=np.float64), axis=(1, 2))))) / at.scale
    share = calibration.TRIES * error / np.sqrt(at.used.num)
    return float(min(share / max(visible, np.finfo(float).tiny), calibration.ENOUGH_SHARE))


# --- C3 ------------------------------------------------------------------------------------------------------


def _parameters(
    at: Setting, found: Spread, halves: Halves | None, counted: Claim, support: Support | None
) -> tuple[Claim, list[Check]]:
    if halves is None:
        missing = Check("C3.halves", Status.NOT_RUN, text="fits of two halves: too few equations for them")
        return Claim(
            "C3", "the error of the parameters is not bounded: too few examples for two halves", False
        ), [missing]
    bounds, surprise = _bounds(at, found, halves)
    heads = np.maximum(bounds["theta"], bounds["w"])
    worst, bias = float(heads.max()), float(max(bounds["query_bias"].max(), bounds["output_bias"].max()))
    bias = bias if bias <= at.accuracy else None
    checks = [
        Check.compare(
            "C3.tokens", whitening(at.used.x, at.used.mask).directions, at.layer.dim,
            unit="directions", text="directions in which tokens vary", at_most=False,
        ),
        Check.compare(
            "C3.bound", worst, at.accuracy, unit="relative error", text="bound on the error of every Theta and W"
        ),
        Check.compare(
            "C3.halves", surprise, 1.0, unit="of what is predicted", text="largest difference between the fits of two halves"
        ),
        Check.compare(
            "C3.influence", found.carried_by, CARRIED_BY, unit="sequences",
            text="sequences of equal influence that would carry as much", at_most=False,
        ),
        Check.compare("C3.count", int(counted.established), 1, unit="claims", text="C2, on which this rests", at_most=False),
    ]  # fmt: skip
    text = f"each Theta and W is within {worst:.3g} of that of the layer behind the errors, "
    text += "biases are not bounded" if bias is None else f"each bias within {bias:.3g}"
    notes = ["to first order, confirmed by two halves"]
    notes += ["on the span of the tokens"] if support is not None else []
    notes += [f"among layers whose Theta have rank at most {at.rank}"] if at.rank is not None else []
    value = {
        "bound": max(worst, bias or 0.0), "weights": worst, "heads": heads.tolist(), "biases": bias, "proved": False, "rank": at.rank,
    }  # fmt: skip
    established = all(check.status is Status.HOLDS for check in checks)
    claim = Claim.stated(
        "C3",
        f"{text} ({', '.join(notes)})",
        established,
        value,
        CONFIDENCE,
        assumes=counted.assumes,
        scope=counted.scope,
    )
    return claim, checks


def _norms(layer: AttentionLayer) -> dict[str, np.ndarray]:
    """What errors of each part are relative to, as `distance` measures them."""
    theta, w = (np.linalg.norm(part.astype(np.float64), axis=(1, 2)) for part in (layer.theta, layer.w))
    tiny = np.finfo(float).tiny
    query = np.maximum(np.linalg.norm(layer.query_bias, axis=1), BIAS_FLOOR * np.linalg.norm(theta))
    output = max(np.linalg.norm(layer.output_bias), BIAS_FLOOR * np.linalg.norm(w), tiny)
    return {
        "theta": np.maximum(theta, tiny), "w": np.maximum(w, tiny), "query_bias": np.maximum(query, tiny), "output_bias": np.array([output]),
    }  # fmt: skip


def _bounds(at: Setting, found: Spread, halves: Halves) -> tuple[dict[str, np.ndarray], float]:
    """Relative bounds on every part, and the largest difference of the halves as a share of what is predicted."""
    chance = (1 - CONFIDENCE) / (4 * at.layer.num_heads)
    t, bounds, shares = np.log(1 / chance), {}, []
    for part, norms in _norms(at.layer).items():
        predicted = found.largest(part, t)
        bounds[part] = (predicted + halves.bias(at.layer, part)) / norms
        if part in ("theta", "w"):
            shares.append(halves.difference(part) / np.maximum(2 * predicted, np.finfo(float).tiny))
    return bounds, float(np.max(shares))


def _figures(at: Setting, found: Spread) -> dict[str, Any]:
    """Standard errors by head and the influence of the worst sequences, for the result."""
    norms = _norms(at.layer)
    rest = at.layer(at.held.x, at.held.mask) - at.held.visible
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
