"""Products over a chunk: each is the sum that it stands for."""

from __future__ import annotations

import numpy as np

from attnlearn.scores._products import (
    PIECE,
    key_scores,
    mix,
    pair,
    pair_tokens,
    product,
    project,
    project_back,
    turn,
)


def test_projections_and_pairs(rng):
    x, a, c = rng.standard_normal((3, 5, 4)), rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 4))
    queries = project(x, a)
    np.testing.assert_allclose(queries, np.einsum("nkd,mdr->nkmr", x, a))
    np.testing.assert_allclose(key_scores(x, c)[:, 0], np.einsum("nkd,md->nmk", x, c))
    keys = rng.standard_normal((3, 6, 2, 3))
    np.testing.assert_allclose(pair(queries, keys), np.einsum("namr,nbmr->namb", queries, keys))
    whole = rng.standard_normal((3, 5, 2, 4))
    np.testing.assert_allclose(pair_tokens(whole, turn(x)), np.einsum("namd,nbd->namb", whole, x))
    weights = rng.standard_normal((3, 5, 2, 5))
    np.testing.assert_allclose(mix(weights, x), np.einsum("namb,nbd->namd", weights, x), atol=1e-12)


def test_project_back_is_the_adjoint_of_project(rng):
    x, a, g = (
        rng.standard_normal((3, 5, 4)),
        rng.standard_normal((2, 4, 3)),
        rng.standard_normal((3, 5, 2, 3)),
    )
    np.testing.assert_allclose(np.vdot(project(x, a), g), np.vdot(a, project_back(x, g)))


def test_a_product_in_pieces_is_the_product(rng):
    a, b = rng.standard_normal((3 * PIECE + 1, PIECE)), rng.standard_normal((PIECE, PIECE))
    np.testing.assert_allclose(product(a, b), a @ b)
