"""Heads that share keys: recognised by the key factors of rotary scores, up to their gauge.

Heads of one group have key factors b_j equal up to a complex number for each pair, and up to g^-T for the coordinates at rest. Normalised keys
have a smaller gauge: there factors, gains and eps are equal in the gauge that `canonical` has for queries without gains.
Cost: one comparison for each pair of heads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn.scores._normalised import Normalised
from attnlearn.scores._pairs import phases
from attnlearn.scores._rotary import Rotary


def key_groups(scores: Rotary | Normalised, tolerance: float) -> tuple[int, ...]:
    """The group of every head: heads of one group have the same keys to a relative `tolerance`.

    >>> from attnlearn.scores import Rotation
    >>> a, b = np.random.default_rng(0).standard_normal((2, 4, 5, 4))
    >>> key_groups(Rotary(a, b[[0, 0, 1, 1]], Rotation((1.0, 0.1))), 1e-9)
    (0, 0, 1, 1)
    """
    same = _normalised(scores, tolerance) if isinstance(scores, Normalised) else _rotary(scores, tolerance)
    found: list[int] = []
    first: list[int] = []
    for head in range(scores.heads):
        group = next((g for g, other in enumerate(first) if same(head, other)), None)
        if group is None:
            group = len(first)
            first.append(head)
        found.append(group)
    return tuple(found)


def _normalised(scores: Normalised, tolerance: float) -> Callable[[int, int], bool]:
    gains = np.ones_like(scores.own["query_gain"]), scores.own["key_gain"]
    one = Normalised(scores.base, *gains, *scores.eps).canonical()
    b, gain, eps = (np.asarray(part, np.float64) for part in (one.base.b, one.own["key_gain"], one.eps[1]))
    pairs = gain.reshape(len(gain), 2, -1)  # queries take up the size of the gains of a pair
    sizes = np.linalg.norm(pairs, axis=1, keepdims=True)
    gain = np.divide(pairs, sizes, out=np.zeros_like(pairs), where=sizes > 0).reshape(gain.shape)
    flat = np.concatenate([b.reshape(len(b), -1), gain, eps[:, None]], axis=1)
    sizes = np.linalg.norm(flat, axis=1)
    return lambda head, other: bool(np.linalg.norm(flat[head] - flat[other]) <= tolerance * sizes[other])


def _rotary(scores: Rotary, tolerance: float) -> Callable[[int, int], bool]:
    p = scores.rotation.pairs
    b = np.asarray(scores.b, np.float64)
    pairs = b[..., :p] + 1j * b[..., p : 2 * p]
    sizes = np.linalg.norm(pairs, axis=1, keepdims=True)
    pairs = np.divide(pairs * phases(pairs), sizes, out=np.zeros_like(pairs), where=sizes > 0)
    still = np.linalg.qr(b[..., 2 * p :])[0] if scores.rotation.still else b[..., 2 * p :]
    spans = still @ np.swapaxes(still, 1, 2)
    return lambda head, other: _same(head, other, pairs, spans, tolerance)


def _same(head: int, other: int, pairs: np.ndarray, spans: np.ndarray, tolerance: float) -> bool:
    along = np.sum(pairs[head].conj() * pairs[other], axis=0)
    close = np.linalg.norm(
        pairs[other] - along * pairs[head], axis=0
    )  # sines of the angles between complex lines
    used = np.linalg.norm(pairs[head], axis=0) > 0
    return bool((close[used] <= tolerance).all() and np.linalg.norm(spans[head] - spans[other]) <= tolerance)


def with_shared_keys(scores: Rotary, groups: tuple[int, ...]) -> Rotary:
    """The same scores with equal key factors in a group, those of its first head; queries take up the difference."""
    p = scores.rotation.pairs
    a, b = scores.a.copy(), scores.b.copy()
    for head, group in enumerate(groups):
        first = groups.index(group)
        if first == head:
            continue
        one, other = (b[i][:, :p] + 1j * b[i][:, p : 2 * p] for i in (first, head))
        sizes = np.sum(np.abs(one) ** 2, axis=0)
        ratio = np.divide(
            np.sum(one.conj() * other, axis=0), sizes, out=np.zeros(p, complex), where=sizes > 0
        )
        query = (a[head][:, :p] + 1j * a[head][:, p : 2 * p]) * ratio.conj()
        a[head][:, :p], a[head][:, p : 2 * p] = query.real, query.imag
        if scores.rotation.still:
            mix = np.linalg.lstsq(b[first][:, 2 * p :], b[head][:, 2 * p :], rcond=None)[0]
            a[head][:, 2 * p :] = a[head][:, 2 * p :] @ mix.T
        b[head] = b[first]
    return Rotary(a, b, scores.rotation)
