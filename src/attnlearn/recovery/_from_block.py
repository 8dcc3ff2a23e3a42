"""`recover(block, batches)`: a torch block is recorded on as many batches as the run turns out to need.

The first round records `FIRST` sequences. As long as the run ends TOO_FEW_EXAMPLES, more are recorded: as many as it asks for, at least twice
as many, until the batches end. Recordings lie in a temporary folder and are read from there a chunk at a time, so memory holds
the model, one batch and what `recover` itself needs.

What can fail: a module without an attention block, or with several (`attnlearn.whole.recover_model` takes whole models).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attnlearn._errors import require
from attnlearn._result import Outcome, Solution
from attnlearn.data import Recorded, attention_blocks, record
from attnlearn.recovery._calibration import LEAST_ROWS

FIRST = LEAST_ROWS
"""Sequences of the first round."""


def is_block(x: Any) -> bool:
    """Whether x is a torch module; torch is not imported for it.

    >>> is_block([1.0])
    False
    """
    return any(base.__module__.startswith("torch.nn.modules") for base in type(x).__mro__)


def from_block(block: Any, batches: Any, run: Callable[[Recorded], Solution]) -> Solution:
    """The solution of `run` on recordings of the block that grow until it does not ask for more."""
    require(batches is not None, "y", "must be the batches that the block is to be run on", None)
    rule = "must be batches, not one array: wrap it in a list"
    require(not hasattr(batches, "shape"), "y", rule, type(batches).__name__)
    model, name = _callable_block(block)
    source, taken = iter(batches), []
    wanted = FIRST
    with tempfile.TemporaryDirectory(prefix="attnlearn-") as home:
        while True:
            taken.extend(_until(source, wanted - sum(map(_sequences, taken))))
            ended = sum(map(_sequences, taken)) < wanted
            solution = run(record(model, name, taken, Path(home) / f"round-{wanted}"))
            if solution.outcome is not Outcome.TOO_FEW_EXAMPLES or ended:
                return solution
            wanted = max(2 * wanted, int(solution.stats.get("examples_needed") or 0))


def _until(source: Iterator[Any], number: int) -> Iterator[Any]:
    """Batches until so many sequences are there."""
    while number > 0:
        batch = next(source, None)
        if batch is None:
            return
        number -= _sequences(batch)
        yield batch


def _sequences(batch: Any) -> int:
    parts: Iterable[Any] = (
        batch.values() if hasattr(batch, "values") and not hasattr(batch, "shape") else [batch]
    )
    if isinstance(batch, (tuple, list)):
        parts = batch
    first = next((part for part in parts if hasattr(part, "shape") and len(part.shape)), None)
    require(first is not None, "y", "must hold tensors", type(batch).__name__)
    assert first is not None
    return int(first.shape[0])


def _callable_block(block: Any) -> tuple[Any, str]:
    """A module that can be called with a batch, and the name of the attention block in it."""
    import torch

    if isinstance(block, torch.nn.MultiheadAttention):
        return _SelfAttention(block), "block"
    names = [found.name for found in attention_blocks(block) if found.supported]
    rule = "must hold one attention block that can be recorded (attnlearn.whole.recover_model takes several)"
    require(len(names) == 1, "x", rule, ", ".join(names) or "none")
    return block, names[0]


def _SelfAttention(block: Any) -> Any:
    """torch's attention as a module of one argument, its tokens."""
    import torch

    class SelfAttention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Any) -> Any:
            return self.block(x, x, x, need_weights=False)[0]

    return SelfAttention()
