"""Atoms: directions in which a share of the points has one value."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve._white import whitening
from attnlearn.solve.certification._atoms import has_atom

Rng = np.random.Generator


def _planes(rng: Rng, number: int, dim: int, pieces: int, offset: float = 0.0) -> np.ndarray:
    x, normals = rng.standard_normal((number, dim)), rng.standard_normal((pieces, dim))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    normal = normals[rng.integers(pieces, size=number)]
    return _white(x - (np.vecdot(x, normal)[:, None] - offset) * normal)


def _white(x: np.ndarray) -> np.ndarray:
    return whitening(x[None], None).tokens(x[None])[0]


@pytest.mark.parametrize("kind", ["gaussian", "uniform", "laplace", "student", "sphere", "cubic surface"])
def test_points_with_a_density_have_none(kind: str, rng: Rng) -> None:
    x = rng.standard_normal((4000, 6))
    if kind == "uniform":
        x = rng.uniform(-1.7, 1.7, x.shape)
    if kind == "laplace":
        x = rng.laplace(0, 0.7, x.shape)
    if kind == "student":
        x = rng.standard_t(2.5, x.shape)
    if kind == "sphere":
        x *= np.sqrt(6) / np.linalg.norm(x, axis=1, keepdims=True)
    if kind == "cubic surface":
        x[:, 5] = x[:, 0] * x[:, 1] * x[:, 2]
    assert not has_atom(_white(x), rng)


@pytest.mark.parametrize(("dim", "pieces"), [(2, 3), (4, 3), (8, 4), (16, 3), (24, 3)])
def test_planes_have_one_each(dim: int, pieces: int, rng: Rng) -> None:
    assert has_atom(_planes(rng, 8000, dim, pieces), rng)


def test_planes_beside_the_origin(rng: Rng) -> None:
    assert has_atom(_planes(rng, 4000, 5, 3, offset=0.7), rng)


@pytest.mark.parametrize("values", [2, 3, 5, 9])
def test_flags_that_are_no_axis(values: int, rng: Rng) -> None:
    x = rng.standard_normal((3000, 5))
    x[:, 0] = rng.integers(values, size=3000) * np.sqrt(12 / (values**2 - 1))
    assert has_atom(_white(x) @ np.linalg.qr(rng.standard_normal((5, 5)))[0], rng)


def test_many_small_points_are_no_atom(rng: Rng) -> None:
    """A cloud of a millionth of the size is small in every direction, not flat in one."""
    assert not has_atom(
        rng.standard_normal((3000, 4)) * np.where(rng.random((3000, 1)) < 0.5, 1.4, 1e-6), rng
    )


def test_too_few_points_show_nothing(rng: Rng) -> None:
    assert not has_atom(_planes(rng, 15, 4, 3), rng)
