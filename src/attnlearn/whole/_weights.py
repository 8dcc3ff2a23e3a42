"""The tensors of a model with smaller blocks in them, and its configuration where transformers made it.

A block goes into the shapes it has, with keys and values repeated where fewer are enough. Where every block of a q_proj model has as many heads,
keys and values, the model is written a second time with tensors and a configuration of these sizes.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._files import write_json, write_tensors
from attnlearn._layer import AttentionLayer
from attnlearn.convert._families import family_of
from attnlearn.convert._safetensors import SHARING, WRITABLE
from attnlearn.convert._write_like import repeated, write_like
from attnlearn.data._blocks import Block

SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim")
"""What a configuration has to say of smaller blocks."""


class Weights:
    """The state of a model as NumPy arrays, and blocks that were put into it."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, getattr(model, "config", None)
        self.state = {name: _array(value) for name, value in model.state_dict().items()}
        self.smaller: dict[str, dict[str, np.ndarray]] = {}
        self.shapes: set[tuple[int, int, int]] = set()
        self.held: set[str] = set()

    @property
    def saved(self) -> bool:
        """Whether transformers made the model and can read it again."""
        return hasattr(self.config, "to_dict") and hasattr(self.model, "save_pretrained")

    def put(self, block: Block, layer: AttentionLayer) -> None:
        """Put a layer into the block's own tensors, or into smaller ones, where these can hold it."""
        prefix = f"{block.name}." if block.name else ""
        module = self.model.get_submodule(block.name)
        if family_of(module) is None:
            self._put_plain(block, layer, prefix)
            return
        try:
            config = getattr(module, "config", None) or self.config
            written = write_like(self.model, block.name, layer, config.to_dict())  # type: ignore[union-attr]
        except ValueError:
            return
        if "q_proj.weight" in written:
            width = len(written["q_proj.weight"]) // layer.num_heads
            self.smaller[block.name] = {prefix + key: part for key, part in written.items()}
            self.shapes.add((layer.num_heads, len(written["k_proj.weight"]) // width, width))
        else:
            width = 1
        try:
            own = {name: self.state[prefix + name].shape for name in written}
            self._set(prefix, repeated(written, own, width))
        except ValueError:
            return
        self.held.add(block.name)

    def agree(self, blocks: list[str]) -> bool:
        """Whether all blocks are smaller in the same way, so that the configuration can say so."""
        said = self.saved and "num_key_value_heads" in self.config.to_dict()  # type: ignore[union-attr]
        return said and len(self.shapes) == 1 and set(self.smaller) == set(blocks)

    def holds(self, block: str, blocks: list[str]) -> bool:
        """Whether the tensors that are saved hold this block."""
        return block in self.held or (block in self.smaller and self.agree(blocks))

    def _put_plain(self, block: Block, layer: AttentionLayer, prefix: str) -> None:
        for layout in (block.layout, "o_proj", "out_proj"):
            if layout not in WRITABLE:
                continue
            options: dict[str, Any] = {"prefix": prefix, "tolerance": None}
            options |= {"kv_heads": None} if layout in SHARING else {}
            try:
                tensors, _ = WRITABLE[layout](layer, options)
            except ValueError:
                continue
            if all(
                name in self.state and self.state[name].shape == part.shape for name, part in tensors.items()
            ):
                self._set("", tensors)
                self.held.add(block.name)
                return

    def _set(self, prefix: str, tensors: dict[str, np.ndarray]) -> None:
        for name, part in tensors.items():
            self.state[prefix + name] = part.astype(self.state[prefix + name].dtype)

    def save(self, home: Path, blocks: list[str]) -> None:
        """Write the tensors, and beside them the smaller model with its configuration where the blocks agree on one."""
        write_tensors(home / "weights.safetensors", self.state, {"format": "pt"})
        if not self.agree(blocks):
            return
        config = copy.deepcopy(self.config.to_dict()) | dict(zip(SIZES, next(iter(self.shapes))))  # type: ignore[union-attr]
        config["architectures"] = [type(self.model).__name__]
        state = dict(self.state)
        for tensors in self.smaller.values():
            state |= {name: part.astype(state[name].dtype) for name, part in tensors.items()}
        write_tensors(home / "model.safetensors", state, {"format": "pt"})
        write_json(home / "config.json", config)


def _array(value: Any) -> np.ndarray:
    """A tensor as an array; half precision as float32, which holds it exactly."""
    import torch

    plain = value.detach().cpu()
    return (plain.float() if plain.dtype in (torch.bfloat16, torch.float16) else plain).numpy()
