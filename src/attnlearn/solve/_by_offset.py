"""What of the data depends on the offset of key and query: the footprints of positions and windows.

For plain attention on exchangeable tokens all keys before (and, without a causal mask, after) a query enter its row alike. Two
statistics of a pair (row a, token b) show when they do not, each compared only within its row, because rows of a causal layer
see different numbers of keys:

    influence     the matrix with which token b enters the best linear prediction of row a: tables by offset, ALiBi, windows
    meeting       E[x_a x_b^T (x_b g)(r_a h)] for random g, h: sum_i (g^T W_i h) Theta_i(D) and its like. Rotary positions
                  turn Theta_i and leave its size, so the influence hardly shows them

Halves of the data have independent errors, so that products between them are free of bias; a share counts only if the products
of its parts are positive far more often than chance makes them.
Cost: one product of tokens for each pair and each of a few g, h.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn.solve import _calibration as calibration

SKETCHES = calibration.TRIES
"""Pairs of random directions g, h."""


class Footprints(NamedTuple):
    """The shares of the linear influence and of what keys and query make together that differ by offset, and the reach of a window.

    >>> Footprints(linear=0.1, met=0.4, reach=None).turned
    True
    """

    linear: float
    met: float
    reach: int | None

    @property
    def turned(self) -> bool:
        """Whether positions rather turn queries and keys than add a number: rotary turns hardly move the linear influence."""
        return self.met > self.linear


def footprints(
    x: np.ndarray, y: np.ndarray, half: np.ndarray, influence: tuple[np.ndarray, np.ndarray], causal: bool
) -> Footprints:
    """All three, from examples, the half that each belongs to, and the influences of both halves."""
    linear, met = linear_share(*influence, causal), met_share(x, y, half, causal)
    return Footprints(linear, met, window_reach(*influence, causal))


def pairs_seen(k: int, causal: bool) -> np.ndarray:
    """The pairs (row, other token) that are compared."""
    return np.tri(k, k, -1, dtype=bool) if causal else ~np.eye(k, dtype=bool)


def window_reach(first: np.ndarray, second: np.ndarray, causal: bool) -> int | None:
    """The distance from which on tokens do not matter to a row, from influences (row, token, d, o); None if all matter."""
    k = len(first)
    seen = pairs_seen(k, causal)
    shares = np.where(seen, np.sum(first * second, axis=(2, 3)), 0.0)
    # In each row relative to its mean over the tokens that are compared: rows may see different numbers of keys.
    means = shares.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    if not (means[seen.any(axis=1)] > 0).all():
        return None
    shares = shares / np.where(means > 0, means, 1.0)[:, None]
    gap = np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    by_gap = np.array([0.0, *(shares[seen & (gap == distance)].mean() for distance in range(1, k))])
    if not by_gap[1] > 0 or k <= calibration.LEAST_KEYS:
        return None
    for reach in range(2, k):
        beyond, last = float(shares[seen & (gap >= reach)].mean()), by_gap[reach - 1]
        if last > calibration.DIGIT * by_gap[1] and abs(beyond) < calibration.FEW * last:
            return reach
    return None


def linear_share(first: np.ndarray, second: np.ndarray, causal: bool) -> float:
    """The share of the linear influence that differs between the tokens of a row, 0 when it need not come from scores."""
    k, seen = len(first), pairs_seen(len(first), causal)
    rows = [a for a in range(k) if seen[a].sum() > 1]
    weights = [
        (a + 1.0) ** 2 if causal else 1.0 for a in rows
    ]  # a row of a + 1 keys has influences of 1 / (a + 1)
    pairs = [(first[a][seen[a]], second[a][seen[a]]) for a in rows]
    varying = [weight * _within(*pair) for weight, pair in zip(weights, pairs)]
    total = sum(weight * float(np.sum(one * other)) for weight, (one, other) in zip(weights, pairs))
    if not causal:  # all rows see the same keys, so own tokens and rows must agree as well
        own = np.eye(k, dtype=bool)
        means = [np.stack([half[a][seen[a]].mean(axis=0) for a in range(k)]) for half in (first, second)]
        varying += [_within(first[own], second[own]), (k - 1) * _within(means[0], means[1])]
        total += float(np.sum(first[own] * second[own]))
    # Attention weights sum to one, so a shift of all tokens moves every row alike, wherever the scores come from.
    sums = [half.sum(axis=1) for half in (first, second)]
    alike = float(np.sum(sums[0] * sums[1]))
    even = alike > 0 and _within(sums[0], sums[1]).sum() / alike < calibration.HALVED
    return _clear_share(np.concatenate(varying, axis=None), total) if even else 0.0


def _within(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The products of two halves after their means over the first axis are taken out, summed over the outputs."""
    return np.sum((first - first.mean(axis=0)) * (second - second.mean(axis=0)), axis=-1)


def _clear_share(parts: np.ndarray, total: float) -> float:
    """The share of `total` that the parts sum to, 0 where chance might make them as large."""
    chance = float(np.std(parts) / np.sqrt(parts.size))
    clear = float(parts.mean()) > calibration.FAR_MORE * chance
    return float(parts.sum() / total) if clear and total > 0 else 0.0


def met_share(x: np.ndarray, y: np.ndarray, half: np.ndarray, causal: bool) -> float:
    """The share of what keys and query make together that differs between the keys of a row by their offset."""
    k, d = x.shape[1:]
    if min(np.sum(half == 0), np.sum(half == 1)) < calibration.EQUATIONS_PER_UNKNOWN * (2 * d + 1):
        return 0.0
    z, rest = _white(x), np.stack([_unexplained(x, y, a, causal) for a in range(k)], axis=1)
    rng = np.random.default_rng(0x0FF5E7)
    g, h = rng.standard_normal((d, SKETCHES)), rng.standard_normal((y.shape[2], SKETCHES))
    keys, outputs, offsets = z @ g, rest @ h, _offsets(k, causal)
    varying, total = [], 0.0
    for sketch in range(SKETCHES):
        sums = [
            _meetings(
                z[half == side], keys[half == side, :, sketch], outputs[half == side, :, sketch], causal
            )
            for side in (0, 1)
        ]
        varying += [float(np.sum(sums[0][1][place] * sums[1][1][place])) for place in range(len(offsets))]
        total += float(np.sum(sums[0][0] * sums[1][0]))
    return _clear_share(np.array(varying), total)


def _offsets(k: int, causal: bool) -> list[int]:
    """Offsets of key and query that at least two rows have."""
    return [offset for offset in range(-(k - 2), 1 if causal else k - 1) if offset != 0]


def _meetings(
    z: np.ndarray, keys: np.ndarray, outputs: np.ndarray, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """For every offset the sum over rows of E[x_a x_b^T (x_b g)(r_a h)], as it is and without the mean of its row."""
    n, k, d = z.shape
    seen, offsets = pairs_seen(k, causal), _offsets(k, causal)
    found = np.zeros((2, len(offsets), d, d))
    weighted = z * keys[..., None]
    for row in range(k):
        others = np.flatnonzero(seen[row])
        if len(others) <= 1:  # nothing to compare
            continue
        query = z[:, row] * outputs[:, row, None]
        each = (
            (query.T @ weighted[:, others].reshape(n, -1) / n).reshape(d, len(others), d).transpose(1, 0, 2)
        )
        apart = each - each.mean(axis=0)
        for place, other in enumerate(others.tolist()):
            if other - row in offsets:
                found[:, offsets.index(int(other) - row)] += each[place], apart[place]
    return found[0], found[1]


def _white(x: np.ndarray) -> np.ndarray:
    """Tokens centred and scaled, coordinate by coordinate."""
    flat = x.reshape(-1, x.shape[2])
    return (x - flat.mean(axis=0)) / np.maximum(flat.std(axis=0), np.finfo(float).tiny)


def _unexplained(x: np.ndarray, y: np.ndarray, row: int, causal: bool) -> np.ndarray:
    """What the own token and the mean of the visible ones leave of a row, linearly."""
    mean = x[:, : row + 1].mean(axis=1) if causal else x.mean(axis=1)
    design = np.concatenate([x[:, row], mean, np.ones((len(x), 1))], axis=1)
    return y[:, row] - design @ np.linalg.lstsq(design, y[:, row], rcond=None)[0]
