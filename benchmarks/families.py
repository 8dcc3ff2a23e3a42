"""Modules of the families that depend on positions, from small configurations: recovered from recorded activations.

Llama, Qwen2 (grouped keys and values), GPT-NeoX (a quarter of the coordinates turned), ModernBERT, T5 and BLOOM as transformers builds
them, with random weights of trained size, in float64. Tokens are random words; what is recorded is the attention of the last layer.
`recover` gets the kind of positions from the module ("given"), or nothing at all ("found"). The truth is read from the weights. Beside it
stands a student that Adam trained, with scores of the right kind, more heads than the layer, and the examples that the fit had.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np

from attnlearn import convert, data, distance, recover
from attnlearn.convert import value_groups
from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Need, Problem
from attnlearn.recovery._signals import measure
from attnlearn.recovery.positions._kinds import Family
from attnlearn.recovery.positions._student import Descent
from attnlearn.solve._split import Split
from tests.problems import broken_claims

SIZES = {"dim": 64, "heads": 4, "tokens": 16, "num": 8000}
SMALL = {"dim": 16, "heads": 2, "tokens": 12, "num": 3000}
WORDS, SPREAD, FRESH = 1000, 0.2, 500
RECOVERED = 1e-6
"""Error of Theta(offset) and W below which a layer counts as recovered."""


def _rotary(name: str, **more: Any) -> Any:
    def make(transformers: Any, sizes: dict[str, int]) -> Any:
        config = getattr(transformers, f"{name}Config")(
            vocab_size=WORDS, hidden_size=sizes["dim"], intermediate_size=2 * sizes["dim"], num_hidden_layers=2,
            num_attention_heads=sizes["heads"], initializer_range=SPREAD, **more,
        )  # fmt: skip
        return getattr(transformers, f"{name}Model")(config)

    return make


def _grouped(transformers: Any, sizes: dict[str, int]) -> Any:
    return _rotary("Qwen2", num_key_value_heads=sizes["heads"] // 2)(transformers, sizes)


def _t5(transformers: Any, sizes: dict[str, int]) -> Any:
    dim, heads = sizes["dim"], sizes["heads"]
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=dim, d_kv=dim // heads, d_ff=2 * dim, num_layers=2, num_heads=heads
    )
    return transformers.T5EncoderModel(config)


def _bloom(transformers: Any, sizes: dict[str, int]) -> Any:
    config = transformers.BloomConfig(
        vocab_size=WORDS, hidden_size=sizes["dim"], n_layer=2, n_head=sizes["heads"], initializer_range=SPREAD
    )
    return transformers.BloomModel(config)


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
MODELS = {
    "llama": _rotary("Llama"),
    "qwen2": _grouped,
    "neox": _rotary("GPTNeoX"),
    "modernbert": _rotary("ModernBert", **SPECIAL),
    "t5": _t5,
    "bloom": _bloom,
}


def cases(tier: str) -> list[dict[str, Any]]:
    """Every family with the kind given, then with nothing given."""
    sizes, seeds = (SIZES, 1) if tier == "full" else (SMALL, {"quick": 0, "bench": 1}[tier])
    return [
        sizes | {"model": model, "positions": positions, "seed": seed}
        for seed in range(seeds)
        for positions in ("given", "found")
        for model in MODELS
    ]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Build, record, recover, and judge against the weights and on fresh sequences."""
    model, site, batches = built(case)
    layer = convert.from_huggingface(model, prefix=site)
    with tempfile.TemporaryDirectory() as folder:
        recorded = data.record(model, site, batches, f"{folder}/recorded")
        chunks = list(recorded.chunks(case["num"] + FRESH))
        x, y = (np.concatenate([chunk[part] for chunk in chunks]) for part in (0, 1))
    given = getattr(layer.form, "rotation", None) or layer.form.offsets
    named = {"positions": given, "num_heads": case["heads"], "causal": layer.visible}
    options = named if case["positions"] == "given" else {}
    seen, fresh = slice(0, case["num"]), slice(case["num"], None)
    began, spent = time.perf_counter(), time.process_time()
    solution = recover(x[seen], y[seen], seed=case["seed"], raise_on_failure=False, **options)
    found = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - spent,
        "outcome": solution.outcome.name,
        "certified": solution.certified,
        "own_error": _error(layer, x[fresh], y[fresh]),
        "broken": broken_claims(solution.certificate, solution.layer, layer, (x[fresh], y[fresh]), tokens=x),
        "student": student(x[seen], y[seen], layer, given, case),
    }
    return found | compared(solution, layer, x[fresh], y[fresh])


def built(case: dict[str, Any]) -> tuple[Any, str, list[Any]]:
    """The model, the name of its last attention block, and batches of random words."""
    import torch
    import transformers

    torch.manual_seed(case["seed"])
    model = MODELS[case["model"]](transformers, case).double().eval()
    rng = np.random.default_rng([case["seed"], 0x30])
    words = torch.tensor(rng.integers(3, WORDS, size=(case["num"] + FRESH, case["tokens"])))
    site = [block.name for block in data.attention_blocks(model)][-1]
    return model, site, [{"input_ids": batch} for batch in words.split(500)]


def compared(solution: Any, layer: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Errors of a solution beside the layer that the weights give."""
    if solution.layer is None:
        return {"recovered": False}
    found: dict[str, Any] = {
        "heads_found": solution.layer.num_heads,
        "error": _error(solution.layer, x, y),
        "groups": len(set(value_groups(solution.layer, RECOVERED))),
    }
    if solution.layer.visible == layer.visible:
        support, offsets = solution.stats["support"], layer.visible.offsets(x.shape[1])
        apart = distance(solution.layer, layer, support=support, offsets=offsets)
        found |= {"theta": apart.theta, "w": apart.w}
    return found | {"recovered": max(found.get("theta", np.inf), found.get("w", np.inf)) < RECOVERED}


def student(x: np.ndarray, y: np.ndarray, layer: Any, given: Any, case: dict[str, Any]) -> dict[str, float]:
    """The error that Adam reaches with scores of the right kind, and its seconds."""
    problem = Problem(as_examples(x, y), Split.make(len(x)), layer.visible, case["heads"])
    tools = Tools(seed=case["seed"])
    signals = measure(problem, tools)
    if isinstance(signals, Need):
        return {}
    spent = time.process_time()
    made = Descent(problem, signals, Family((given,), layer.visible), tools).run("adam")
    side = problem.select_side()
    return {"error": _error(made, side.x, side.y), "cpu_seconds": time.process_time() - spent}


def _error(layer: Any, x: np.ndarray, y: np.ndarray) -> float:
    """Relative error of the outputs."""
    return float(np.linalg.norm(layer(x) - y) / np.linalg.norm(y))


def summary(lines: list[dict[str, Any]]) -> str:
    """A line for each family and way of asking."""
    text = []
    for line in lines:
        case, result = line["case"], line["result"]
        adam = result["student"].get("error", float("nan"))
        text.append(
            f"{case['model']:<11} {case['positions']:<6} {result['outcome']:<24} error {result.get('error', float('nan')):.1e}, "
            f"Adam {adam:.1e}, {result['cpu_seconds']:.0f} CPU s"
        )
    return "\n".join(text)
