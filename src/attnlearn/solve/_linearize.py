"""The derivative of a layer in its scores, chunk by chunk and in closed form, with W and b eliminated.

For a head with patterns alpha and values V = X W the derivative in the direction (dTheta, dc) is

    dS_ab = x_a^T dTheta x_b + dc^T x_b,   dalpha = alpha * (dS - rowsum(alpha * dS)),   dF = sum_i dalpha_i V_i

Eliminating W and b (Kaufman's variable projection) replaces J by (I - P P^+) J. The products below are
J~^T (I - P P^+) J~ with J~ = J times the preconditioner of `_precondition`, two passes over the chunks each:
the first sums P^T J t, the second subtracts the projection and applies J^T. Per row and head this costs
d r (factors) or d^2 (whole Theta) plus m d d_out for the projection, a few times each.

Everything runs in float32: Gauss-Newton corrects with residuals evaluated in float64.
"""

from __future__ import annotations

import os
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnlearn._forward import mixed_rows
from attnlearn.solve._calibration import CACHE_LEAST, CACHE_SHARE
from attnlearn.solve._scores import (
    Scores,
    key_bias,
    mixed,
    pair,
    patterns,
    project,
    project_back,
    split_linear,
)


class Local(NamedTuple):
    """What the derivative on one chunk needs: alpha (n, query, m, key), queries and keys (n, k, m, r), values
    V (n, m k, o) and their transposes, mixed tokens p (n k, m d + 1)."""

    x: Any
    alpha: Any
    queries: Any
    keys: Any | None
    values: Any
    turned: Any
    p: Any


class Linearization(NamedTuple):
    """A layer at which derivatives are taken: scores, [W; b], L^-1 of P^T P, chunks, and cached local arrays."""

    scores: Scores
    linear: Any
    factor: Any
    x: Any
    keep: Any
    cache: Local | None


def local_arrays(scores: Scores, linear: Any, x: Any, keep: Any, causal: bool) -> Local:
    """Patterns, values and mixed tokens of one chunk."""
    alpha, queries, keys = patterns(scores, x, keep, causal)
    w, _ = split_linear(linear, scores.c.shape[0])
    n, k, m, _ = alpha.shape
    values = project(x, w).transpose(0, 2, 1, 3).reshape(n, m * k, w.shape[-1])
    # Products with a transposed operand run at a third of the speed, so both layouts are kept.
    return Local(x, alpha, queries, keys, values, values.transpose(0, 2, 1), mixed(alpha, x, keep))


@partial(jax.jit, static_argnames="causal")
def _cached(scores: Scores, linear: Any, x: Any, keep: Any, causal: bool) -> Local:
    return jax.lax.map(lambda chunk: local_arrays(scores, linear, *chunk, causal), (x, keep))


@cache
def cache_bytes() -> int:
    """Memory that the local arrays may take on this machine.

    >>> cache_bytes() >= 2**30
    True
    """
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        total = 0
    return max(CACHE_LEAST, int(CACHE_SHARE * total))


def linearize(scores: Scores, linear: Any, factor: Any, x: Any, keep: Any, causal: bool) -> Linearization:
    """Prepare derivatives in float32; the local arrays are kept if they fit into `cache_bytes()`."""
    single = np.float32
    scores, linear, factor = scores.astype(single), np.asarray(linear, single), np.asarray(factor, single)
    m, d = scores.c.shape
    per_row = m * (x.shape[2] + d + 2 * linear.shape[1] + 2 * scores.a.shape[2])
    fits = 4 * keep.size * per_row <= cache_bytes()
    kept = _cached(scores, linear, x, keep, causal) if fits else None
    return Linearization(scores, linear, factor, x, keep, kept)


def over_chunks(at: Linearization, causal: bool, body: Any, start: Any, extra: Any) -> tuple[Any, Any]:
    """`lax.scan` of body(total, local, keep, extra) over the chunks, from the cache or recomputed."""
    if at.cache is not None:
        return jax.lax.scan(lambda total, z: body(total, *z), start, (at.cache, at.keep, extra))

    def recompute(total, chunk):
        x, keep, rest = chunk
        return body(total, local_arrays(at.scores, at.linear, x, keep, causal), keep, rest)

    return jax.lax.scan(recompute, start, (at.x, at.keep, extra))


def forward_derivative(tangent: Scores, at: Local) -> jax.Array:
    """dF (n, k, o) of one chunk along a direction of the scores."""
    n, k, m, _ = at.alpha.shape
    ds = pair(project(at.x, tangent.a), at.keys, at.x) + key_bias(at.x, tangent.c)
    if at.keys is not None:
        ds = ds + pair(at.queries, project(at.x, tangent.b), at.x)
    da = at.alpha * (ds - jnp.sum(at.alpha * ds, axis=-1, keepdims=True))
    return jnp.einsum("nax,nxo->nao", da.reshape(n, k, m * k), at.values)


def reverse_derivative(u: jax.Array, at: Local) -> Scores:
    """The adjoint: gradient in the scores of <u, F> for u (n, k, o)."""
    n, k, m, _ = at.alpha.shape
    g = jnp.einsum("nao,nox->nax", u, at.turned).reshape(n, k, m, k)
    ds = at.alpha * (g - jnp.sum(at.alpha * g, axis=-1, keepdims=True))
    c = jnp.einsum("nmb,nbd->md", ds.sum(axis=1), at.x)
    if at.keys is None:
        return Scores(project_back(at.x, mixed_rows(ds, at.x)), None, c)
    a = (ds.transpose(0, 2, 1, 3) @ at.keys.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    # A turned copy of ds: a product that contracts the rows of both factors runs at a sixth of the speed.
    b = (ds.transpose(0, 2, 3, 1) @ at.queries.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    return Scores(project_back(at.x, a), project_back(at.x, b), c)


def linear_response(at: Linearization, tangent: Scores, causal: bool) -> tuple[jax.Array, jax.Array]:
    """P^+ J of a direction of the scores, the change of -[W; b] that goes with it, and J of it by chunk."""

    def add(total, local, _keep, _extra):
        u = forward_derivative(tangent, local)
        return total + u.reshape(len(local.p), -1).T @ local.p, u

    moment, u = over_chunks(at, causal, add, jnp.zeros_like(at.linear.T), None)
    # Two triangular products instead of one with the inverse: the error grows with cond(P), not its square.
    return at.factor.T @ (at.factor @ moment.T), u


def normal_product(at: Linearization, tangent: Scores, causal: bool) -> tuple[Scores, jax.Array]:
    """J^T (I - P P^+) J of a direction of the scores, and on the way P^+ J of it."""
    follow, u = linear_response(at, tangent, causal)

    def add(total, local, _keep, u):
        rest = u - (local.p @ follow).reshape(u.shape)
        return jax.tree.map(jnp.add, total, reverse_derivative(rest, local)), None

    start = jax.tree.map(jnp.zeros_like, at.scores)
    return over_chunks(at, causal, add, start, u)[0], follow


def gradient(at: Linearization, rest: jax.Array, causal: bool) -> Scores:
    """J^T rest for residuals (C, s k, o) orthogonal to the columns of P."""

    def add(total, local, keep, u):
        u = u.reshape(*keep.shape, -1)
        return jax.tree.map(jnp.add, total, reverse_derivative(u, local)), None

    return over_chunks(at, causal, add, jax.tree.map(jnp.zeros_like, at.scores), rest)[0]
