"""Tokens of one sequence that depend on each other, so that several layers are one function on all of them.

If a linear map G permutes the visible keys of every sequence, a head (Theta, c, W) equals (Theta G, G^T c, G^T W) on all of them, each
head on its own. None of these problems shows its layer, however many examples there are; no assumption excuses
a claim, because the data show the tie.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._problem import (
    WITHHELD,
    Problem,
    from_tokens,
    mixed,
    precision,
    random_layer,
    shuffled,
)


def shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(4, 9)), int(rng.integers(2, 4)), int(rng.integers(1, 4))


def free_tokens(rng: np.random.Generator, n: int, k: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, k, d))


def _orbits(
    name: str, rng: np.random.Generator, maps: list[np.ndarray], free: int, m: int, **more
) -> Problem:
    """Sequences that hold `free` tokens and their images under every map."""
    d, shuffle = len(maps[0]), bool(rng.random() < 0.5)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, free, d)
        x = np.concatenate([u @ a.T for a in maps], axis=1)
        return shuffled(x, g) if shuffle else x

    layer = random_layer(rng, d, m)
    return from_tokens(
        name, rng, layer, tokens, WITHHELD, dtype=precision(rng), rivals=(turned(layer, maps[1]),)
    )


def turned(layer: AttentionLayer, g: np.ndarray) -> AttentionLayer:
    """The layer with its first head (Theta G, G^T c, G^T W): the same outputs where G permutes the keys of every sequence."""
    theta, w, bias = layer.theta.copy(), layer.w.copy(), layer.query_bias.copy()
    theta[0], w[0], bias[0] = theta[0] @ g, g.T @ w[0], g.T @ bias[0]
    return layer.replace(theta=theta, w=w, query_bias=bias)


def flipped(layer: AttentionLayer) -> AttentionLayer:
    """The layer with its first head (-Theta, -c, -W) and a flat one of 2 W: the same outputs on two keys, each as often."""
    theta, w, bias = layer.theta.copy(), layer.w.copy(), layer.query_bias.copy()
    theta[0], w[0], bias[0] = -theta[0], -w[0], -bias[0]
    flat = np.zeros((1, layer.dim, layer.dim))
    return AttentionLayer(
        np.concatenate([theta, flat]),
        np.concatenate([w, 2 * layer.w[:1]]),
        np.concatenate([bias, flat[:, 0]]),
        layer.output_bias,
    )


def antipodal(rng):
    d, k, m = shape(rng)
    return _orbits("antipodal tokens", rng, [np.eye(d), -np.eye(d)], k, m)


def mirrored(rng):
    d, k, m = shape(rng)
    signs = np.ones(d)
    signs[-int(rng.integers(1, d // 2 + 1)) :] = -1
    return _orbits("tokens and mirror images", rng, [np.eye(d), np.diag(signs)], k, m)


def rotated(rng):
    """Orbits of a rotation of order 3 or 4 in some planes; the other directions may stay as they are."""
    d, order, m = 2 * int(rng.integers(2, 4)), int(rng.choice([3, 4])), int(rng.integers(1, 4))
    angle = 2 * np.pi / order
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    planes = int(rng.integers(1, d // 2 + 1))
    rotation = np.eye(d)
    for plane in range(planes):
        rotation[2 * plane : 2 * plane + 2, 2 * plane : 2 * plane + 2] = turn
    frame = np.linalg.qr(rng.standard_normal((d, d)))[0]
    rotation = frame @ rotation @ frame.T
    maps = [np.linalg.matrix_power(rotation, power) for power in range(order)]
    return _orbits("orbits of a rotation", rng, maps, 2, m)


def permuted_coordinates(rng):
    d, m = int(rng.integers(4, 8)), int(rng.integers(1, 4))
    cycle = np.roll(np.eye(3), 1, axis=0)
    shift = np.eye(d)
    shift[:3, :3] = cycle
    maps = [np.linalg.matrix_power(shift, power) for power in range(3)]
    return _orbits("coordinates in turn", rng, maps, 2, m)


def involution(rng):
    """Tokens beside their images under a map that is its own inverse and no reflection."""
    d, k, m = shape(rng)
    frame = rng.standard_normal((d, d)) + 2 * np.eye(d)
    signs = rng.permutation(np.where(np.arange(d) < max(1, d // 2), -1.0, 1.0))
    return _orbits("x and A x", rng, [np.eye(d), frame @ np.diag(signs) @ np.linalg.inv(frame)], k, m)


def complex_structure(rng):
    """u, Ju, -u, -Ju with J^2 = -1: a group of order four, of which a sign is only the half."""
    d, m = 2 * int(rng.integers(2, 5)), int(rng.integers(1, 4))
    j = np.kron(np.eye(d // 2), np.array([[0.0, -1.0], [1.0, 0.0]]))
    return _orbits("u, Ju, -u, -Ju", rng, [np.eye(d), j, -np.eye(d), -j], 1, m)


def displacements(rng):
    """r_i - r_j of points, both directions."""
    d, m, points = int(rng.integers(3, 8)), int(rng.integers(1, 4)), 3
    first, second = np.where(~np.eye(points, dtype=bool))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        r = free_tokens(g, n, points, d)
        return mixed(r[:, first] - r[:, second], g)

    layer = random_layer(rng, d, m)
    rivals = (turned(layer, -np.eye(d)),)
    return from_tokens(
        "displacements", rng, layer, tokens, WITHHELD, n=5000, dtype=precision(rng), rivals=rivals
    )


def repeated(rng):
    """Two tokens, each as often: the flip of two keys. Half of the time a flat head hides there too."""
    d, _, m = shape(rng)
    times, m = int(rng.integers(2, 4)), max(m, 2)
    layer = random_layer(rng, d, m, bias=False)
    if rng.random() < 0.5:
        theta = np.concatenate([layer.theta, np.zeros((1, d, d))])
        layer = AttentionLayer(theta, np.concatenate([layer.w, -2 * layer.w[:1]]))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return mixed(np.repeat(free_tokens(g, n, 2, d), times, axis=1), g)

    return from_tokens(
        "two tokens, each as often",
        rng,
        layer,
        tokens,
        WITHHELD,
        dtype=precision(rng),
        rivals=(flipped(layer),),
    )


def collinear(rng):
    """t_b u shows the symmetric part of every Theta. A start has queries and keys exchanged, half of the time."""
    d, m, k = int(rng.integers(5, 9)), int(rng.integers(1, 3)), int(rng.integers(4, 6))
    layer = random_layer(rng, d, m, rank=1, scale=3.0, bias=False)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return free_tokens(g, n, k, 1) * free_tokens(g, n, 1, d)

    transposed = layer.replace(theta=np.swapaxes(layer.theta, 1, 2))
    options = {"start": transposed.replace(theta=transposed.theta * (1 + 1e-4))} if rng.random() < 0.5 else {}
    return from_tokens(
        "collinear tokens", rng, layer, tokens, WITHHELD, n=5000, options=options, rivals=(transposed,)
    )


def with_constant(rng):
    """Antipodal tokens behind a first token that never changes and points where the others do not."""
    d, k, m = shape(rng)
    layer = random_layer(rng, d + 1, m)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = np.concatenate([free_tokens(g, n, k, d), np.zeros((n, k, 1))], axis=2)
        first = np.broadcast_to(np.eye(d + 1)[-1], (n, 1, d + 1))
        return np.concatenate([first, u, -u], axis=1)

    rivals = (turned(layer, np.diag([-1.0] * d + [1.0])),)
    return from_tokens(
        "antipodal behind a constant token", rng, layer, tokens, WITHHELD, dtype=precision(rng), rivals=rivals
    )


def padded_pairs(rng):
    """Antipodal pairs, of which padding hides some whole ones."""
    d, _, m = shape(rng)

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        u = free_tokens(g, n, 3, d)
        return np.concatenate([u, -u], axis=1)

    def padding(g: np.random.Generator, n: int) -> np.ndarray:
        return np.tile(np.arange(3) < g.integers(2, 4, n)[:, None], (1, 2))

    layer = random_layer(rng, d, m)
    rivals = (turned(layer, -np.eye(d)),)
    return from_tokens(
        "antipodal pairs and padding", rng, layer, tokens, WITHHELD, padding=padding, rivals=rivals
    )


TIED: dict[str, Callable[[np.random.Generator], Problem]] = {
    "antipodal": antipodal,
    "mirrored": mirrored,
    "rotated": rotated,
    "coordinates in turn": permuted_coordinates,
    "involution": involution,
    "complex structure": complex_structure,
    "displacements": displacements,
    "repeated": repeated,
    "collinear": collinear,
    "tied behind a constant": with_constant,
    "tied and padded": padded_pairs,
}
