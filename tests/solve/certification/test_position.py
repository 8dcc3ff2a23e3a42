"""General position: kinds of tokens, and what must be said of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest

from attnlearn.solve._sequences import evidence_wanted
from attnlearn.solve.certification._position import Position, measure_position

N, K, D = 400, 4, 3
Rng = np.random.Generator
FREE = {"spread": 1.0, "tied": 0, "functions": 0, "balanced": 0, "continuous": True, "whole": True}


def gauss(rng: Rng, keys: int = K, dim: int = D, number: int = N) -> np.ndarray:
    return rng.standard_normal((number, keys, dim))


def shuffled(x: np.ndarray, rng: Rng) -> np.ndarray:
    """The tokens of every sequence in an order of its own."""
    return np.take_along_axis(x, np.argsort(rng.random(x.shape[:2]), axis=1)[..., None], axis=1)


def with_constant(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.ones((len(x), 1, x.shape[2])), x], axis=1)


def normed(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=2, keepdims=True)
    return centred / centred.std(axis=2, keepdims=True)


def words(rng: Rng) -> np.ndarray:
    """Four different ones of fifty words."""
    places = np.argsort(rng.random((N, 50)), axis=1)[:, :K]
    return rng.standard_normal((50, D))[places]


def antipodal(rng: Rng, number: int = N) -> np.ndarray:
    u = gauss(rng, 2, number=number)
    return np.concatenate([u, -u], axis=1)


def mirrored(rng: Rng) -> np.ndarray:
    u = gauss(rng, 2)
    return np.concatenate([u, u * np.array([1.0, 1.0, -1.0])], axis=1)


def displaced(rng: Rng) -> np.ndarray:
    """Two tokens, and the same two moved by one displacement."""
    u = gauss(rng, 2)
    return np.concatenate([u, u + gauss(rng, 1)], axis=1)


def collinear(rng: Rng) -> np.ndarray:
    return gauss(rng, 1) + gauss(rng, 1) * rng.standard_normal((N, K, 1))


def summed(rng: Rng) -> np.ndarray:
    u = gauss(rng, 3)
    return np.concatenate([u, u.sum(axis=1, keepdims=True)], axis=1)


def product(rng: Rng) -> np.ndarray:
    u = gauss(rng, 2)
    return np.concatenate([u, u[:, :1] * u[:, 1:]], axis=1)


def cyclic(rng: Rng) -> np.ndarray:
    """Every coordinate of a token moved to the next, three times round."""
    u = gauss(rng, 1)
    return np.concatenate([np.roll(u, turn, axis=2) for turn in range(3)], axis=1)


def centred(rng: Rng) -> np.ndarray:
    x = gauss(rng)
    return x - x.mean(axis=1, keepdims=True)


FREE_KINDS: dict[str, tuple[Callable[[Rng], np.ndarray], dict]] = {
    "gaussian": (gauss, {"keys": 4}),
    "float32": (lambda rng: gauss(rng).astype(np.float32), {"keys": 4}),
    "heavy-tailed": (lambda rng: rng.standard_t(1.5, (N, K, D)), {"keys": 4}),
    "uniform": (lambda rng: rng.random((N, K, D)), {"keys": 4}),
    "correlated": (lambda rng: gauss(rng) @ np.array([[1, 0.9, 0], [0, 0.1, 0.5], [0, 0, 2.0]]), {"keys": 4}),
    "cumulative": (lambda rng: gauss(rng).cumsum(axis=1), {"keys": 4}),
    "layer-normed": (lambda rng: normed(gauss(rng, dim=5)), {"keys": 4}),
    "constant first": (lambda rng: with_constant(gauss(rng)), {"keys": 5}),
    "constant somewhere": (lambda rng: shuffled(with_constant(gauss(rng)), rng), {"keys": 5}),
    "words": (words, {"keys": 4, "continuous": False}),
    "plus and minus one": (lambda rng: rng.choice([-1.0, 1.0], (N, K, 6)), {"keys": 4, "continuous": False}),
    "two of unequal multiplicity": (lambda rng: np.repeat(gauss(rng, 2), (2, 1), axis=1), {"keys": 3}),
}

TIED_KINDS: dict[str, tuple[Callable[[Rng], np.ndarray], dict]] = {
    "antipodal": (antipodal, {"keys": 4, "tied": 6, "functions": 3, "balanced": 3, "quadrics": 0}),
    "shuffled antipodal": (lambda rng: shuffled(antipodal(rng), rng), {"tied": 4, "functions": 3, "balanced": 3}),
    "mirror images": (mirrored, {"tied": 6, "functions": 3, "balanced": 1, "continuous": False}),
    "shuffled mirror images": (lambda rng: shuffled(mirrored(rng), rng), {"tied": 2, "balanced": 1}),
    "displaced": (displaced, {"tied": 3, "functions": 3, "balanced": 0, "spread": 2 / 3}),
    "sums": (summed, {"tied": 3, "functions": 3, "balanced": 0, "spread": 1.0}),
    "products": (product, {"keys": 3, "tied": 0, "functions": 3, "balanced": 0}),
    "cyclic": (cyclic, {"keys": 3, "tied": 6, "functions": 3, "balanced": 2}),
    "shuffled cyclic": (lambda rng: shuffled(cyclic(rng), rng), {"tied": 4, "balanced": 2}),
    "centred": (centred, {"tied": 3, "functions": 3, "balanced": 3, "spread": 1.0, "continuous": True}),
}  # fmt: skip


def differences(found: Position, wanted: dict) -> dict:
    """What is not as wanted: {name: (found, wanted)}."""
    values = asdict(found)
    return {
        name: (values[name], value)
        for name, value in wanted.items()
        if not np.isclose(values[name], value, rtol=1e-12)
    }


@pytest.mark.parametrize("kind", FREE_KINDS)
def test_free_tokens_are_found_free(kind: str, rng: Rng) -> None:
    make, wanted = FREE_KINDS[kind]
    found = measure_position(make(rng), None)
    assert not differences(found, {**FREE, **wanted})
    assert found.free
    assert not found.centred


@pytest.mark.parametrize("kind", TIED_KINDS)
def test_relations_are_found(kind: str, rng: Rng) -> None:
    make, wanted = TIED_KINDS[kind]
    found = measure_position(make(rng), None)
    assert not differences(found, wanted)
    assert not found.free


def test_only_the_sum_is_fixed_in_centred_sequences(rng: Rng) -> None:
    assert measure_position(centred(rng), None).centred
    in_two = centred(rng)
    in_two[..., 2] += rng.standard_normal((N, 1))  # the sum varies in one of three directions
    assert measure_position(in_two, None).centred
    for kind in ("antipodal", "mirror images", "cyclic", "shuffled cyclic", "sums", "displaced", "products"):
        assert not measure_position(TIED_KINDS[kind][0](rng), None).centred, kind


def test_shuffled_antipodal_sequences_are_more_than_centred(rng: Rng) -> None:
    """Places that hold a pair in a third of the sequences give them away, and so does their spread."""
    found = measure_position(shuffled(antipodal(rng), rng), None)
    assert not found.centred
    assert found.spread == pytest.approx(2 / 3)


def test_two_tokens_twice_are_two_keys(rng: Rng) -> None:
    assert measure_position(np.repeat(gauss(rng, 2), 2, axis=1), None).keys == 2
    assert measure_position(shuffled(np.repeat(gauss(rng, 2), 2, axis=1), rng), None).keys == 2
    assert measure_position(gauss(rng, 1), None).keys == 1


def test_a_single_free_token_beside_a_constant_says_little(rng: Rng) -> None:
    x = np.repeat(with_constant(gauss(rng, 1)), (2, 1), axis=1)
    assert measure_position(x, None).keys == 2


def test_collinear_tokens_have_no_spread(rng: Rng) -> None:
    found = measure_position(collinear(rng), None)
    assert found.spread == pytest.approx(1 / 3)
    assert (found.tied, found.balanced) == (1, 0)


def test_a_few_free_sequences_do_not_hide_a_relation(seed: int, rng: Rng) -> None:
    x = antipodal(rng, 2000)
    x[rng.choice(2000, 10, replace=False)] = gauss(rng, number=10)
    found = measure_position(x, None, seed)
    assert (found.tied, found.functions) == (6, 3)
    assert not found.free


def test_few_sequences_with_three_keys_do_not_count(rng: Rng) -> None:
    x = np.repeat(gauss(rng, 2), 2, axis=1)
    enough = evidence_wanted()
    x[: enough - 1] = gauss(rng, number=enough - 1)
    assert measure_position(x, None).keys == 2
    x[enough - 1] = gauss(rng, number=1)
    assert measure_position(x, None).keys == 4


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("gaussian", FREE), ("antipodal", {"tied": 6, "balanced": 0}), ("centred", {"tied": 3, "balanced": 0})],
)
def test_sequences_of_several_lengths_are_judged_by_the_commonest(kind: str, wanted: dict, rng: Rng) -> None:
    """Three in four have four tokens; what stands in padded places does not count."""
    make = {**FREE_KINDS, **TIED_KINDS}[kind][0]
    x = np.concatenate([make(rng), gauss(rng, 3)], axis=1)
    mask = np.arange(7) < rng.permutation(np.repeat([4, 4, 4, 7], N // 4))[:, None]
    assert not differences(measure_position(x, mask), {**wanted, "keys": 7})


def test_too_few_sequences_to_stack_all_tokens(rng: Rng) -> None:
    """With 60 sequences of 12 tokens in 3 directions only some tokens at a time are compared, and an exact sum is still found."""
    x = gauss(rng, 12, number=60)
    found = measure_position(x, None)
    assert (found.tied, found.whole) == (0, False)
    x = np.concatenate([x[:, :6], x[:, :6] @ np.diag([1.0, 2.0, 3.0])], axis=1)
    assert measure_position(x, None).tied > 0


def _turned(x: np.ndarray, rng: Rng) -> np.ndarray:
    return x @ np.linalg.qr(rng.standard_normal((x.shape[2],) * 2))[0]


def test_tokens_in_a_union_of_subspaces_lie_on_quadrics(rng: Rng) -> None:
    part = rng.random((400, 4, 1)) < 0.5
    x = rng.standard_normal((400, 4, 4)) * np.where(part, np.arange(4) < 2, np.arange(4) >= 2)
    assert measure_position(_turned(x, rng), None).quadrics == 4  # products of one coordinate of each part
    one = rng.standard_normal((400, 5, 1)) * np.eye(4)[rng.integers(4, size=(400, 5))]
    assert measure_position(_turned(one, rng), None).quadrics >= 6


def test_an_ellipsoid_is_no_union(rng: Rng) -> None:
    x = rng.standard_normal((400, 4, 4))
    x = x / np.linalg.norm(x, axis=2, keepdims=True) * [1.0, 2.0, 0.5, 1.0] + [3.0, 0.0, 1.0, 0.0]
    found = measure_position(_turned(x, rng), None)
    assert found.quadrics == 0
    assert found.continuous


@pytest.mark.parametrize("values", [2, 4])
def test_few_values_in_a_direction_that_is_no_axis(values: int, rng: Rng) -> None:
    x = rng.standard_normal((600, 4, 5))
    x[..., 0] = rng.integers(values, size=(600, 4))
    found = measure_position(_turned(x, rng), None)
    assert not found.continuous
    assert found.quadrics == 0


def _of_two_lengths(short: np.ndarray, long: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Short sequences and long ones as one padded batch."""
    missing = long.shape[1] - short.shape[1]
    x = np.concatenate([np.pad(short, ((0, 0), (0, missing), (0, 0))), long])
    return x, np.arange(long.shape[1]) < np.repeat([short.shape[1], long.shape[1]], [len(short), len(long)])[
        :, None
    ]


def test_a_map_that_permutes_the_keys_at_every_length_leaves_the_mean_fixed(rng: Rng) -> None:
    """Short sequences lie in the mirror, long ones beside their images: each length alone, the commonest first, shows too little."""
    flat = gauss(rng, 4, number=800) * [1.0, 1.0, 0.0]
    u = gauss(rng, 3)
    long = np.concatenate([u, u * [1.0, 1.0, -1.0]], axis=1)
    found = measure_position(*_of_two_lengths(flat, long))
    assert found.balanced == 1
    assert found.tied > 0


def test_centred_sequences_of_two_lengths_are_centred(rng: Rng) -> None:
    long = gauss(rng, 6)
    found = measure_position(*_of_two_lengths(centred(rng), long - long.mean(axis=1, keepdims=True)))
    assert found.centred


def test_sequences_in_a_subspace_do_not_speak_for_the_others(rng: Rng) -> None:
    flat = gauss(rng, 4, number=800) * [1.0, 1.0, 0.0]
    assert measure_position(*_of_two_lengths(flat, gauss(rng, 6))).free
    other = gauss(rng, 6) * [0.0, 0.0, 1.0]
    assert not measure_position(*_of_two_lengths(flat, other)).free


def test_two_ties_in_turn_are_found(rng: Rng) -> None:
    """Half of the sequences antipodal, half mirrored: no relation holds for all."""
    u = gauss(rng, 2, number=2000)
    image = np.where(rng.random((2000, 1, 1)) < 0.5, -u, u * [1.0, 1.0, -1.0])
    found = measure_position(np.concatenate([u, image], axis=1), None)
    assert found.tied > found.balanced
    assert not found.centred


@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_tokens_in_a_union_of_planes_are_no_density(pieces: int, rng: Rng) -> None:
    x, normals = rng.standard_normal((1500, 4, 5)), rng.standard_normal((pieces, 5))
    normal = normals[rng.integers(pieces, size=(1500, 4))]
    x -= np.vecdot(x, normal)[..., None] * normal / np.vecdot(normal, normal)[..., None]
    found = measure_position(x, None)
    assert not found.continuous
    assert found.quadrics == (pieces == 2)
