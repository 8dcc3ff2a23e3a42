"""Attention layers from and to other tools: one file per source, each with its orientation written down.

Every converter checks itself: the layer is compared with a direct Q/K/V/O computation in the source's own
orientation, and with the source's forward when it is a module. transformers' modules with rotary, relative and ALiBi
positions become layers with positions, with QK-norm, soft caps and sinks where they have them. What a layer cannot hold is
refused by name; nothing missing is filled in, and no head count is guessed.
"""

from __future__ import annotations

from attnlearn.convert._bert import to_bert
from attnlearn.convert._gpt2 import to_gpt2
from attnlearn.convert._huggingface import from_huggingface
from attnlearn.convert._projections import to_qkv_proj
from attnlearn.convert._qkvo import QKVO, from_qkvo, to_qkvo
from attnlearn.convert._safetensors import layout_of, load, save_layout
from attnlearn.convert._torch import from_torch, to_torch, to_torch_state
from attnlearn.convert._transformer_lens import from_transformer_lens, to_transformer_lens
from attnlearn.convert._write_positions import to_huggingface, value_groups

__all__ = [
    "QKVO",
    "from_huggingface",
    "from_qkvo",
    "from_torch",
    "from_transformer_lens",
    "layout_of",
    "load",
    "save_layout",
    "to_bert",
    "to_gpt2",
    "to_huggingface",
    "to_qkv_proj",
    "to_qkvo",
    "to_torch",
    "to_torch_state",
    "to_transformer_lens",
    "value_groups",
]
