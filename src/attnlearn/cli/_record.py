"""`attnlearn record`: activations of one attention block of a torch model, as a folder that `recover` reads."""

from __future__ import annotations

from pathlib import Path

from attnlearn.cli._console import Console, Json
from attnlearn.cli._outputs import require_outputs


def record(
    factory: str,
    block: str | None = None,
    folder: Path | None = None,
    /,
    *,
    max_sequences: int | None = None,
    json: Json = None,
) -> None:
    """Record the inputs and outputs of an attention block; without a block, list the candidates.

    Parameters
    ----------
    factory
        FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION. The function is called without arguments and returns (model, batches): a torch model and an iterable of its inputs. It is your code and it is executed. A third entry, a tokenizer, keeps the tokens of some sequences as text for the report.
    block
        Name of the block inside the model.
    folder
        The folder to write; it appears whole or not at all.
    max_sequences
        Stop after this many sequences.
    """
    from attnlearn import data
    from attnlearn._importing import resolve
    from attnlearn.data._writer import require_new_folder

    require_outputs(json=json)
    if folder is not None:
        require_new_folder(folder)
    model, batches, *named = resolve(factory, "factory")()
    console = Console(json)
    if block is None:
        blocks = data.attention_blocks(model)
        console.table(
            ["block", "layout", "heads", "verdict"],
            [[b.name, b.layout, str(b.num_heads), b.verdict] for b in blocks],
        )
        console.json({"schema": "attnlearn/blocks", "version": 1, "blocks": [vars(b) for b in blocks]})
        return
    if folder is None:
        raise ValueError("folder: must be given together with a block, got None")
    recorded = data.record(
        model, block, batches, folder, max_sequences=max_sequences, tokens=named[0] if named else None
    )
    console.text(f"wrote {len(recorded):,} sequences of {block} to {folder}")
    console.json(
        {
            "schema": "attnlearn/record",
            "version": 1,
            "folder": Path(str(folder)).name,
            "sequences": len(recorded),
        }
    )
