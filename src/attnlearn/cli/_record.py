"""`attnlearn record`: activations of one attention block of a torch model, as a folder that `recover` reads."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
        FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION. The function is called without arguments and returns
        (model, batches): a torch model and an iterable of its inputs. It is your code and it is executed. A third
        entry, a tokenizer, keeps the tokens of some sequences as text for the report.
    block
        Name of the block inside the model.
    folder
        The folder to write; it appears whole or not at all.
    max_sequences
        Stop after this many sequences.
    """
    from attnlearn import data
    from attnlearn.data._writer import require_new_folder

    require_outputs(json=json)
    if folder is not None:
        require_new_folder(folder)
    model, batches, *named = resolve(factory)()
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


def resolve(spec: str) -> Callable[[], Any]:
    """The function named by FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION."""
    place, colon, name = spec.rpartition(":")
    if not colon:
        raise ValueError(f"factory: must look like FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, got {spec}")
    try:
        module = _module_from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, name)
    except (ImportError, AttributeError, OSError) as error:
        raise ValueError(
            f"factory: must name a function that can be imported, got {spec} ({error})"
        ) from error


def _module_from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ImportError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
