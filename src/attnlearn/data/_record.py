"""Activations of one attention block of a torch model, written as a `Recorded` folder.

The pairs are those of a layer: x is what the block receives, y what its output projection puts out, before
dropout, residual and LayerNorm (docs/recording.md has the picture for each family). The model runs in eval mode
without gradients and without fused kernels that bypass hooks or hide masks, and is left as it was found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnlearn._errors import require
from attnlearn.data._base import require_count
from attnlearn.data._blocks import Site, find_sites
from attnlearn.data._calibration import WORDED
from attnlearn.data._hooks import Heard, listening
from attnlearn.data._recorded import Recorded
from attnlearn.data._writer import RecordedWriter

if TYPE_CHECKING:
    import torch


def record(
    model: torch.nn.Module,
    module: str | torch.nn.Module,
    batches: Iterable[Any],
    folder: str | os.PathLike[str],
    *,
    max_sequences: int | None = None,
    tokens: Any = None,
) -> Recorded:
    """Run `model` on `batches` and write what the attention block `module` receives and puts out.

    `module` is a name from `attention_blocks` or the module itself. A batch is what the model takes: a tensor,
    a tuple of arguments, or a mapping of keyword arguments such as a tokenizer returns. Lengths may differ;
    padding is kept as a mask. The folder appears whole or not at all.

    `tokens` keeps the tokens of the first sequences as text, so that reports can write them beside attention patterns: a tokenizer (its
    `convert_ids_to_tokens` reads `input_ids`), or a function from a batch to one list of strings for each sequence.

    >>> import tempfile, torch
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> record(model, "self_attn", [torch.ones(4, 5, 8)], tempfile.mkdtemp() + "/data")
    Recorded(num=4, tokens=5, dim=8, out_dim=8, masked=False, dtype=float32)
    """
    import torch

    limit = None if max_sequences is None else require_count(max_sequences, "max_sequences")
    site = _choose(find_sites(model), module)
    with RecordedWriter(folder, provenance=_provenance(model, site)) as writer:
        heard = _Recording(writer, limit)
        with undisturbed(model), listening(site, heard), torch.no_grad():
            for batch in batches:
                calls = heard.calls
                run_model(model, batch)
                rule = f"must be called by the model ({site.block.name} was not)"
                require(heard.calls > calls, "module", rule, "no call")
                if tokens is not None and len(writer.words) < WORDED:
                    writer.words += words_of(tokens, batch)[: min(WORDED, writer.num) - len(writer.words)]
                if heard.full:
                    break
        require(writer.num > 0, "batches", "must hold at least one sequence", 0)
        writer.causal = heard.causal()
    return Recorded(folder)


def words_of(tokens: Any, batch: Any) -> list[list[str]]:
    """The tokens of every sequence of a batch as text.

    >>> words_of(lambda batch: [[str(token) for token in row] for row in batch], [[3, 1]])
    [['3', '1']]
    """
    read = getattr(tokens, "convert_ids_to_tokens", None)
    if read is not None:
        ids = (
            batch["input_ids"]
            if isinstance(batch, Mapping)
            else batch[0]
            if isinstance(batch, (tuple, list))
            else batch
        )
        found = [read(row.tolist() if hasattr(row, "tolist") else list(row)) for row in ids]
    else:
        require(callable(tokens), "tokens", "must be a tokenizer or a function of a batch", tokens)
        found = tokens(batch)
    texts = isinstance(found, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and all(isinstance(word, str) for word in row) for row in found
    )
    require(texts, "tokens", "must give one list of strings for each sequence", found)
    return [list(row) for row in found]


class _Recording:
    """Writes what is heard, up to a limit, and keeps track of causality."""

    def __init__(self, writer: RecordedWriter, limit: int | None) -> None:
        self.writer, self.limit, self.calls = writer, limit, 0
        self.possible = {False, True}

    @property
    def full(self) -> bool:
        return self.limit is not None and self.writer.num >= self.limit

    def __call__(self, heard: Heard) -> None:
        self.calls += 1
        if self.full:
            return
        self.possible &= heard.possible
        require(bool(self.possible), "module", "must be causal always or never", "both")
        stop = None if self.limit is None else self.limit - self.writer.num
        x, y, mask = (_floats(tensor)[:stop] for tensor in heard[:3])
        self.writer.write(x, y, mask)

    def causal(self) -> bool | None:
        """None when every sequence had one real token, so that nobody can tell."""
        return next(iter(self.possible)) if len(self.possible) == 1 else None


def _choose(sites: list[Site], module: Any) -> Site:
    names = ", ".join(site.block.name or "''" for site in sites[:12]) or "nothing"
    for site in sites:
        aliases = (site.block.name, f"{site.block.name}.self", f"{site.block.name}.attention")
        if (isinstance(module, str) and module in aliases) or module is site.source:
            require(
                site.block.supported, "module", "must be plain softmax attention", _Plain(site.block.verdict)
            )
            return site
    shown = module if isinstance(module, str) else type(module).__name__
    raise ValueError(f"module: must name an attention block of the model ({names}), got {shown!r}")


class _Plain(str):
    """Text that an error shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def run_model(model: torch.nn.Module, batch: Any) -> Any:
    """What the model returns for a batch: a tensor, a tuple of arguments, or a mapping of keyword arguments."""
    import numpy as np
    import torch

    first = next(model.parameters(), None)

    def ready(value: Any) -> Any:
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        return value.to(first.device) if torch.is_tensor(value) and first is not None else value

    if isinstance(batch, Mapping):
        return model(**{name: ready(value) for name, value in batch.items()})
    if isinstance(batch, (tuple, list)):
        return model(*(ready(value) for value in batch))
    return model(ready(batch))


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode and plain kernels inside, everything as before outside.

    torch's fast path runs encoder layers without their submodules, so hooks hear nothing. transformers' fused
    kernels may be told of causality by a flag instead of a mask; its eager path always builds the mask.
    """
    import torch

    training = {part: part.training for part in model.modules()}
    configs = {
        id(config): config for part in training if (config := getattr(part, "config", None)) is not None
    }
    kernels = [(c, c._attn_implementation) for c in configs.values() if hasattr(c, "_attn_implementation")]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for config, _ in kernels:
            config._attn_implementation = "eager"
        model.eval()
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for config, kernel in kernels:
            config._attn_implementation = kernel
        for part, flag in training.items():
            part.training = flag


def _floats(tensor: torch.Tensor) -> Any:
    import torch

    wide = tensor.detach().cpu()
    if wide.dtype in (torch.float16, torch.bfloat16):
        wide = wide.float()  # float32 holds both exactly
    return wide.numpy()


def _provenance(model: torch.nn.Module, site: Site) -> dict[str, Any]:
    import torch

    block = site.block
    return {
        "model": type(model).__name__,
        "module": block.name,
        "layout": block.layout,
        "num_heads": block.num_heads,
        **({} if site.positions is None else {"positions": site.positions}),
        **({} if site.window is None else {"window": site.window}),
        "torch": str(torch.__version__),
    }
