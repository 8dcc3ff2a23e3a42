"""Attention layers of published models, and of models trained on the spot, from what passed through them.

Every layer is recorded on inputs that the model makes itself (antibodies, reactions), on synthesised audio, or on text. Fresh inputs
judge the answer: its error relative to the spread of the outputs, and for every true head the cosine of its scores with the
nearest head's, each centred over the keys. The rival is a student trained by Adam on white tokens, told heads and rank.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnlearn import AttentionLayer, convert, data, recover
from attnlearn._attention import Parameters
from attnlearn.solve._white import whitening
from tests.problems import broken_claims

FRESH, TARGET, TIMES = 256, 1e-3, 10
SIZES = {"sapiens": (8_000, 32), "rxnmapper": (8_000, 32), "distillmos": (4_000, 64), "whisper": (4_000, 64)}
TRAINING, TRAINED = 300.0, 8_000


def cases(tier: str) -> list[dict[str, Any]]:
    """Layers by model; the quick tier has none, because weights are downloaded and minutes pass."""
    published = {"sapiens": (0, 1, 2, 3), "rxnmapper": (1, 8), "distillmos": (0, 6), "whisper": (0, 3)}
    every = [{"model": name, "layer": layer} for name, layers in published.items() for layer in layers]
    every += [
        {"model": kind, "dim": dim, "heads": heads, "layer": layer}
        for kind in ("bert", "gpt2")
        for dim, heads in ((128, 4), (256, 8))
        for layer in range(3)
    ]
    few = {"quick": [], "bench": every[3:4], "full": every}[tier]
    return [case | {"seed": 0, "rival": rival} for case in few for rival in (False, True)]


class Recording(NamedTuple):
    """What a block received and put out, and the layer that it is."""

    x: np.ndarray
    y: np.ndarray
    truth: AttentionLayer


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Record one layer and recover it; beside it, the student, if the case says so."""
    known = recorded(case)
    (x, fresh), (y, answer) = ((part[:-FRESH], part[-FRESH:]) for part in known[:2])
    began = time.perf_counter()
    solution = recover(x, y, seed=case["seed"], raise_on_failure=False)
    seconds = time.perf_counter() - began
    result = {
        "seconds": seconds,
        "planned": solution.stats["plan"].seconds,
        "sequences": len(x),
        "outcome": solution.outcome.name,
        "certified": solution.certified,
    }
    if solution.layer is not None:
        layer = solution.layer
        result |= {
            "heads_found": layer.num_heads,
            "directions": int(solution.stats["support"].basis.shape[1]),
            "fresh_error": spread_error(layer(fresh), answer),
            "least_cosine": float(score_cosines(layer, known.truth, fresh[:64]).min()),
            "broken": broken_claims(solution.certificate, layer, known.truth, (fresh, known.truth(fresh))),
        }
    return result | ({"student": rival(known, TIMES * seconds, case["seed"])} if case["rival"] else {})


def recorded(case: dict[str, Any]) -> Recording:
    """The recording of one case, fresh sequences last."""
    from benchmarks.models import distillmos, rxnmapper, sapiens, trained, whisper
    from benchmarks.models.fetch import kept

    name, layer, seed = case["model"], case["layer"], case["seed"]
    number, length = SIZES.get(name, (TRAINED, 0))
    number, block = number + FRESH, f"layers.{layer}.self_attn"
    if name == "sapiens":
        model = sapiens.model()
        drawn = kept(
            f"sapiens-{number}-{length}-{seed}", lambda: sapiens.sequences(model, number, length, seed)
        )
        batches = drawn.split(256)
    elif name == "rxnmapper":
        whole = rxnmapper.model()
        model, block = rxnmapper.one_pass(whole, layer), "layer.attention"
        drawn = kept(
            f"rxnmapper-{number}-{length}-{seed}", lambda: rxnmapper.sequences(whole, number, length, seed)
        )
        batches = drawn.split(256)
    elif name == "whisper":
        model, batches = whisper.model(), whisper.spectra(number, seed).split(256)
    elif name == "distillmos":
        model, batches = distillmos.model(), distillmos.batches(number, seed)
    else:
        model = trained.model(name, case["dim"], case["heads"], TRAINING, seed)
        blocks = [block.name for block in data.attention_blocks(model)]
        block, batches = blocks[layer], trained.windows(number, seed).split(256)
    return _record(model, block, batches)


def _record(model: Any, block: str, batches: Any) -> Recording:
    with tempfile.TemporaryDirectory() as folder:
        found = data.record(model, block, batches, Path(folder) / "recorded")
        chunks = list(found.chunks(256))
    x, y = (np.concatenate([getattr(chunk, side) for chunk in chunks]) for side in "xy")
    module = model.get_submodule(block)
    import torch

    read = convert.from_torch if isinstance(module, torch.nn.MultiheadAttention) else convert.from_huggingface
    return Recording(x, y, read(module))


def spread_error(found: np.ndarray, answer: np.ndarray) -> float:
    """Root mean square error relative to the spread of the outputs."""
    wanted = answer.reshape(-1, answer.shape[-1]).astype(np.float64)
    return float(
        np.linalg.norm(found.reshape(wanted.shape) - wanted) / np.linalg.norm(wanted - wanted.mean(axis=0))
    )


def score_cosines(found: AttentionLayer, truth: AttentionLayer, x: np.ndarray) -> np.ndarray:
    """For every true head the largest cosine of its scores, centred over visible keys, with those of a found head."""
    keys = x.shape[1]
    seen = np.tril(np.ones((keys, keys), bool)) if truth.causal else np.ones((keys, keys), bool)

    def flat(layer: AttentionLayer) -> np.ndarray:
        rows = []
        for theta, bias in zip(layer.theta.astype(np.float64), layer.query_bias, strict=True):
            scores = x @ theta @ x.swapaxes(1, 2) + (x @ bias)[:, None]
            scores -= (scores * seen).sum(axis=-1, keepdims=True) / seen.sum(axis=-1)[:, None]
            rows.append((scores * seen).ravel())
        sizes = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
        return np.stack(rows) / sizes

    return (flat(truth) @ flat(found).T).max(axis=1)


def rival(known: Recording, seconds: float, seed: int) -> dict[str, Any]:
    """The student on white tokens, told heads and rank; each run of its grid ends after `seconds`."""
    from attnlearn.solve._rank import largest_rank
    from benchmarks.rivals.adam import train_student

    white = whitening(known.x[:-FRESH], None)
    tokens, truth = white.tokens(known.x), known.truth
    inside = white.enter(truth.parameters)
    shown = AttentionLayer(*(part.astype(np.float32) for part in Parameters(*inside)), causal=truth.causal)
    return train_student(
        shown, tokens[:-FRESH], known.y[:-FRESH], tokens[-FRESH:],
        rank=largest_rank(truth.theta), target=TARGET, seed=seed, max_seconds=seconds,
    )  # fmt: skip


def summary(lines: list[dict[str, Any]]) -> str:
    """One row per layer."""
    rows = []
    for line in lines:
        case, result = line["case"], line["result"]
        student = result.get("student", {})
        rows.append(
            f"{case['model']} {case.get('dim', '')} layer {case['layer']}: {result['outcome']}, certified "
            f"{result['certified']}, {result.get('heads_found')} heads, error "
            f"{result.get('fresh_error', np.nan):.1e}, least cosine {result.get('least_cosine', np.nan):.5f}, "
            f"{result['seconds']:.0f} s (planned {result['planned']:.0f})"
            + (f"; student {student['error']:.1e}, reached {student['reached']}" if student else "")
        )
    return "\n".join(rows)
