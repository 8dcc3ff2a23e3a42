"""Tokens that lie in one of several places: in a union of subspaces, on lines, on one side of a flag. No axis shows it.

A query in one part sees only that part's rows of Theta, so heads can be made of the parts of others: A and B give the same outputs as
(X, W_A), (Y, W_A), (B, W_B - W_A) with X and Y mixed from their rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._problem import GENERAL_POSITION, HONEST, Problem, from_tokens, random_layer


def _turn(rng: np.random.Generator, d: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def _turned(
    theta: np.ndarray, w: np.ndarray, turn: np.ndarray, c: np.ndarray | None = None
) -> AttentionLayer:
    return AttentionLayer(turn.T @ theta @ turn, turn.T @ w, None if c is None else c @ turn)


def _mixed_rows(layer: AttentionLayer, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Theta and W of the three heads that stand in for two, the first rows of which are exchanged."""
    a, b = layer.theta
    rows = (np.arange(layer.dim) < first)[:, None]
    theta = np.stack([np.where(rows, a, b), np.where(rows, b, a), b])
    return theta, np.stack([layer.w[0], layer.w[0], layer.w[1] - layer.w[0]])


def subspaces(rng):
    """Every token lies in one of two complementary subspaces; the true layer has two heads or the three that stand in for them."""
    d, k = int(rng.choice([4, 6])), int(rng.integers(3, 6))
    turn, layer = _turn(rng, d), random_layer(rng, d, 2, bias=False, scale=1.5)
    two, three = _turned(layer.theta, layer.w, turn), _turned(*_mixed_rows(layer, d // 2), turn)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        part = g.random((n, k, 1)) < 0.5
        return (
            g.standard_normal((n, k, d)) * np.where(part, np.arange(d) < d // 2, np.arange(d) >= d // 2)
        ) @ turn

    truth, rival = (two, three) if rng.random() < 0.5 else (three, two)
    return from_tokens("union of subspaces", rng, truth, tokens, HONEST | {"NOT_ATTENTION"}, rivals=(rival,))


def lines(rng):
    """Every token is a multiple of one of d directions."""
    d, k = int(rng.integers(4, 7)), int(rng.integers(4, 6))
    turn, layer = _turn(rng, d), random_layer(rng, d, 2, bias=False, scale=3.0)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return 1.5 * g.standard_normal((n, k, 1)) * np.eye(d)[g.integers(d, size=(n, k))] @ turn

    two, three = _turned(layer.theta, layer.w, turn), _turned(*_mixed_rows(layer, 1), turn)
    return from_tokens("lines", rng, two, tokens, HONEST | {"NOT_ATTENTION"}, rivals=(three,))


def flags(rng):
    """A two-valued direction that is no axis; two heads write alike and differ in what they do with the flag of a query.

    Only layers made for it have a rival, so that the claim may assume general position.
    """
    d, k = int(rng.integers(4, 7)), int(rng.integers(3, 6))
    turn, layer = _turn(rng, d), random_layer(rng, d, 2, bias=False, scale=1.5)
    (ca, cb), (ta, tb) = rng.standard_normal((2, d)), rng.standard_normal((2, d))

    def heads(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> AttentionLayer:
        theta = np.stack([layer.theta[0]] * 2)
        theta[0, -1], theta[1, -1] = first[1], second[1]
        return _turned(theta, np.stack([layer.w[0]] * 2), turn, np.stack([first[0], second[0]]))

    def swapped(up: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (up + down) / 2, (up - down) / 2

    truth = heads((ca, ta), (cb, tb))
    rival = heads(swapped(ca + ta, cb - tb), swapped(cb + tb, ca - ta))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, k, d))
        x[..., -1] = g.choice([-1.0, 1.0], (n, k))
        return x @ turn

    return from_tokens("turned flag", rng, truth, tokens, HONEST, rivals=(rival,), excuses=GENERAL_POSITION)


UNIONS: dict[str, Callable[[np.random.Generator], Problem]] = {
    "union of subspaces": subspaces,
    "union of lines": lines,
    "turned flag": flags,
}
