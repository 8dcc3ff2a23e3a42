"""The rival that trains: query, key, value and output factors of a shape by Adam, from the best closed form; for fewer heads from the best drop with every W refitted.

Batches of 2,048 tokens, cosine schedule to zero from each of three rates, one length; the run with the smallest error on 800 of its examples counts, with its own
time. For narrower heads it starts from the closed form that ours starts from too, in white coordinates, O fitted by least squares, and may use every example: it
keeps none apart for a certificate.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from attnlearn import AttentionLayer
from attnlearn._attention import Parameters
from attnlearn.compression._closed import closed_form
from attnlearn.compression._factored import Factored
from attnlearn.compression._grouping import best_groups
from attnlearn.compression._projection import Projection
from attnlearn.compression._shape import Shape
from attnlearn.compression._state import select_error
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression, select
from attnlearn.solve._rank import largest_rank

RATES = (1e-3, 3e-3, 1e-2)
STEPS, BATCH = 1_500, 2_048
JUDGED = 800


class Trained(NamedTuple):
    """The layer of a run, its error on the judging examples, its CPU seconds and its rate."""

    layer: AttentionLayer
    judged: float
    seconds: float
    rate: float


def train_factors(
    layer: AttentionLayer, x: np.ndarray, shape: Shape, seed: int = 0, rates: tuple[float, ...] = RATES
) -> Trained:
    """The best run for narrower heads or shared keys and values."""
    ground = WhitenedRegression(Batch(x, layer(x)), layer.causal)
    inside = ground.enter(layer)
    inside = select(inside, np.concatenate(best_groups(inside, shape.kv_heads, shape.head_dim)))
    start = closed_form(inside, shape)
    linear = Projection(ground.chunks, layer.causal, ground.total).linear(start)
    return _best(ground, start, linear, layer, x, seed, rates)


def train_heads(
    layer: AttentionLayer,
    x: np.ndarray,
    start: AttentionLayer,
    seed: int = 0,
    rates: tuple[float, ...] = RATES,
) -> Trained:
    """The best run for fewer heads: from `start`, the scores of the rank that ours has, every W free."""
    ground = WhitenedRegression(Batch(x, layer(x)), layer.causal)
    inside, m, d = ground.enter(start), start.num_heads, layer.dim
    rank = min(d, max(largest_rank(layer.theta), d // m))
    found = closed_form(inside, Shape(m, rank, m))._replace(value=np.tile(np.eye(d), (m, 1, 1)))
    linear = np.concatenate([inside.w.reshape(m * d, -1), inside.output_bias[None]])
    return _best(ground, found, linear, layer, x, seed, rates)


def _best(
    ground: WhitenedRegression, start: Factored, linear: np.ndarray, layer: AttentionLayer, x: np.ndarray, seed: int,
    rates: tuple[float, ...],
) -> Trained:  # fmt: skip
    judge = Batch(x[:JUDGED], layer(x[:JUDGED]))
    tokens = ground.white.tokens(x).astype(np.float32)
    runs = []
    for rate in rates:
        began = time.process_time()
        found = ground.leave(_run(start, linear, tokens, layer(x), rate, layer.causal, seed))
        runs.append(Trained(found, select_error(found, judge), time.process_time() - began, rate))
    return min(runs, key=lambda run: run.judged)


def _run(start, linear, tokens, outputs, rate, causal, seed) -> Parameters:
    import torch

    generator = torch.Generator().manual_seed(seed)
    x, y = torch.from_numpy(tokens), torch.from_numpy(np.asarray(outputs, np.float32))
    m, share, r = start.heads, start.share, start.value.shape[-1]
    given = (start.query, start.key, start.value, linear[:-1].reshape(m, r, -1), linear[-1])
    parts = [torch.tensor(part, dtype=torch.float32, requires_grad=True) for part in given]
    optimizer = torch.optim.Adam(parts, lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if causal else None
    for _ in range(STEPS):
        chosen = torch.randint(len(x), (max(1, BATCH // x.shape[1]),), generator=generator)
        loss = torch.mean((_forward(parts, x[chosen], share, hidden) - y[chosen]) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    query, key, value, output, bias = (part.detach().numpy().astype(np.float64) for part in parts)
    both = query @ np.repeat(key, share, axis=0).transpose(0, 2, 1)
    return Parameters(both[:, :-1], np.repeat(value, share, axis=0) @ output, both[:, -1], bias)


def _forward(parts, x, share: int, hidden):
    import torch

    query, key, value, output, bias = parts
    n, k, d = x.shape

    def heads(weights):
        flat = weights.permute(1, 0, 2).reshape(d, -1)
        return (x.reshape(n * k, d) @ flat).reshape(n, k, len(weights), -1).transpose(1, 2)

    q = heads(query[:, :-1]) + query[:, -1][None, :, None]
    keys, values = (heads(part).repeat_interleave(share, dim=1) for part in (key, value))
    scores = q @ keys.transpose(2, 3)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    mixed = (torch.softmax(scores, dim=-1) @ values).transpose(1, 2).reshape(n * k, -1)
    return (mixed @ output.reshape(mixed.shape[-1], -1) + bias).reshape(n, k, -1)
