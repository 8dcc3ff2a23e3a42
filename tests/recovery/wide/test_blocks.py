"""The preconditioner of students."""

from __future__ import annotations

import numpy as np

from attnlearn.recovery.wide._blocks import Blocks
from tests.recovery.wide._students import examples, layer, tangent


def test_the_preconditioner_is_undone_by_its_inverse(rng):
    truth = layer(rng)
    at = tangent(truth, examples(truth, rng, padded=False, causal=False), causal=False)
    by = Blocks.of(at)
    t = at.slope().shaped(rng.standard_normal(at.slope().flat().size))
    np.testing.assert_allclose(by.solve(by.times(t)).flat(), t.flat(), rtol=1e-2, atol=1e-2)
