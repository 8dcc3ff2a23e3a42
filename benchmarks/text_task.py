"""Head count on a text task: which package of the standard library a docstring comes from, a declared substitute for SST2 with RoBERTa.

A small BERT with 8 heads is trained for some seconds. `compress` then merges the heads of every block to 4, these to 2, and these to 1,
on what the blocks see of some training texts. The merged weights are loaded into the same class, and every model is trained further in
the same way, that with all 8 heads too. A BERT with so many heads from the start, trained for as many steps in all, stands beside each.

Names of the packages are hidden in the texts. The texts come with Python: results name its version.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import tempfile
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HEADS, DIM, LAYERS, LENGTH, WORDS = 8, 64, 2, 32, 2_000
CLASSES, LEAST_WORDS, EACH = 10, 5, 150
STEPS, FURTHER, BATCH, RATE = 200, 60, 32, 1e-3
MERGED_ON = 200
"""Training texts on which blocks are merged."""
HIDDEN_WORD, PADDING = 1, 0


@cache
def texts() -> tuple[tuple[str, ...], list[tuple[str, ...]], np.ndarray]:
    """Packages, docstrings as words, and the number of each docstring's package; equally many of each."""
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for folder in sorted(path for path in root.iterdir() if (path / "__init__.py").is_file()):
        if folder.name in ("site-packages", "test", "idlelib") or folder.name.startswith("_"):
            continue
        for file in sorted(folder.rglob("*.py")):
            if {"test", "tests", "__pycache__", "_vendor"} & set(file.relative_to(root).parts):
                continue
            found[folder.name] += _docstrings(file)
    unique = {name: sorted(set(kept)) for name, kept in found.items()}
    packages = sorted(unique, key=lambda name: -len(unique[name]))[:CLASSES]
    rng = np.random.default_rng(0)
    chosen = [[unique[name][i] for i in rng.permutation(len(unique[name]))[:EACH]] for name in packages]
    labels = np.concatenate([np.full(len(kept), label) for label, kept in enumerate(chosen)])
    return tuple(packages), [words for kept in chosen for words in kept], labels


def _docstrings(file: Path) -> list[tuple[str, ...]]:
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    words = [tuple(re.findall(r"[a-z_]+|[^\sa-z_]", text.lower()))[:LENGTH] for text in said]
    return [kept for kept in words if len(kept) >= LEAST_WORDS]


@cache
def numbers() -> tuple[Any, Any]:
    """The texts as numbers of their words, padded; rare words and names of packages are one number."""
    import torch

    packages, found, labels = texts()
    counted = Counter(word for words in found for word in words if word not in packages)
    number = {word: place + 2 for place, (word, _) in enumerate(counted.most_common(WORDS - 2))}
    ids = np.full((len(found), LENGTH), PADDING)
    for row, words in zip(ids, found):
        row[: len(words)] = [number.get(word, HIDDEN_WORD) for word in words]
    return torch.tensor(ids), torch.tensor(labels)


def cases(tier: str) -> list[dict[str, Any]]:
    """One line for every seed of weights, batches and split."""
    return [{"seed": seed} for seed in range({"quick": 1, "bench": 3, "full": 5}[tier])]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Test loss and error for every number of heads, merged and from the start."""
    import torch

    torch.set_num_threads(1)
    seed = case["seed"]
    packages, found, _ = texts()
    order = np.random.default_rng([seed, 0x7E58]).permutation(len(found))
    split = torch.tensor(order[: len(order) // 4]), torch.tensor(order[len(order) // 4 :])
    merged, rows = trained(fresh(HEADS, seed), split[1], STEPS, seed), {}
    for heads in (8, 4, 2, 1):
        errors: list[float] = []
        if heads < HEADS:
            merged, errors = merge(merged, heads, split[1])
        begun = merged if heads == HEADS else trained(fresh(heads, seed), split[1], STEPS, seed)
        rows[str(heads)] = {
            "block_errors": errors,
            "merged": judged(merged, split[0]),
            "tuned": judged(further(merged, heads, split[1], seed), split[0]),
            "from_the_start": judged(further(begun, heads, split[1], seed), split[0]),
        }
    python = ".".join(map(str, sys.version_info[:3]))
    sizes = {"train": len(split[1]), "test": len(split[0]), "guessing": 1 - 1 / len(packages)}
    return {"python": python, "packages": list(packages), **sizes, "heads": rows}


def fresh(heads: int, seed: int) -> Any:
    """A BERT with so many heads and random weights."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=DIM,
        num_attention_heads=heads,
        num_hidden_layers=LAYERS,
        intermediate_size=2 * DIM,
        max_position_embeddings=LENGTH,
        num_labels=len(texts()[0]),
        pad_token_id=PADDING,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


def inputs(rows: Any) -> dict[str, Any]:
    """What the model reads of these texts."""
    ids, _ = numbers()
    return {"input_ids": ids[rows], "attention_mask": (ids[rows] != PADDING).long()}


def trained(model: Any, rows: Any, steps: int, seed: int) -> Any:
    """The model after so many steps of AdamW on random batches of these texts."""
    import torch

    _, labels = numbers()
    torch.manual_seed(seed)
    adam, rng = torch.optim.AdamW(model.parameters(), lr=RATE), np.random.default_rng([seed, 0xBA7C])
    model.train()
    for _ in range(steps):
        chosen = rows[torch.tensor(rng.integers(len(rows), size=BATCH))]
        adam.zero_grad()
        model(**inputs(chosen), labels=labels[chosen]).loss.backward()
        adam.step()
    return model.eval()


def further(model: Any, heads: int, rows: Any, seed: int) -> Any:
    """A copy of the model, trained for some more steps."""
    again = fresh(heads, seed)
    again.load_state_dict(model.state_dict())
    return trained(again, rows, FURTHER, seed + 1000)


def judged(model: Any, rows: Any) -> dict[str, float]:
    """Mean loss and share of errors on these texts."""
    import torch

    _, labels = numbers()
    with torch.no_grad():
        scores = model(**inputs(rows)).logits
    loss = torch.nn.functional.cross_entropy(scores, labels[rows])
    return {"loss": float(loss), "error": float((scores.argmax(1) != labels[rows]).double().mean())}


def merge(model: Any, heads: int, rows: Any) -> tuple[Any, list[float]]:
    """A model with fewer heads of the greater width that the class then has, and the error of each block."""
    from safetensors.torch import load_file

    from attnlearn.whole import compress_model

    batches = [inputs(part) for part in rows[:MERGED_ON].split(50)]
    with tempfile.TemporaryDirectory() as folder:
        found = compress_model(model, batches, folder, num_heads=heads, head_dim=DIM // heads)
        if not all(block.written for block in found.blocks):
            raise RuntimeError(f"not written: {[block.why for block in found.blocks]}")
        smaller = fresh(heads, 0)
        smaller.load_state_dict(load_file(Path(folder) / "weights.safetensors"))
    return smaller.eval(), [float(block.error or 0.0) for block in found.blocks]
