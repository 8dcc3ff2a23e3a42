"""A BERT and a GPT-2 trained for some minutes on English text: the language reference that comes with Python."""

from __future__ import annotations

import re
import time
from collections import Counter
from functools import cache
from pydoc_data import topics
from typing import Any

import numpy as np

from benchmarks.models.fetch import kept

WORDS, LENGTH, LAYERS, UNKNOWN, MASKED = 2_000, 32, 3, 0, 1


@cache
def text() -> np.ndarray:
    """The text as numbers of its words: the most frequent ones, and one for all others."""
    words = re.findall(r"\w+|[^\w\s]", " ".join(topics.topics.values()).lower())
    frequent = [word for word, _ in Counter(words).most_common(WORDS - 2)]
    number = {word: place + 2 for place, word in enumerate(frequent)}
    return np.array([number.get(word, UNKNOWN) for word in words])


def windows(number: int, seed: int) -> Any:
    """Random windows of the text."""
    import torch

    starts = np.random.default_rng([seed, 0x7E37]).integers(len(text()) - LENGTH, size=number)
    return torch.tensor(text()[starts[:, None] + np.arange(LENGTH)])


def model(kind: str, dim: int, heads: int, seconds: float, seed: int) -> Any:
    """The model after so many seconds of Adam; it is trained once on this machine, so that its layers are those of one model."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    if kind == "bert":
        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=dim,
            num_attention_heads=heads,
            num_hidden_layers=LAYERS,
            intermediate_size=4 * dim,
        )
        found = BertForMaskedLM(config)
    else:
        found = GPT2LMHeadModel(
            GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=dim, n_head=heads, n_layer=LAYERS)
        )
    name = f"{kind}-{dim}-{heads}-{seconds:.0f}-{seed}"
    found.load_state_dict(kept(name, lambda: _trained(found, kind, seconds, seed)))
    return found.eval()


def _trained(found: Any, kind: str, seconds: float, seed: int) -> Any:
    """The weights of a model after so many seconds of Adam."""
    import torch

    adam, began, step = torch.optim.Adam(found.parameters(), lr=1e-3), time.perf_counter(), 0
    found.train()
    while time.perf_counter() - began < seconds:
        ids = windows(32, step + 10_000 * (seed + 1))
        hidden = torch.rand(ids.shape) < 0.15
        labels = ids.masked_fill(~hidden, -100) if kind == "bert" else ids
        shown = ids.masked_fill(hidden, MASKED) if kind == "bert" else ids
        adam.zero_grad()
        found(input_ids=shown, labels=labels).loss.backward()
        adam.step()
        step += 1
    return found.state_dict()
