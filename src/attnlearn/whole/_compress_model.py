"""`compress_model`: every attention block of a torch model made smaller in turn, and what that does to the model.

Blocks go in the model's order. Each is recorded while the smaller ones before it stand in the place of the model's own, so that it is fitted to
what it will really see. The last tenth of the batches is not recorded: on it the model is compared with itself.

| in the folder | what |
|---|---|
| BLOCK/layer.safetensors, result.json | the smaller layer and its certificate |
| weights.safetensors | the model's own tensors with the smaller blocks in them: they load into the same class and configuration |
| model.safetensors, config.json | a transformers model with fewer keys and values, as `from_pretrained` reads it, where all blocks agree on them |
| model.json | one row for each block, and what they do to the model's outputs: their difference, the divergence of its predictions or the cosine |

A block whose result is there is not fitted again; a folder of another model, of other batches or of other sizes is refused. A certificate covers its own block on what that block sees; the difference of the model is
measured, and nothing is claimed about it. Cost: one pass of the model for each block, and one compression. What can fail: blocks that a
layer cannot hold stay as they are, with the reason.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlearn._errors import require
from attnlearn._files import read_json, write_json
from attnlearn._layer import AttentionLayer
from attnlearn._numbers import pretty
from attnlearn.compression import compress
from attnlearn.convert import from_huggingface, from_torch
from attnlearn.data import Recorded, attention_blocks, record
from attnlearn.data._blocks import Block
from attnlearn.whole._effect import Effect, effect
from attnlearn.whole._identity import folder_of, kept_apart, place_of
from attnlearn.whole._put_back import with_blocks
from attnlearn.whole._recover_model import MOST_BYTES
from attnlearn.whole._weights import Weights

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SmallerBlock:
    """One block: its outcome and error, or why it stays as it is; whether the model's own tensors can hold it."""

    name: str
    why: str = ""
    outcome: str | None = None
    error: float | None = None
    kv_floats: int | None = None
    written: bool = False

    def row(self) -> list[str]:
        """The cells of the table."""
        error = "" if self.error is None else pretty(self.error)
        said = self.outcome or f"stays as it is: {self.why}"
        return [self.name, said, str(self.kv_floats or ""), error, "yes" if self.written else "no"]


@dataclass(frozen=True)
class SmallerModel:
    """All blocks, and what they do to the model's outputs on inputs that were not recorded."""

    model: str
    blocks: tuple[SmallerBlock, ...]
    effect: Effect | None

    @property
    def achieved(self) -> bool:
        """Whether every block was made smaller with a certificate."""
        return all(block.outcome == "COMPRESSED" for block in self.blocks)

    @property
    def sentence(self) -> str:
        """What was done and what it does to the model."""
        done = sum(block.outcome is not None for block in self.blocks)
        told = f"{done} of {len(self.blocks)} blocks of {self.model} are smaller."
        if self.effect is None:
            return told
        return told + (
            f" With them {self.effect.words} on inputs that were not recorded:"
            " measured, not certified. Each certificate covers its own block."
        )

    def to_json(self) -> dict[str, Any]:
        """The table and the comparison as JSON."""
        measured = dict.fromkeys(Effect._fields) if self.effect is None else self.effect._asdict()
        own = {"model": self.model, **measured, "achieved": self.achieved}
        blocks = [vars(block) for block in self.blocks]
        return {"schema": "attnlearn/smaller-model", "version": 1, **own, "blocks": blocks}


def compress_model(
    model: torch.nn.Module,
    batches: Iterable[Any],
    folder: str | os.PathLike[str],
    *,
    max_sequences: int | None = None,
    tokens: Any = None,
    **options: Any,
) -> SmallerModel:
    """Make every attention block of `model` smaller on what it sees of `batches`, into `folder`.

    `max_sequences` and `tokens` are those of `data.record`, further `options` those of `compress`, for example `kv_heads=2`. At least two batches
    are needed: the last tenth is kept for the comparison.
    """
    given, fresh = kept_apart(batches)
    blocks, home = attention_blocks(model), Path(folder)
    require(bool(blocks), "model", "must have attention blocks", 0)
    asked = options | {"max_sequences": max_sequences, "tokens": tokens}
    with folder_of(home, compress, model, given + fresh, asked):
        return _compressed(model, blocks, given, fresh, home, asked)


def _compressed(
    model: Any, blocks: list[Block], given: list[Any], fresh: list[Any], home: Path, asked: dict[str, Any]
) -> SmallerModel:
    """All blocks in turn, and the comparison."""
    name = type(model).__name__
    weights = Weights(model)
    rows: list[SmallerBlock] = []
    found: dict[str, AttentionLayer] = {}
    for block in blocks:
        with with_blocks(model, found):
            row, layer = _one(model, block, given, home, **asked)
        if layer is not None:
            found[block.name] = layer
            weights.put(block, layer)
        rows.append(row)
        write_json(home / "model.json", SmallerModel(name, tuple(rows), None).to_json())
    every = [block.name for block in blocks]
    rows = [replace(row, written=weights.holds(row.name, every)) for row in rows]
    whole = SmallerModel(name, tuple(rows), effect(model, fresh, found))
    weights.save(home, every)
    write_json(home / "model.json", whole.to_json())
    return whole


def _one(
    model: Any, block: Block, batches: list[Any], home: Path, *, max_sequences: int | None, tokens: Any, **options: Any
) -> tuple[SmallerBlock, AttentionLayer | None]:  # fmt: skip
    """One block recorded and made smaller, unless its result is there already."""
    if not block.supported:
        return SmallerBlock(block.name, block.verdict), None
    place = place_of(home, block.name)
    result, saved = place / "result.json", place / "layer.safetensors"
    if not result.exists():
        try:
            source = _source(model, block)
            with tempfile.TemporaryDirectory(dir=place) as scratch:
                recorded = Path(scratch) / "examples"
                record(model, block.name, batches, recorded, max_sequences=max_sequences, tokens=tokens)
                solution = compress(source, Recorded(recorded), raise_on_failure=False, **options)
        except ValueError as refused:
            return SmallerBlock(block.name, str(refused)), None
        if solution.layer is None:
            return SmallerBlock(block.name, solution.verdict), None
        solution.layer.save(saved, support=solution.stats.get("support"))
        write_json(result, solution.to_json(saved))
    stats = read_json(result, MOST_BYTES)
    shape = stats["stats"]["shape"]
    row = SmallerBlock(block.name, "", stats["outcome"], shape["error"], shape["kv_floats"])
    return row, AttentionLayer.load(saved)


def _source(model: Any, block: Block) -> AttentionLayer:
    """The layer that the block has."""
    if block.layout == "torch":
        return from_torch(model.get_submodule(block.name))
    return from_huggingface(model, prefix=block.name)
