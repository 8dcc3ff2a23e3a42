"""Recovered layers in the place of a model's attention blocks, and the outputs of a model.

A layer takes over what the block's output projection puts out, so it goes back into every model that can be recorded, whatever its
blocks are called. The model itself is not changed: hooks are there as long as the context lasts.

Cost: one evaluation of each layer per call, on the CPU, beside the block's own. What can fail: outputs of a model that hold no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.data._blocks import find_sites
from attnlearn.data._hooks import Heard, Listener, listening
from attnlearn.data._record import run_model, undisturbed

if TYPE_CHECKING:
    import torch


@contextmanager
def with_blocks(model: torch.nn.Module, layers: Mapping[str, AttentionLayer]) -> Iterator[None]:
    """Inside the context the named blocks of the model put out what these layers do, and it is in eval mode.

    >>> import torch
    >>> from attnlearn.convert import from_torch
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    >>> x = torch.randn(4, 5, 8)
    >>> with with_blocks(model, {"self_attn": from_torch(model.self_attn)}):
    ...     after = outputs_of(model, [x])
    >>> bool(np.abs(after - outputs_of(model, [x])).max() < 1e-4)
    True
    """
    sites = {site.block.name: site for site in find_sites(model)}
    unknown = sorted(set(layers) - set(sites))
    require(not unknown, "layers", "must name attention blocks of the model", ", ".join(unknown))
    with undisturbed(model), ExitStack() as stack:
        for name, layer in layers.items():
            stack.enter_context(listening(sites[name], _evaluated(layer)))
        yield


def _evaluated(layer: AttentionLayer) -> Listener:
    def outputs(heard: Heard) -> torch.Tensor:
        import torch

        x = heard.x.detach().cpu().double().numpy()
        mask = heard.mask.detach().cpu().numpy().astype(bool)
        empty = np.logical_not(mask.any(axis=1))
        mask = np.where(empty[:, None], True, mask)  # a sequence of padding alone: nobody reads it
        return torch.from_numpy(np.ascontiguousarray(layer.astype(np.float64)(x, mask)))

    return outputs


def outputs_of(model: torch.nn.Module, batches: Iterable[Any]) -> np.ndarray:
    """What the model returns for each batch (its logits, or the first tensor), in eval mode, as one row of numbers."""
    return np.concatenate([part.reshape(-1) for part in rows_of(model, batches)[0]])


def rows_of(model: torch.nn.Module, batches: Iterable[Any]) -> tuple[list[np.ndarray], bool]:
    """The same for each batch as rows, a token or a sequence each; whether they are logits."""
    import torch

    found, logits = [], False
    with undisturbed(model), torch.no_grad():
        for batch in batches:
            returned = run_model(model, batch)
            logits = isinstance(returned, Mapping) and torch.is_tensor(returned.get("logits"))
            values = [returned["logits"]] if logits else _values(returned)
            tensor = next((value for value in values if torch.is_tensor(value)), None)
            require(tensor is not None, "model", "must return a tensor", type(returned).__name__)
            assert tensor is not None
            rows = tensor.detach().cpu().double()
            found.append(rows.reshape(-1, rows.shape[-1] if rows.ndim else 1).numpy())
    return found, logits


def _values(returned: Any) -> Iterable[Any]:
    if isinstance(returned, Mapping):
        return returned.values()
    return returned if isinstance(returned, (tuple, list)) else (returned,)
