"""A torch block with batches: recorded on as many as it takes."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import Outcome, Solution, distance, recover
from attnlearn.convert import from_torch
from attnlearn.recovery import _from_block

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def block():
    torch.manual_seed(0)
    made = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        made.in_proj_weight.mul_(3.0)
    return made


def batches(number: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(number):
        yield torch.randn(250, 5, 6, dtype=torch.float64, generator=generator)


def test_a_block_is_recovered_from_batches(block):
    found = recover(block, batches(10), progress=False)
    assert found.certified
    assert distance(found.layer, from_torch(block)).max < 1e-8


def test_more_is_recorded_until_it_is_enough(block, monkeypatch):
    monkeypatch.setattr(_from_block, "FIRST", 400)
    seen = []

    def run(recorded) -> Solution:
        seen.append(len(recorded))
        if len(recorded) < 1_500:
            return Solution.failed(Outcome.TOO_FEW_EXAMPLES, examples_needed=1_600)
        return Solution.failed(Outcome.NOT_ESTABLISHED)

    assert _from_block.from_block(block, batches(20), run).outcome is Outcome.NOT_ESTABLISHED
    assert seen == [500, 1_750]
    assert _from_block.from_block(block, batches(3), run).outcome is Outcome.TOO_FEW_EXAMPLES
    assert seen[2:] == [500, 750]  # there are no more


def test_what_is_no_block_or_no_batches_is_one_line(block):
    with pytest.raises(ValueError, match="x: must hold one attention block"):
        recover(torch.nn.Linear(3, 3), batches(1))
    with pytest.raises(ValueError, match="y: must be the batches"):
        recover(block)
    with pytest.raises(ValueError, match="y: must be batches, not one array"):
        recover(block, np.zeros((2, 3, 6)))
