"""Whole models made smaller: the loss of a BERT and a GPT-2 when every block keeps half the floats for each token, beside rivals.

The model is trained for some minutes on English text (`models/trained.py`). Every block is made smaller in turn, on what it sees behind the smaller
ones before it, by all sides alike and on the same recorded sequences. Ours is what `compress_model` writes: its weights are loaded into a fresh model of the
same class. The losses are those of the model's own task on windows of the text that were not recorded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.compression._shape import Shape
from attnlearn.convert import from_huggingface
from attnlearn.convert._qkvo import QKVO
from attnlearn.data import Recorded, attention_blocks, record
from attnlearn.whole import compress_model, with_blocks
from benchmarks.models import trained
from benchmarks.rivals.adam_factors import train_factors
from benchmarks.rivals.closed_forms import narrowed, pooled

BATCHES, SIZE, JUDGED, RATES = 72, 64, 24, (1e-3, 3e-3)
"""Recorded batches (a tenth of them is not), sequences in each, batches that judge, and Adam's rates."""
Maker = Callable[[AttentionLayer, np.ndarray, QKVO], AttentionLayer]


def cases(tier: str) -> list[dict[str, Any]]:
    """Both models; the quick tier has none, because minutes pass."""
    row = {"dim": 64, "heads": 4, "minutes": 2, "seed": 0}
    kinds = {"quick": (), "bench": ("bert",), "full": ("bert", "gpt2")}[tier]
    return [row | {"model": kind} for kind in kinds]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """The loss of the model itself, and of every side for shared keys and values and for narrower heads."""
    kind, heads = case["model"], case["heads"]
    model = trained.model(kind, case["dim"], heads, 60 * case["minutes"], case["seed"])
    batches = [asked(kind, seed) for seed in range(BATCHES)]
    sizes = {"kv_heads": heads // 2, "head_dim": case["dim"] // heads // 2}
    result: dict[str, Any] = {"loss": task_loss(kind, model), "sides": {}}
    for name, size in sizes.items():
        shape = (
            Shape(heads, sizes["head_dim"], heads)
            if name == "head_dim"
            else Shape(heads, case["dim"] // heads, size)
        )
        began = time.process_time()
        ours = _ours(kind, model, batches, {name: size})
        sides = {"ours": ours | {"cpu_seconds": time.process_time() - began}}
        for rival, make in _rivals(shape, case["seed"]).items():
            began = time.process_time()
            layers = in_turn(model, batches, make)
            with with_blocks(model, layers):
                sides[rival] = {"loss": task_loss(kind, model), "cpu_seconds": time.process_time() - began}
        best = min((rival for rival in sides if rival != "ours"), key=lambda rival: sides[rival]["loss"])
        result["sides"][name] = sides | {"best_rival": best, "reached": ours["loss"] <= sides[best]["loss"]}
    return result


def _ours(kind: str, model: Any, batches: list[Any], size: dict[str, int]) -> dict[str, Any]:
    """The loss of the weights that `compress_model` writes, in a fresh model of the same class."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        whole = compress_model(model, batches, folder, **size)
        again = type(model)(model.config)
        again.load_state_dict(load_file(Path(folder) / "weights.safetensors"), strict=False)
        again.tie_weights()
        return {
            "loss": task_loss(kind, again.eval()),
            "achieved": whole.achieved,
            "written": all(block.written for block in whole.blocks),
            "kv_floats": [block.kv_floats for block in whole.blocks],
            "errors": [block.error for block in whole.blocks],
        }


def _rivals(shape: Shape, seed: int) -> dict[str, Maker]:
    """What makes one block smaller, by name: those that have this shape."""

    def adam(layer: AttentionLayer, x: np.ndarray, _own: QKVO) -> AttentionLayer:
        return train_factors(layer, x, shape, seed, rates=RATES).layer

    def pool(name: str) -> Maker:
        return lambda layer, _x, own: pooled(own, shape.kv_heads, layer.dtype, layer.causal)[name]

    def narrow(name: str) -> Maker:
        return lambda layer, x, _own: narrowed(layer, x, shape.head_dim)[name]

    shared = shape.kv_heads < shape.num_heads
    names, make = (("mean pooling", "procrustes"), pool) if shared else (("clover", "whitened"), narrow)
    return {name: make(name) for name in names} | {"adam": adam}


def in_turn(model: Any, batches: list[Any], make: Maker) -> dict[str, AttentionLayer]:
    """Every block made smaller by `make`, on what it sees behind the smaller ones before it."""
    found: dict[str, AttentionLayer] = {}
    for block in attention_blocks(model):
        with tempfile.TemporaryDirectory() as folder:
            with with_blocks(model, found):
                recorded = record(
                    model, block.name, batches[: -max(1, len(batches) // 10)], Path(folder) / "recorded"
                )
            x = np.concatenate([chunk.x for chunk in Recorded(recorded.path).chunks(256)])
        found[block.name] = make(
            from_huggingface(model, prefix=block.name), x, own_weights(model, block.name)
        )
    return found


def own_weights(model: Any, block: str) -> QKVO:
    """The per-head weights of a block, in the gauge that the model has."""
    module, heads = model.get_submodule(block), model.config.num_attention_heads
    if hasattr(module, "c_attn"):
        weights = [
            *module.c_attn.weight.detach().numpy().T.reshape(3, -1, module.c_attn.weight.shape[0]),
            None,
        ]
        biases = list(module.c_attn.bias.detach().numpy().reshape(3, -1))
        weights[3], last = module.c_proj.weight.detach().numpy().T, module.c_proj.bias.detach().numpy()
    else:
        parts = [getattr(module.self, name) for name in ("query", "key", "value")] + [module.output.dense]
        weights = [part.weight.detach().numpy() for part in parts]
        *biases, last = (part.bias.detach().numpy() for part in parts)
    r = len(weights[0]) // heads
    wq, wk, wv = (part.astype(np.float64).reshape(heads, r, -1).transpose(0, 2, 1) for part in weights[:3])
    bq, bk, bv = (part.astype(np.float64).reshape(heads, r) for part in biases)
    return QKVO(
        wq,
        wk,
        wv,
        weights[3].T.astype(np.float64).reshape(heads, r, -1),
        bq,
        bk,
        bv,
        last.astype(np.float64),
        r**-0.5,
    )


def asked(kind: str, seed: int) -> dict[str, Any]:
    """One batch as the model is asked: words hidden for BERT."""
    import torch

    ids = trained.windows(SIZE, 77_000 + seed)
    if kind != "bert":
        return {"input_ids": ids}
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < 0.15
    return {"input_ids": ids.masked_fill(hidden, trained.MASKED)}


def task_loss(kind: str, model: Any) -> float:
    """The mean loss of the model's task on batches that nobody recorded."""
    import torch

    losses = []
    with torch.no_grad():
        for seed in range(10**6, 10**6 + JUDGED):
            ids, given = trained.windows(SIZE, 77_000 + seed), asked(kind, seed)
            labels = ids.masked_fill(given["input_ids"] == ids, -100) if kind == "bert" else ids
            losses.append(float(model(**given, labels=labels).loss))
    return float(np.mean(losses))


def summary(lines: list[dict[str, Any]]) -> str:
    """One row per model and size."""
    rows = []
    for line in lines:
        for size, sides in line["result"]["sides"].items():
            told = ", ".join(
                f"{name} {side['loss']:.4f}" for name, side in sides.items() if isinstance(side, dict)
            )
            rows.append(f"{line['case']['model']}, {size}: {line['result']['loss']:.4f} before; {told}")
    return "\n".join(rows)
