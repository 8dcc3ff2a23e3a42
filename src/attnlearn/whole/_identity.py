"""Which run a folder of a whole model belongs to: results of another model, of other inputs or of other options are refused.

A block whose result is in the folder is not learned again. So the folder is a checkpoint: it is locked while a run works in it, and its
`identity.json` names what must be the same when the run goes on. Time limits, engines and progress may differ.

Cost: one hash of the weights and of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._version import __version__
from attnlearn.engine import Checkpoint, array_hash

FRESH = 10
"""One batch in ten is kept for the comparison."""
FREE = {"time_limit", "engine", "progress", "device", "checkpoint", "resume", "raise_on_failure"}
"""Options that do not change which answer is looked for."""


def kept_apart(batches: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The batches that are recorded, and the last tenth, on which the model is compared with itself.

    >>> kept_apart(range(3))
    ([0, 1], [2])
    """
    given = list(batches)
    require(len(given) > 1, "batches", "must hold at least two, one of them for the comparison", len(given))
    fresh = max(1, len(given) // FRESH)
    return given[:-fresh], given[-fresh:]


def place_of(home: Path, block: str) -> Path:
    """The folder of one block, made where it is missing."""
    place = home / (block.replace("/", "_") or "block")
    place.mkdir(exist_ok=True)
    return place


def folder_of(
    home: Path, verb: Callable, model: Any, batches: list[Any], options: Mapping[str, Any]
) -> Checkpoint:
    """The folder of a run of `verb` on every block, locked; `CheckpointError` names what differs where it belongs to another run."""
    parameters = signature(verb).parameters.values()
    options = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY} | dict(options)
    identity = {
        "verb": verb.__name__,
        "version": __version__,
        "model": type(model).__name__,
        "weights": array_hash(*leaves(dict(model.state_dict()))),
        "batches": array_hash(*leaves(batches)),
        "options": {name: repr(value) for name, value in sorted(options.items()) if name not in FREE},
    }
    return Checkpoint(home, identity, resume=True)


def leaves(value: Any) -> Iterator[np.ndarray]:
    """Every array of a nested value, with the names and lengths around it; other values as their text.

    >>> [leaf.tolist() for leaf in leaves({"a": [np.ones(2)]})]
    ['a', 1, [1.0, 1.0]]
    """
    if hasattr(value, "detach"):
        import torch

        plain = value.detach().cpu().contiguous()
        yield np.asarray([str(plain.dtype), *map(str, plain.shape)])
        yield plain.reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield np.asarray(str(name))
            yield from leaves(part)
    elif isinstance(value, list | tuple):
        yield np.asarray(len(value))
        for part in value:
            yield from leaves(part)
    else:
        yield np.asarray(repr(value))
