"""Tokens that are tied or confined in one way in some sequences and in another way in others, so that one look at all of them shows nothing.

Where a layer is made for it, several layers are one function on all such sequences, and differ in several heads at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._plain import forward
from tests.problems._problem import (
    FIT_FAILED,
    GENERAL_POSITION,
    HONEST,
    WITHHELD,
    Fresh,
    Problem,
    from_tokens,
    random_layer,
    shuffled,
)
from tests.problems._tied import flipped, turned


def tied_by_length(rng):
    """Short sequences lie in a mirror, long ones hold every token beside its mirror image: a head may be replaced by its image."""
    d, m, share = int(rng.choice([6, 8, 16])), int(rng.integers(1, 4)), float(rng.uniform(0.5, 0.8))
    layer, turn = random_layer(rng, d, m), np.linalg.qr(rng.standard_normal((d, d)))[0]
    signs = np.where(np.arange(d) < d // 2, 1.0, -1.0)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, 3, d))
        long = np.concatenate([u, u * signs], axis=1)
        short = g.standard_normal((n, 6, d)) * (signs > 0) * (np.arange(6) < 4)[:, None]
        return np.where(g.random((n, 1, 1)) < share, short, long) @ turn

    mirror = turn.T @ np.diag(signs) @ turn
    problem = from_tokens(
        "ties by length", rng, layer, tokens, WITHHELD, n=5000, rivals=(turned(layer, mirror),)
    )
    return _with_padding(problem)


def _with_padding(problem: Problem) -> Problem:
    """Tokens of zero are padding."""

    def padded(fresh: Fresh) -> Fresh:
        mask = np.abs(fresh.x).max(axis=2) > 0
        return Fresh(fresh.x, forward(problem.truth, fresh.x, mask), mask)

    assert problem.draw is not None
    drawn, (x, y, mask, _) = problem.draw, padded(Fresh(problem.x, problem.y))
    more = {
        "x": x,
        "y": y,
        "options": {"mask": mask},
        "draw": lambda num, solution: padded(drawn(num, solution)),
    }
    return Problem(**{**vars(problem), **more})


def _onto(x: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Every token moved along its normal into the hyperplane."""
    return x - (np.vecdot(x, normals) / np.vecdot(normals, normals))[..., None] * normals


def three_planes(rng):
    """Every token lies in one of three hyperplanes with a line in common; three heads can be made otherwise, from parts of each."""
    d, k = int(rng.integers(4, 8)), int(rng.integers(4, 6))
    p, q = rng.standard_normal((2, d)) / np.sqrt(d)
    a, b = rng.standard_normal((2, d))
    theta, w = 1.2 * rng.standard_normal((d, d)) / np.sqrt(d), rng.standard_normal((d, d)) / np.sqrt(d)
    parts = np.outer(p, a), np.outer(q, b), np.outer(p + q, a + b)
    one = np.stack([theta - part for part in parts])
    two = np.stack(
        [theta, theta - np.outer(q, b) - np.outer(p, a + b), theta - np.outer(p, a) - np.outer(q, a + b)]
    )
    normals = np.stack([p, q, p + q])
    truth, rival = (AttentionLayer(three, np.stack([w] * 3)) for three in (one, two))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return _onto(g.standard_normal((n, k, d)), normals[g.integers(3, size=(n, k))])

    return from_tokens(
        "three planes", rng, truth, tokens, HONEST | FIT_FAILED, n=5000, rivals=(rival,), excuses=GENERAL_POSITION
    )  # fmt: skip


def planes_by_sequence(rng):
    """All tokens of a sequence lie in the same one of three hyperplanes."""
    d, k, m = int(rng.integers(5, 8)), int(rng.integers(3, 5)), int(rng.integers(1, 4))
    normals = rng.standard_normal((3, d))
    if rng.random() < 0.5:
        normals[2] = normals[0] + normals[1]

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        chosen = np.repeat(normals[g.integers(3, size=(n, 1))], k, axis=1)
        return _onto(g.standard_normal((n, k, d)), chosen)

    layer = random_layer(rng, d, m)
    return from_tokens(
        "planes by sequence", rng, layer, tokens, HONEST | FIT_FAILED, n=5000, excuses=GENERAL_POSITION
    )


def two_ties(rng):
    """Half of the sequences antipodal, half mirrored; two heads are made so that both may change their sign, but none alone."""
    d, free = int(rng.integers(4, 8)), int(rng.integers(2, 4))
    signs, shuffle = np.where(np.arange(d) < d // 2, 1.0, -1.0), bool(rng.random() < 0.5)
    layer = random_layer(rng, d, 1, bias=False)
    theta = np.stack([layer.theta[0], -layer.theta[0] * signs])
    w = np.stack([layer.w[0], -signs[:, None] * layer.w[0]])

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = g.standard_normal((n, free, d))
        x = np.concatenate([u, np.where(g.random((n, 1, 1)) < 0.5, -u, u * signs)], axis=1)
        return shuffled(x, g) if shuffle else x

    truth, rival = AttentionLayer(theta, w), AttentionLayer(-theta, -w)
    return from_tokens(
        "two ties, two heads", rng, truth, tokens, WITHHELD | FIT_FAILED, n=5000, rivals=(rival,)
    )


def hidden_pair(rng):
    """What one head reads takes two values in every sequence, each as often; the rest of the tokens is free."""
    d, m = 8, int(rng.integers(1, 3))
    layer = random_layer(rng, d, m, bias=False)
    theta, w = layer.theta.copy(), layer.w.copy()
    theta[0][:, d // 2 :], w[0][d // 2 :] = 0.0, 0.0
    layer = layer.replace(theta=theta, w=w)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        x = g.standard_normal((n, 4, d))
        x[..., : d // 2] = np.repeat(g.standard_normal((n, 2, d // 2)), 2, axis=1)
        return shuffled(x, g)

    return from_tokens("two hidden keys", rng, layer, tokens, WITHHELD, n=5000, rivals=(flipped(layer),))


def third_key(rng):
    """Two keys nearly always, and three in a few sequences."""
    d, m, share = int(rng.integers(4, 8)), int(rng.integers(1, 3)), float(10.0 ** rng.uniform(-2.5, -1))

    def padding(g: np.random.Generator, n: int) -> np.ndarray:
        return np.arange(3) < np.where(g.random(n) < share, 3, 2)[:, None]

    layer = random_layer(rng, d, m)
    return from_tokens(
        "a third key in few", rng, layer, lambda g, n: g.standard_normal((n, 3, d)), HONEST | FIT_FAILED, n=5000,
        padding=padding,
    )  # fmt: skip


def head_now_and_then(rng):
    """One sequence in a hundred to three thousand has a further head, for no reason that the tokens show."""
    d, k, m = int(rng.integers(4, 8)), int(rng.integers(3, 6)), int(rng.integers(1, 3))
    layer, other = random_layer(rng, d, m), random_layer(rng, d, 1, bias=False)
    seed, share = int(rng.integers(2**31)), float(10.0 ** rng.uniform(-3.5, -2))

    def draw(num: int, side: int) -> Fresh:
        g = np.random.default_rng([seed, side])
        x = g.standard_normal((num, k, d))
        return Fresh(x, forward(layer, x) + np.where(g.random((num, 1, 1)) < share, forward(other, x), 0.0))

    x, y, *_ = draw(5000, 0)
    right = HONEST | FIT_FAILED
    return Problem("a head now and then", x, y, layer, right, draw=lambda num, _: draw(num, 1))


IN_TURN: dict[str, Callable[[np.random.Generator], Problem]] = {
    "tied by length": tied_by_length,
    "three planes": three_planes,
    "planes by sequence": planes_by_sequence,
    "two ties, two heads": two_ties,
    "hidden pair": hidden_pair,
    "third key": third_key,
    "head now and then": head_now_and_then,
}
