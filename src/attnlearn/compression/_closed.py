"""Closed forms: the factors of a shape from a layer by singular values alone, in white coordinates.

To first order in the scores, and for white tokens, changing [Theta_i; c_i] by D costs ‖D‖^2 ‖W_i‖^2 and changing W_i by D costs
‖D‖^2, both over the number of keys. So the best keys of a group are the right singular vectors of its ‖W_i‖ [Theta_i; c_i] on
top of each other, the best values the left singular vectors of its W_i side by side, and the best latent those of all of
both. A layer that has the shape already is taken apart exactly, up to rounding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from attnlearn._attention import Parameters
from attnlearn.compression._factored import Factored
from attnlearn.compression._shape import Shape
from attnlearn.solve._rank import largest_rank


def closed_form(inside: Parameters, shape: Shape) -> Factored:
    """The factors for a layer in white coordinates whose heads stand in the order in which they share keys and values."""
    keys, values = key_rows(inside), value_rows(inside)
    if shape.latent is None:
        return _factors(inside, keys, values, shape)
    latent = leading(np.concatenate([*keys, *values]), shape.latent)
    through = inside._replace(
        theta=inside.theta @ latent, query_bias=inside.query_bias @ latent, w=latent.T @ inside.w
    )
    found = _factors(through, keys @ latent, values @ latent, shape)
    return found._replace(latent=latent)


def smallest(inside: Parameters, shape: Shape) -> Shape:
    """The shape with no more width, or no longer a latent, than its keys and values span, for a layer that has the shape."""
    keys, values = key_rows(inside), value_rows(inside)
    dim = keys.shape[-1]
    if shape.latent is not None:
        spanned = largest_rank(np.concatenate([part.reshape(-1, dim) for part in (keys, values)])[None])
        return replace(shape, latent=max(1, spanned))
    groups = (part.reshape(shape.kv_heads, -1, dim) for part in (keys, values))
    return replace(shape, head_dim=max(1, *map(largest_rank, groups)))


def _factors(inside: Parameters, keys: np.ndarray, values: np.ndarray, shape: Shape) -> Factored:
    m, width, share = len(keys), shape.head_dim, len(keys) // shape.kv_heads
    key, value = (
        np.stack(
            [
                leading(rows[start : start + share].reshape(-1, rows.shape[-1]), width)
                for start in range(0, m, share)
            ]
        )
        for rows in (keys, values)
    )
    query = scores(inside) @ np.repeat(key, share, axis=0)
    balance = _balance(query.reshape(shape.kv_heads, -1, query.shape[-1]))
    return Factored(query / np.repeat(balance, share, axis=0)[:, None], key * balance[:, None], value)


def _balance(query: np.ndarray) -> np.ndarray:
    """By how much to stretch the orthonormal keys (h, r) so that they are as long as their queries; 1 where there is none."""
    sizes = np.linalg.norm(query, axis=1)
    return np.sqrt(np.where(sizes > 0, sizes, 1.0))


def scores(inside: Parameters) -> Float[np.ndarray, "m e d"]:
    """[Theta_i; c_i^T] of every head."""
    return np.concatenate([inside.theta, inside.query_bias[:, None, :]], axis=1)


def key_rows(inside: Parameters) -> Float[np.ndarray, "m e d"]:
    """‖W_i‖ [Theta_i; c_i], whose row space a head's keys have to span."""
    return np.linalg.norm(inside.w, axis=(1, 2))[:, None, None] * scores(inside)


def value_rows(inside: Parameters) -> Float[np.ndarray, "m o d"]:
    """W_i^T, whose row space a head's values have to span."""
    return np.swapaxes(inside.w, 1, 2)


def leading(rows: Float[np.ndarray, "n d"], width: int) -> Float[np.ndarray, "d r"]:
    """Orthonormal columns that span the leading directions of the rows; zero columns where there are no more."""
    vectors = np.linalg.svd(rows, full_matrices=False)[2][:width].T
    return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))
