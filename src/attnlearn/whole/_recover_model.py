"""`recover_model`: every attention block of a torch model recorded and recovered in turn.

| in the folder | what |
|---|---|
| BLOCK/examples | what the block received and put out |
| BLOCK/layer.safetensors, result.json, report.html | the answer |
| model.json, index.html | one table over all blocks, and how much the model differs with the recovered blocks in place of its own |

A block whose result is there is not recovered again, so a run that was interrupted goes on where it stopped. A folder of another
model, of other batches or of other options is refused. The last tenth of the batches is not recorded: on it the model is compared with
itself.

Cost: one pass of the model for each block, and one recovery. What can fail: blocks that cannot be recorded are listed with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlearn._errors import require
from attnlearn._files import read_json, write_json
from attnlearn._layer import AttentionLayer
from attnlearn._numbers import pretty
from attnlearn._outcome import Outcome
from attnlearn.data import Recorded, attention_blocks, record
from attnlearn.data._blocks import Block
from attnlearn.recovery import recover
from attnlearn.reporting import report
from attnlearn.whole._effect import effect
from attnlearn.whole._identity import folder_of, kept_apart, place_of
from attnlearn.whole._page import write_page

if TYPE_CHECKING:
    import torch

MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class BlockResult:
    """One block: how its recovery ended (None: it cannot be recorded, and `why` says so), and where everything is."""

    name: str
    why: str = ""
    outcome: str | None = None
    certified: bool = False
    heads: int | None = None
    error: float | None = None
    seconds: float = 0.0
    folder: str = ""

    def row(self) -> list[str]:
        """The cells of the table."""
        said = self.outcome or f"not recorded: {self.why}"
        error = "" if self.error is None else pretty(self.error)
        return [
            self.name, said, "yes" if self.certified else "no", str(self.heads or ""), error, f"{self.seconds:.0f}",
        ]  # fmt: skip


@dataclass(frozen=True)
class WholeModel:
    """All blocks, which of them were put back, and the relative difference of the model's outputs on inputs it was not recorded on."""

    model: str
    blocks: tuple[BlockResult, ...]
    put_back: tuple[str, ...]
    difference: float | None

    @property
    def achieved(self) -> bool:
        """Whether every block was certified."""
        return all(block.certified for block in self.blocks)

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        sure = sum(block.certified for block in self.blocks)
        told = f"{sure} of {len(self.blocks)} blocks of {self.model} are certified."
        if self.difference is None:
            return told + " None could be put back."
        number = len(self.put_back)
        return told + (
            f" With {number} recovered block{'s' * (number > 1)} in place of its own, the outputs of the model differ by "
            f"{pretty(self.difference)} of their norm on inputs that were not recorded."
        )

    def rows(self) -> list[list[str]]:
        """The table, a row for each block."""
        return [block.row() for block in self.blocks]

    def to_json(self) -> dict[str, Any]:
        """The table and the comparison as JSON."""
        return {
            "schema": "attnlearn/model", "version": 1, "model": self.model, "blocks": [vars(block) for block in self.blocks],
            "put_back": list(self.put_back), "difference": self.difference, "achieved": self.achieved,
        }  # fmt: skip


def recover_model(
    model: torch.nn.Module,
    batches: Iterable[Any],
    folder: str | os.PathLike[str],
    *,
    layers: str | Sequence[str] = "all",
    max_sequences: int | None = None,
    tokens: Any = None,
    **options: Any,
) -> WholeModel:
    """Recover the attention blocks of `model` ("all", or their names) from what they do on `batches`, into `folder`.

    `max_sequences` and `tokens` are those of `data.record`, further `options` those of `recover`. At least two batches are needed: the last
    tenth is kept for the comparison.
    """
    known, home = attention_blocks(model), Path(folder)
    chosen = known if layers == "all" else _named(known, layers)
    require(bool(chosen), "model", "must have attention blocks", 0)
    given, fresh = kept_apart(batches)
    asked = options | {"max_sequences": max_sequences, "tokens": tokens}
    with folder_of(home, recover, model, given + fresh, asked):
        return _recovered(model, chosen, given, fresh, home, asked)


def _recovered(
    model: Any, chosen: list[Block], given: list[Any], fresh: list[Any], home: Path, asked: dict[str, Any]
) -> WholeModel:
    """The chosen blocks in turn, and the comparison."""
    blocks, found = [], {}
    for block in chosen:
        result, layer = _one(model, block, given, home, **asked)
        blocks.append(result)
        if layer is not None:
            found[block.name] = layer
        _write(home, WholeModel(type(model).__name__, tuple(blocks), tuple(found), None))
    moved = effect(model, fresh, found)
    difference = None if moved is None else moved.difference
    whole = WholeModel(type(model).__name__, tuple(blocks), tuple(found), difference)
    _write(home, whole)
    return whole


def _named(known: list[Block], names: str | Sequence[str]) -> list[Block]:
    names = [names] if isinstance(names, str) else list(names)
    by_name = {block.name: block for block in known}
    missing = [name for name in names if name not in by_name]
    rule = f"must be all or names of attention blocks ({', '.join(by_name)})"
    require(not missing, "layers", rule, ", ".join(missing))
    return [by_name[name] for name in names]


def _one(
    model: Any, block: Block, batches: list[Any], home: Path, *, max_sequences: int | None, tokens: Any, **options: Any
) -> tuple[BlockResult, AttentionLayer | None]:  # fmt: skip
    """One block recorded and recovered, unless its result is there already."""
    if not block.supported:
        return BlockResult(block.name, block.verdict), None
    place = place_of(home, block.name)
    examples, result, saved = place / "examples", place / "result.json", place / "layer.safetensors"
    if not _finished(result):
        if not examples.exists():
            record(model, block.name, batches, examples, max_sequences=max_sequences, tokens=tokens)
        solution = recover(
            Recorded(examples), raise_on_failure=False, checkpoint=place / "checkpoint", **options
        )
        if solution.layer is not None:
            solution.layer.save(saved, support=solution.stats.get("support"))
        write_json(result, solution.to_json(saved if solution.layer is not None else None))
    if not (place / "report.html").exists() or not _finished(result):
        report(result, place / "report.html")
    document = read_json(result, MOST_BYTES)
    layer = AttentionLayer.load(saved) if saved.exists() else None
    return _summary(block.name, document, layer, place.name), layer


def _finished(result: Path) -> bool:
    """Whether there is a result, and more time would not make it a better one."""
    return result.exists() and read_json(result, MOST_BYTES)["outcome"] != Outcome.BUDGET_SPENT.name


def _summary(name: str, document: dict[str, Any], layer: AttentionLayer | None, folder: str) -> BlockResult:
    return BlockResult(
        name,
        outcome=document["outcome"],
        certified=bool(document["certified"]),
        heads=None if layer is None else layer.num_heads,
        error=document["stats"].get("select_error"),
        seconds=sum(phase["seconds"] for phase in document["phases"]),
        folder=folder,
    )


def _write(home: Path, whole: WholeModel) -> None:
    write_json(home / "model.json", whole.to_json())
    write_page(home / "index.html", whole.model, whole.sentence, whole.blocks)
