"""Factors of layers whose scores are any member of `scores`: taken apart for a shape, and put together again.

    query (m, d + 1, r), key (h, d or d + 1, r), value (h, d, r):  heads of a group share a key and a value

| scores | keys of a group |
|---|---|
| rotary | for every pair the leading complex vector of its heads' b_j; for coordinates at rest the leading directions of their forms |
| bilinear, relative | the leading directions of its heads' [Theta_i; c_i] (`_closed`) |
| normalised | the mean of its heads' keys in one gauge: what is normalised is no form to take directions of |

A group loses what its heads have outside these. Tables, gains, caps and sinks stay those of each head. Layers that have the shape
already are taken apart exactly. Cost: singular values of one group at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn.compression._closed import closed_form, leading
from attnlearn.compression._factored import Factored
from attnlearn.compression._grouping import Groups, Loss, best_groups, grouped, outside
from attnlearn.compression._shape import Shape
from attnlearn.scores import Bilinear, Normalised, Relative, Rotary
from attnlearn.scores._around import Around


def core(form: Any) -> Any:
    """The scores that have queries and keys: those inside a cap and sinks.

    >>> core(Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2)))).heads
    1
    """
    while isinstance(form, Around) and not isinstance(form, Normalised):
        form = form.base
    return form


def with_core(form: Any, inside: Any) -> Any:
    """The same cap and sinks around other scores."""
    if form is core(form):
        return inside
    return form._with(with_core(form.base, inside), form.own)


def width_of(form: Any) -> int | None:
    """The width of heads that positions fix; None where it is free."""
    inside = core(form)
    inside = inside.base if isinstance(inside, Normalised) else inside
    return inside.rotation.width if isinstance(inside, Rotary) else None


def groups_of(form: Any, w: np.ndarray, shape: Shape) -> Groups:
    """Which heads share a key and a value."""
    inside = core(form)
    if isinstance(inside, Bilinear | Relative):
        return best_groups(_plain(inside, w), shape.kv_heads, shape.head_dim)
    keys = _key_directions(inside, w)
    values = outside(np.swapaxes(w, 1, 2), shape.head_dim)
    return grouped(Loss(_outside_one(keys), values), len(w), shape.kv_heads)


def factored(form: Any, w: np.ndarray, shape: Shape) -> tuple[Any, Factored]:
    """Scores of heads in the order of their groups, and factors of the shape; the scores say how these meet."""
    inside, share = core(form), len(w) // shape.kv_heads
    if isinstance(inside, Bilinear | Relative):
        return form, closed_form(_plain(inside, w), shape)
    value = np.stack(
        [
            leading(np.swapaxes(w[at : at + share], 1, 2).reshape(-1, w.shape[1]), shape.head_dim)
            for at in range(0, len(w), share)
        ]
    )
    if isinstance(inside, Normalised):
        one = inside.canonical()
        key = one.base.b.reshape(shape.kv_heads, share, *one.base.b.shape[1:]).mean(axis=1)
        return with_core(form, one), Factored(one.base.a, key, value)
    query, key = _shared(inside, w, share)
    return form, Factored(query, key, value)


def put_together(form: Any, factors: Factored) -> Any:
    """Scores of these factors, with the tables, gains, caps and sinks of `form`; factors without biases have no last row."""
    if factors.query.shape[1] == form.dim:
        key = factors.key if width_of(form) is None else _with_last_row(factors.key)
        factors = factors._replace(query=_with_last_row(factors.query), key=key)
    inside, keys = core(form), np.repeat(factors.key, factors.share, axis=0)
    if isinstance(inside, Normalised):
        made: Any = inside._with(Rotary(factors.query, keys, inside.base.rotation), inside.own)
    elif isinstance(inside, Rotary):
        made = Rotary(factors.query, keys, inside.rotation)
    else:
        both = factors.scores()
        plain = Bilinear.whole(both[:, :-1], both[:, -1])
        made = Relative(plain, inside.table, inside.offsets) if isinstance(inside, Relative) else plain
    return with_core(form, made)


def _with_last_row(factor: np.ndarray) -> np.ndarray:
    return np.pad(factor, ((0, 0), (0, 1), (0, 0)))


def has_biases(form: Any) -> bool:
    """Whether queries, keys or sinks have biases.

    >>> has_biases(Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2))))
    False
    """
    inside = core(form)
    if isinstance(inside, Bilinear | Relative):
        return bool((inside.base if isinstance(inside, Relative) else inside).c.any())
    rotary = inside.base if isinstance(inside, Normalised) else inside
    return bool(rotary.a[:, -1].any() or rotary.b[:, -1].any()) or form.sink_value is not None


def without_biases(factors: Factored, dim: int) -> Factored:
    """Factors of queries and keys without their last row, which is zero."""
    return factors._replace(query=factors.query[:, :dim], key=factors.key[:, :dim])


def _plain(inside: Any, w: np.ndarray) -> Parameters:
    base = inside.base if isinstance(inside, Relative) else inside
    return Parameters(base.theta(), w, base.c, np.zeros(w.shape[2]))


def _key_directions(inside: Any, w: np.ndarray) -> np.ndarray:
    """Complex vectors (m, pairs, d + 1) whose line a head's keys have to lie on, as long as they matter."""
    rotary = inside.canonical().base if isinstance(inside, Normalised) else inside
    p, sizes = rotary.rotation.pairs, np.linalg.norm(w, axis=(1, 2))[:, None]
    query, key = (part[..., :p] + 1j * part[..., p : 2 * p] for part in (rotary.a, rotary.b))
    weights = sizes * np.linalg.norm(query, axis=1)
    return np.swapaxes(key, 1, 2) * weights[..., None]


def _outside_one(keys: np.ndarray) -> Callable[[tuple[int, ...]], float]:
    """What a group loses when each pair of its heads' keys lies on one complex line."""

    def lost(group: tuple[int, ...]) -> float:
        own = np.swapaxes(keys[list(group)], 0, 1)  # (pairs, heads, d + 1)
        values = np.linalg.svd(own, compute_uv=False)
        return float(np.sum(values[:, 1:] ** 2))

    return lost


def _shared(rotary: Rotary, w: np.ndarray, share: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries of every head and one key for each group, balanced pair by pair."""
    p, still = rotary.rotation.pairs, rotary.rotation.still
    query, keys = np.array(rotary.a, np.float64), []
    lines = _key_directions(rotary, w)
    for at in range(0, len(w), share):
        members, key = range(at, at + share), np.zeros(rotary.b.shape[1:])
        for pair in range(p):
            line = np.linalg.svd(lines[at : at + share, pair], full_matrices=False)[2][0]
            own = [rotary.b[h][:, pair] + 1j * rotary.b[h][:, p + pair] for h in members]
            size = np.sqrt(np.mean([np.linalg.norm(part) for part in own]) or 1.0)
            key[:, pair], key[:, p + pair] = size * line.real, size * line.imag
            for head, part in zip(members, own):
                ratio = (line.conj() @ part) / size
                turned = (query[head][:, pair] + 1j * query[head][:, p + pair]) * ratio.conjugate()
                query[head][:, pair], query[head][:, p + pair] = turned.real, turned.imag
        if still:
            forms = [rotary.a[h][:, 2 * p :] @ rotary.b[h][:, 2 * p :].T for h in members]
            span = leading(np.concatenate(forms), still)
            key[:, 2 * p :] = span
            for head, form in zip(members, forms):
                query[head][:, 2 * p :] = form @ span
        keys.append(key)
    return query, np.stack(keys)
