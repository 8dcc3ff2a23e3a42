"""How transformers' modules with positions store their projections: one row for each way, found by the module's own parts.

| family | projections | positions |
|---|---|---|
| `qkv_proj` (Llama, Mistral, Qwen2, Gemma, Cohere, SmolLM, ...) | q_proj, k_proj, v_proj, o_proj; keys and values may be shared | rotary |
| `phi` | the same with dense for o_proj | rotary, of part of the coordinates |
| `gpt_neox` | query_key_value, head by head q then k then v; dense | rotary, of part of the coordinates |
| `modernbert` | Wqkv, all q then all k then all v; Wo | rotary |
| `t5` | q, k, v, o without biases | a table by bucket, kept by the first block |
| `bloom` | as `gpt_neox` | ALiBi slopes |

Everything is (out, in), as torch's Linear has it. Which rotary pairing a module uses is not written anywhere: it is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.convert._arrays import to_floats


class Projections(NamedTuple):
    """Per-head arrays in row convention: wq (m, d, r), wk and wv (g, d, r), wo (m, r, o), and their biases or None."""

    wq: np.ndarray
    wk: np.ndarray
    wv: np.ndarray
    wo: np.ndarray
    bq: np.ndarray | None
    bk: np.ndarray | None
    bv: np.ndarray | None
    bo: np.ndarray | None


class Family(NamedTuple):
    """One way of storing: the parts that tell it, the name of the output projection, and how it is read."""

    name: str
    parts: tuple[str, ...]
    output: str
    read: Callable[[Any, int], Projections]
    positions: str
    needs: tuple[str, ...] = ()  # attributes without which a module of these parts is something else (MPNet)


def _linear(module: Any, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Weight (in, out) and bias of a Linear, in float64."""
    part = getattr(module, name)
    bias = getattr(part, "bias", None)
    weight = to_floats(part.weight, f"{name}.weight").astype(np.float64).T
    return weight, None if bias is None else to_floats(bias, f"{name}.bias").astype(np.float64)


def _heads(weight: np.ndarray, bias: np.ndarray | None, heads: int) -> tuple[np.ndarray, np.ndarray | None]:
    """(d, heads r) as (heads, d, r), and its bias as (heads, r)."""
    require(weight.shape[1] % heads == 0, "num_heads", f"must divide the width {weight.shape[1]}", heads)
    shaped = weight.reshape(len(weight), heads, -1).transpose(1, 0, 2)
    return shaped, None if bias is None else bias.reshape(heads, -1)


def _separate(names: tuple[str, str, str, str]) -> Callable[[Any, int], Projections]:
    def read(module: Any, heads: int) -> Projections:
        query, key, value, (out, bo) = (_linear(module, name) for name in names)
        wq, bq = _heads(*query, heads)
        (wk, bk), (wv, bv) = (_heads(w, b, w.shape[1] // wq.shape[2]) for w, b in (key, value))
        return Projections(wq, wk, wv, out.reshape(heads, -1, out.shape[1]), bq, bk, bv, bo)

    return read


def _fused(name: str, output: str, by_head: bool) -> Callable[[Any, int], Projections]:
    """q, k and v in one matrix: head by head, or all heads of each after the other."""

    def read(module: Any, heads: int) -> Projections:
        (weight, bias), (out, bo) = _linear(module, name), _linear(module, output)
        axes = (heads, 3) if by_head else (3, heads)
        q, k, v = np.moveaxis(weight.reshape(len(weight), *axes, -1), 2 if by_head else 1, 0).transpose(
            0, 2, 1, 3
        )
        bq, bk, bv = (None, None, None)
        if bias is not None:
            bq, bk, bv = np.moveaxis(bias.reshape(*axes, -1), 1 if by_head else 0, 0)
        return Projections(q, k, v, out.reshape(heads, -1, out.shape[1]), bq, bk, bv, bo)

    return read


FAMILIES = (
    Family(
        "qkv_proj",
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        "o_proj",
        _separate(("q_proj", "k_proj", "v_proj", "o_proj")),
        "position_embeddings",
    ),
    Family(
        "phi",
        ("q_proj", "k_proj", "v_proj", "dense"),
        "dense",
        _separate(("q_proj", "k_proj", "v_proj", "dense")),
        "position_embeddings",
    ),
    Family(
        "gpt_neox",
        ("query_key_value", "dense"),
        "dense",
        _fused("query_key_value", "dense", True),
        "position_embeddings",
    ),
    Family("modernbert", ("Wqkv", "Wo"), "Wo", _fused("Wqkv", "Wo", False), "position_embeddings"),
    Family(
        "t5",
        ("q", "k", "v", "o"),
        "o",
        _separate(("q", "k", "v", "o")),
        "position_bias",
        ("relative_attention_num_buckets",),
    ),
    Family("bloom", ("query_key_value", "dense"), "dense", _fused("query_key_value", "dense", True), "alibi"),
)


def family_of(module: Any) -> Family | None:
    """The family of a module: its parts are there, nothing else has weights, and its forward takes such positions.

    >>> family_of(object()) is None
    True
    """
    import inspect

    if not hasattr(module, "named_children") or not hasattr(module, "forward"):
        return None
    accepted = inspect.signature(module.forward).parameters
    for family in FAMILIES:
        parts = [getattr(module, part, None) for part in family.parts]
        known = all(hasattr(part, "weight") for part in parts) and all(
            hasattr(module, n) for n in family.needs
        )
        if known and family.positions in accepted:
            return family
    return None
