"""The setting of claims beside errors: when data are scarce, what is left of the outputs, what errors are relative to."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.solve._batch import Batch
from attnlearn.solve._unknowns import layer_unknowns
from attnlearn.solve.noise._setting import Setting, part_norms

from ._problems import TRUTH


def at(used: Batch, held: Batch | None = None, rank: int | None = None) -> Setting:
    return Setting(TRUTH, held or used, used, 1.0, 0.05, rank, "document", "")


def zeros(num: int, mask: np.ndarray | None = None) -> Batch:
    return Batch(np.zeros((num, 4, 5)), np.zeros((num, 4, 5)), mask)


def test_a_half_needs_two_equations_for_every_unknown():
    enough = -(-4 * layer_unknowns(TRUTH, None) // (4 * 5))  # sequences of 4 rows with 5 outputs each
    assert not at(zeros(enough)).scarce
    assert at(zeros(enough - 1)).scarce
    assert not at(zeros(enough - 1), rank=1).scarce  # fewer unknowns


def test_padded_rows_are_no_equations():
    enough = -(-4 * layer_unknowns(TRUTH, None) // (4 * 5))
    half = np.arange(4) < np.full((enough, 1), 2)
    assert at(zeros(enough, half)).scarce
    assert not at(zeros(2 * enough, np.concatenate([half, half]))).scarce


def test_the_residual_is_that_of_the_certify_side_without_padded_rows(rng):
    x, errors = rng.standard_normal((2, 6, 4, 5))
    mask = np.arange(4) < rng.integers(2, 4, (6, 1))
    held = Batch(x, TRUTH(x, mask) + errors, mask)
    np.testing.assert_allclose(at(zeros(3), held).residual, -errors * mask[..., None], atol=1e-12)


def test_the_assumption_names_the_unit():
    assert at(zeros(1)).errors.endswith("independent between documents")


def test_norms_of_the_parts(rng):
    theta, w = rng.standard_normal((2, 3, 4, 4))
    norms = part_norms(AttentionLayer(theta, w, 10 * np.eye(3, 4)))
    assert norms["theta"] == pytest.approx([np.linalg.norm(part) for part in theta])
    assert norms["w"] == pytest.approx([np.linalg.norm(part) for part in w])
    assert norms["query_bias"] == pytest.approx([10.0] * 3)
    assert norms["output_bias"] == pytest.approx(
        [1e-3 * np.linalg.norm(w)]
    )  # a zero bias has no norm of its own


def test_nothing_is_relative_to_zero():
    norms = part_norms(AttentionLayer(np.zeros((1, 3, 3)), np.zeros((1, 3, 3))))
    assert all(np.all(part > 0) for part in norms.values())
