"""Listening to one attention block: tokens and mask on the way in, the output projection on the way out.

A block that is shared between depths (ALBERT) is heard at every call. What can fail: cross-attention, steps of
generation, and masks that a layer does not know; each stops the recording with one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from attnlearn._errors import require
from attnlearn.data._blocks import Site
from attnlearn.data._masks import from_huggingface_mask, from_torch_masks, split_mask

if TYPE_CHECKING:
    import torch

Listener = Callable[["Heard"], "torch.Tensor | None"]
"""Told of every call; what it returns takes the place of the block's outputs (None: they stay)."""
_OTHER_KEYS = ("key_value_states", "encoder_hidden_states")


class Heard(NamedTuple):
    """One call of the block."""

    x: torch.Tensor
    y: torch.Tensor
    mask: torch.Tensor
    possible: set[bool]
    """Which values of `causal` its mask allows."""


@contextmanager
def listening(site: Site, listener: Listener) -> Iterator[None]:
    """Call `listener` for every call of the block inside the context."""
    open_calls: list[tuple[torch.Tensor, torch.Tensor, set[bool]]] = []
    is_torch = site.block.layout == "torch"
    read = _read_torch if is_torch else _read_huggingface

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        given.apply_defaults()
        x, allowed = read(module, {**given.arguments, **given.arguments.get("kwargs", {})})
        open_calls.append((x, *split_mask(allowed, site.window)))

    def after(_module: Any, _args: Any, output: Any) -> Any:
        y = output[0] if is_torch else output
        turned = is_torch and y.ndim == 3 and not site.source.batch_first
        require(bool(open_calls), "module", "must be called as a whole", site.block.name)
        x, mask, possible = open_calls.pop()
        rows = y.transpose(0, 1) if turned else y
        other = listener(Heard(x, rows.reshape(*x.shape[:2], -1), mask, possible))
        if other is None:
            return None
        other = other.reshape(rows.shape).to(y)
        other = other.transpose(0, 1) if turned else other
        return (other, *output[1:]) if is_torch else other

    with ExitStack() as stack:
        hooks = (
            site.source.register_forward_pre_hook(before, with_kwargs=True),
            site.target.register_forward_hook(after),
        )
        for hook in hooks:
            stack.callback(hook.remove)
        yield


def _read_torch(module: Any, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    query, key, value = (given[name] for name in ("query", "key", "value"))
    require(not query.is_nested, "batches", "must be ordinary tensors with a padding mask", "nested tensors")
    same = all(
        other is query or (other.shape == query.shape and torch.equal(other, query)) for other in (key, value)
    )
    require(same, "module", "must be self-attention", "keys or values that are not the queries")
    x = query[None] if query.ndim == 2 else query if module.batch_first else query.transpose(0, 1)
    masks = given.get("attn_mask"), given.get("key_padding_mask")
    return x, from_torch_masks(*masks, module.num_heads, *x.shape[:2])


def _read_huggingface(module: Any, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    x = given.get("hidden_states", next(iter(given.values())))
    for name in _OTHER_KEYS:
        require(given.get(name) is None, "module", "must be self-attention", f"{name}")
    require(torch.is_tensor(x) and x.ndim == 3, "module", "must receive tokens (n, k, d)", x)
    n, k, _ = x.shape
    past = given.get("past_key_values")
    if past is not None and hasattr(past, "get_seq_length"):
        seen = past.get_seq_length(getattr(module, "layer_idx", 0) or 0)
        require(int(seen) == 0, "batches", "must hold whole sequences, not steps of generation", int(seen))
    mask = given.get("attention_mask", given.get("mask"))
    inner = _own_mask(module, k)
    if mask is None and inner is None:
        rule = "must receive its causal mask (record the whole model, not the block alone)"
        require(getattr(module, "is_causal", False) is not True or k == 1, "module", rule, None)
    allowed = from_huggingface_mask(mask, n, k)
    return x, allowed if inner is None else allowed & inner


def _own_mask(module: Any, k: int) -> torch.Tensor | None:
    """Older GPT-2 modules keep their causal mask as a buffer `bias` (1, 1, size, size) and apply it themselves."""
    import torch

    buffer = getattr(module, "bias", None)
    if not torch.is_tensor(buffer) or buffer.ndim != 4 or buffer.shape[-1] < k:
        return None
    return buffer[0, 0, :k, :k].bool().cpu()
