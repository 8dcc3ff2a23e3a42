"""After the last phase: every kept slab checked again with the true singular value.

While the W_i were unknown, a slab's half-width rested on a measured constant. Now they are known: sigma, the smallest
singular value of the m (k - 1) vectors (x_t - x_t0) W_i, gives the proved half-width eps. A slab whose row proves
nothing (u >= min(lambda, 1 - lambda)) is dropped; the others must contain every head. Only then does the check
"the body contains every Theta_i" hold. `tolerance` is how much wider the slabs of K would have to be to contain every
head: the half-widths that sculpting used, inflated by it, are never violated.

The theorem speaks of the true layer; the recovered one takes its place, so the check is as good as claim C3.
Cost: one singular value decomposition of size m (k - 1) by d_out per slab.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn._certificate import Check, Status
from attnlearn._layer import AttentionLayer
from attnlearn.recovery.sculpt import _calibration as calibration
from attnlearn.recovery.sculpt._carve import as_vector, kept_slabs
from attnlearn.recovery.sculpt._certify_rows import pair_rows
from attnlearn.recovery.sculpt._rows import Rows
from attnlearn.recovery.sculpt._slabs import Slabs, slab_width
from attnlearn.recovery.sculpt._state import Problem, State


def recheck(problem: Problem, state: State, answer: AttentionLayer) -> tuple[State, dict[str, Any]]:
    """Proved half-widths of the kept slabs, and whether every head lies inside; evidence: counts and the tolerance."""
    slabs = kept_slabs(problem, state)
    layer = state.whitening.enter(answer.astype(np.float64).parameters)
    proved = prove(state, slabs, pair_rows(state).take(slabs.row), layer)
    sure = np.isfinite(proved.widths)
    inside = proved.misses <= proved.widths * (1 + calibration.ROUNDING)
    info = {
        "slabs": len(slabs.offsets),
        "proved": int(sure.sum()),
        "dropped": int(np.sum(~sure)),
        "violated": int(np.sum(sure & ~inside)),
        "median_singular_value": float(np.median(proved.singular)),
        "median_proved_width": float(np.median(proved.widths[sure])) if sure.any() else None,
        "provisional_wrong": float(np.mean(proved.misses > slabs.widths)),
        "tolerance": float(np.maximum(proved.misses - slabs.widths, 0).max(initial=0.0)),
    }
    violated = float(info["violated"]) if sure.any() else None
    return dataclasses.replace(state, slabs_violated=violated, slabs_proved=int(sure.sum())), info


class Proved(NamedTuple):
    """Per slab: the proved half-width (infinite when nothing is proved), the worst head's miss, sigma."""

    widths: Float[np.ndarray, "n"]
    misses: Float[np.ndarray, "n"]
    singular: Float[np.ndarray, "n"]


def prove(state: State, slabs: Slabs, rows: Rows, layer: Parameters) -> Proved:
    """The slab inequality with every quantity known; `layer` acts on white coordinates."""
    each = np.arange(len(rows.query))
    features = rows.features()
    mixed = slabs.weight[:, None] * features[each, slabs.first]
    mixed = mixed + (1 - slabs.weight)[:, None] * features[each, slabs.second]
    total = np.concatenate([layer.w.sum(axis=0), layer.output_bias[None]])
    rho = slabs.residual + np.linalg.norm(mixed @ (state.sum - total), axis=1)
    singular = smallest_singular_values(rows, slabs, layer.w)
    with np.errstate(divide="ignore"):
        u = np.where(singular > 0, rho / singular, np.inf)
    heads = as_vector(layer.theta, layer.query_bias)
    misses = np.abs(slabs.normals @ heads.T - slabs.offsets[:, None]).max(axis=1)
    return Proved(slab_width(u, slabs.weight), misses, singular)


def smallest_singular_values(
    rows: Rows, slabs: Slabs, w: Float[np.ndarray, "m e o"]
) -> Float[np.ndarray, "n"]:
    """sigma of every slab: 0 when there are more vectors than outputs."""
    result = np.zeros(len(rows.query))
    for pattern in np.unique(rows.keys, axis=0):
        chosen = np.flatnonzero((rows.keys == pattern).all(axis=1))
        for first, second in {(int(a), int(b)) for a, b in zip(slabs.first[chosen], slabs.second[chosen])}:
            use = chosen[(slabs.first[chosen] == first) & (slabs.second[chosen] == second)]
            keys = np.flatnonzero(pattern)
            others = keys[(keys != first) & (keys != second)]
            origin = int(others[0]) if len(others) else second
            kept = keys[keys != origin]
            apart = rows.tokens[use][:, kept] - rows.tokens[use][:, [origin]]
            vectors = np.einsum("nte,meo->nmto", apart, w).reshape(len(use), -1, w.shape[2])
            if vectors.shape[1] <= vectors.shape[2]:
                result[use] = np.linalg.svd(vectors, compute_uv=False)[:, -1]
    return result


def body_check(state: State) -> Check:
    """The coded check for the certificate."""
    text = "kept slabs that miss a head (proved half-widths)"
    if state.slabs_violated is None:
        return Check("S1.body", Status.NOT_RUN, None, 0.0, "slabs", text)
    return Check.compare("S1.body", state.slabs_violated, 0.0, unit="slabs", text=text)
