"""Passes in blocks: the same sums here and on workers."""

from __future__ import annotations

import operator

import numpy as np

from attnlearn.data import as_examples
from attnlearn.engine import Engine
from attnlearn.recovery._blocks import LOCAL, over_blocks


def sums(examples, indices):
    return examples.take(indices).x.sum()


def test_blocks_are_combined_in_order_wherever_they_are_computed(rng):
    x = rng.standard_normal((20_000, 2, 2))
    examples, chosen = as_examples(x, x), np.arange(1, 20_000, 2)
    here = over_blocks(sums, examples, chosen, operator.add)
    assert here == over_blocks(sums, examples, chosen, operator.add, Engine(workers=2))
    assert np.isclose(here, x[chosen].sum())
    lengths = over_blocks(lambda examples, indices: [len(indices)], examples, chosen, operator.add, LOCAL)
    assert sum(lengths) == 10_000
    assert len(lengths) > 1
