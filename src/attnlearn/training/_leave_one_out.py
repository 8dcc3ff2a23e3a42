"""Leave-one-out distances: a recursion that bounds all of them along one run, and replays that measure some.

L^{-i} is L without the term of example i (weights stay 1/n). With g_k = mean |l'_j|, kappa = beta2 / sqrt H,

    r_{k+1}^i = (1 + eta kappa(M_i) min(1, g_k exp(beta1(M_i) r_k^i))) r_k^i + eta beta1(‖U_k‖) |l'_i| / n,
    M_i = max_h ‖U_h,k‖ + r_k^i

bounds ‖theta_{k+1} - theta_{k+1}^{-i}‖ if eta (beta1(M_i)^2 / 4 + kappa(M_i)) <= 2; otherwise r^i is infinite
from then on. Cost: O(n) a step. 2 beta1 mean_i r_K^i is one draw of a variable whose expectation bounds the
expected generalization gap; it is no statement about this sample, so it is never part of `certified`.
"""

from __future__ import annotations

from typing import Any

from attnlearn._jax import jax, jnp
from attnlearn.training._calibration import DIVERGED
from attnlearn.training._model import Array, Model

_LARGEST_EXPONENT = 80.0  # exp(80) is finite in float32 and far above the 1 that min() returns


def advance_distances(
    model: Model, distances: Array, margins: Array, entry: Any, chunks: Any, rates: Any
) -> Array:
    """The recursion above, for all examples at once."""
    tokens = chunks.x.shape[-2]
    norm = entry.norm + distances
    beta1 = model.beta1(tokens, rates.radius, norm)
    kappa = model.beta2(tokens, rates.radius, norm) / rates.num_heads**0.5
    slope = jnp.minimum(1.0, entry.slope * jnp.exp(jnp.minimum(beta1 * distances, _LARGEST_EXPONENT)))
    source = model.beta1(tokens, rates.radius, entry.norm) * jax.nn.sigmoid(-margins) * chunks.weight
    ahead = (1 + rates.step * kappa * slope) * distances + rates.step * source
    allowed = rates.step * (beta1**2 / 4 + kappa) <= 2
    return jnp.where(allowed & (ahead < DIVERGED), ahead, DIVERGED)


def first_distance(init: str, init_step: float, rows: int, radius: float, num_examples: int) -> float:
    """How far leaving one example out moves the start: eta_0 sqrt(T) R / (2n) for the first-step start.

    >>> first_distance("zero", 1.0, 4, 1.0, 10), first_distance("first-step", 1.0, 4, 1.0, 10)
    (0.0, 0.1)
    """
    return init_step * rows**0.5 * radius / (2 * num_examples) if init == "first-step" else 0.0
