"""How an extraction ends: the certificate on fresh queries, the further checks on which C2 and C3 rest, and the outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check, Status
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn._types import Tokens
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._ask import certified_range
from attnlearn.extraction._equations import determined
from attnlearn.extraction._polish import padded
from attnlearn.extraction._state import Problem, State
from attnlearn.solve._batch import Batch, exactness_limit, example_scale, rounding_floor, unit_errors
from attnlearn.solve._calibration import SMALL_ERROR
from attnlearn.solve._diagnose import diagnose
from attnlearn.solve._heads import head_separation
from attnlearn.solve.certification import certify


def conclude(
    problem: Problem, state: State, layer: AttentionLayer, on_step: Callable[..., None] | None = None
) -> tuple[Certificate, Outcome, dict[str, Any]]:
    """Certify the frozen answer and say how the run ended."""
    dtype = layer.dtype
    held = Batch(state.held_x.astype(dtype), state.held_y.astype(dtype), state.held_mask)
    scale, asked = example_scale(_longest(state, dtype)), everything_asked(state, dtype)
    rank = None if state.ranks is None else max(1, *state.ranks)
    m, d, o = layer.w.shape
    assert asked.mask is not None, "queries of different lengths are padded"
    whole = determined(m, d, o, layer.causal, asked.mask.sum(axis=1).tolist())
    tangent = None if state.constant_head and whole else rank
    with np.errstate(divide="ignore"):  # where no head has scores their error is relative to nothing
        certificate = certify(
            layer, held, asked, scale=scale, rank=tangent, target=problem.target,
            where=f" of {certified_range(state)}", designed=True, on_step=on_step,
        )  # fmt: skip
    certificate = certificate.resting_on(judged_beyond(state, layer))
    certificate, exact = judged_by_answers(judged_by_fit(certificate, state, layer), state)
    errors, floor = unit_errors(layer, held, scale), rounding_floor(layer, held, scale)
    noise = state.noise * np.sqrt(held.y[0].size) / scale
    figures: dict[str, Any] = {
        "fit_residual": state.residual,
        "certify_error": float(errors.max()),
        "rounding_floor": floor,
        "noise_relative": float(noise),
        "rank": rank,
        "ranks": state.ranks,
        "num_heads": layer.num_heads,
    }
    if certificate.certified:
        return certificate, Outcome.RECOVERED, figures
    if problem.target is not None and certificate.claim("C1").established:
        return certificate, Outcome.ON_TARGET, figures
    typical = float(np.sqrt(np.mean(errors**2)))
    if exact and errors.max() <= exactness_limit(floor, dtype):
        apart = head_separation(layer) >= calibration.APART
        return certificate, Outcome.NOT_ESTABLISHED if apart else Outcome.HEADS_INDISTINGUISHABLE, figures
    if typical <= calibration.AS_GOOD_AS_NOISE * noise:
        return certificate, Outcome.BELOW_NOISE_FLOOR, figures
    if typical <= calibration.MISFIT:
        return certificate, Outcome.NOT_ESTABLISHED, figures
    figures["diagnosis"] = diagnose(held.x, held.y, held.mask, layer.causal).to_json()
    return certificate, Outcome.NOT_ATTENTION, figures


def everything_asked(state: State, dtype: np.dtype) -> Batch:
    """Fresh and fitted queries, the longest first: what determines the layer has nothing to do with who saw it.

    Short ones beside long ones are left out: they tell little and would cost as much.
    """
    long = [2 * x.shape[1] >= state.asked_x[-1].shape[1] for x in state.asked_x]
    x, y, mask = padded(
        *([a for a, told in zip(asked, long) if told][::-1] for asked in (state.asked_x, state.asked_y))
    )
    missing = state.held_x.shape[1] - x.shape[1]
    x, y = (np.pad(array, ((0, 0), (0, missing), (0, 0))) for array in (x, y))
    mask = np.pad(mask, ((0, 0), (0, missing)))
    pairs = ((state.held_x, x), (state.held_y, y), (state.held_mask, mask))
    x, y, mask = (np.concatenate(pair) for pair in pairs)
    return Batch(x.astype(dtype), y.astype(dtype), mask)


def judged_beyond(state: State, layer: AttentionLayer) -> Check:
    """C2 and C3 need an oracle that is no other function on larger tokens, beyond the range that the claims name."""
    beyond = Batch(state.larger_x.astype(layer.dtype), state.larger_y.astype(layer.dtype))
    scale = example_scale(beyond)
    limit = exactness_limit(rounding_floor(layer, beyond, scale), layer.dtype)
    return Check.compare(
        "C2.beyond",
        float(unit_errors(layer, beyond, scale).max()),
        min(calibration.LARGER_ERROR * limit, SMALL_ERROR),
        unit="relative error",
        text=f"largest error on tokens of {calibration.LARGER:g} times the scale",
    )


def judged_by_fit(certificate: Certificate, state: State, layer: AttentionLayer) -> Certificate:
    """C2 and C3 need float32 answers to be fitted as closely as they were rounded: a head that is missing is left over.

    The largest of a few hundred errors shows it less than the sum over all that was asked.
    """
    if layer.dtype != np.float32:
        return certificate
    check = Check.compare(
        "C2.fit",
        state.residual / max(typical_rounding(layer, state.asked_x), np.finfo(np.float64).tiny),
        calibration.FIT_ROUNDING,
        unit="of rounding",
        text="typical residual of the fit",
    )
    return certificate.resting_on(check)


def typical_rounding(layer: AttentionLayer, asked: list[Tokens]) -> float:
    """Root mean square rounding error of one scalar of the layer's outputs in its own precision.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4).astype(np.float32)
    >>> 1e-9 < typical_rounding(layer, [np.ones((5, 3, 4))]) < 1e-6
    True
    """
    exact, sums, number = layer.astype(np.float64), 0.0, 0
    for x in asked:
        rounded = x.astype(layer.dtype)
        error = layer(rounded).astype(np.float64) - exact(rounded.astype(np.float64))
        sums, number = sums + float(np.sum(error**2)), number + error.size
    return float(np.sqrt(sums / max(number, 1)))


def judged_by_answers(certificate: Certificate, state: State) -> tuple[Certificate, bool]:
    """C2 and C3 need answers as exact as float32 or float64; rounded or noisy ones can hide a head in their error."""
    eps = float(np.finfo(np.float32 if state.rounding == "float32" else np.float64).eps)
    size = max(float(np.abs(y).max(initial=0.0)) for y in state.asked_y)
    check = Check.compare(
        "C2.answers",
        max(state.noise, state.repeat_noise) / max(eps * size, np.finfo(np.float64).tiny),
        calibration.ANSWER_STEPS,
        unit="rounding steps",
        text="noise of the answers",
    )
    return certificate.resting_on(check), check.status is Status.HOLDS


def _longest(state: State, dtype: np.dtype) -> Batch:
    """The longest fitted queries: like the certify ones, so that their outputs set the scale of errors."""
    x, y = next(pair for pair in reversed(list(zip(state.asked_x, state.asked_y))) if len(pair[0]))
    return Batch(x.astype(dtype), y.astype(dtype))
