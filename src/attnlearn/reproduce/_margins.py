"""Margins of the tokenized mixture: the proved lower bounds of docs/guarantees.md, section 8, and what a start cannot attain.

gamma_U is the margin of a direction of the read-out alone, gamma_W that of a direction of attention at the first-step start.
Both hold with noise, each with a given probability; together they give sqrt(gamma_U^2 + gamma_W^2). `unattained_claim`
compares the margins of the starts with those at weights whose attention looks at the relevant tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from attnlearn._precision import precision
from attnlearn.data import TokenizedMixture
from attnlearn.training import AttentionModel
from attnlearn.training._compare import tangent
from attnlearn.training._initialize import INITIALIZATIONS, initialize
from attnlearn.training._model import Weights
from attnlearn.training._problem import make_problem

STRENGTHS = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Scores of relevant tokens above the others, of the weights that look at them."""


def margin_bound(mixture: TokenizedMixture, num: int, failure: float) -> float:
    """gamma_U: gamma >= sqrt(T/2) (zeta s - 2 noise sqrt((1 - zeta) log(n / failure) / T)) with probability 1 - failure.

    >>> round(margin_bound(TokenizedMixture(tokens=10, dim=8, noise=0.0), 50, 0.05), 6)
    0.447214
    """
    zeta, tokens = mixture.zeta, mixture.tokens
    noise = 2 * mixture.noise * math.sqrt((1 - zeta) * math.log(num / failure) / tokens)
    return math.sqrt(tokens / 2) * (zeta * mixture.signal - noise)


def attention_margin_bound(
    mixture: TokenizedMixture, u: Float[np.ndarray, "d"], num: int, failure: float
) -> float:
    """gamma_W at U_h = alpha_h 1 u^T with signs alpha_h, with probability 1 - failure over examples independent of u.

    It does not depend on the number of heads, because ‖alpha‖ = sqrt(H). Not positive: nothing is shown.

    >>> model = TokenizedMixture(tokens=10, dim=8, noise=0.0)
    >>> u = model.zeta / 4 * (model.signals[0] - model.signals[1])
    >>> zeta = model.zeta
    >>> bool(np.isclose(attention_margin_bound(model, u, 50, 0.05), 10 / 2**0.5 * zeta / 4 * zeta**2 * (1 - zeta)))
    True
    """
    zeta, s, tokens = mixture.zeta, mixture.signal, mixture.tokens
    rest = tokens - mixture.relevant_tokens
    if rest == 0:
        return 0.0

    def largest(size: float, events: float) -> float:
        """What `events` sub-Gaussian numbers of this size exceed with probability failure / 4 at most."""
        return mixture.noise * size * math.sqrt(2 * math.log(4 * events / failure))

    mean_e, each_e = largest(s / math.sqrt(rest), 4 * num), largest(s, 4 * num * rest)
    length = float(np.linalg.norm(u))
    mean_g, each_g = largest(length / math.sqrt(rest), 2 * num), largest(length, 2 * num * rest)
    plus, minus, others = u @ mixture.signals[0], u @ mixture.signals[1], mixture.signals[2:] @ u
    lead = min(plus - others.max(), others.min() - minus) - mean_g
    most = max(abs(plus - others).max(), abs(minus - others).max()) + mean_g
    inner = (1 - zeta) * each_e * ((others.max() - others.min()) / 2 + each_g)
    right = zeta * (1 - zeta) * (s**2 - mean_e) * lead - inner
    wrong = zeta * (1 - zeta) * mean_e * most + inner
    first, second = zeta * s**2 - (1 - zeta) * mean_e, (1 - zeta) * mean_e
    if min(first, right, lead, s**2 - mean_e) < 0:
        return -math.inf
    return tokens / (math.sqrt(2) * s**2) * (first * right - second * wrong)


def attention_margin(
    mixture: TokenizedMixture,
    u: Float[np.ndarray, "d"],
    x: Float[np.ndarray, "n k d"],
    y: Float[np.ndarray, "n"],
) -> float:
    """What the bound is about: the least y <grad Phi, v> over examples, v the unit direction of attention of the proof."""
    mu = mixture.signals[:2]
    means = x.mean(axis=1)
    along = (x - means[:, None]) @ u
    moved = np.einsum("nkd,nk->nd", x - means[:, None], along) / x.shape[1]
    value = y * np.sum((means @ mu.T) * (moved @ mu.T), axis=1)
    return float(value.min()) * x.shape[1] / (math.sqrt(2) * mixture.signal**2)


def unattained_claim(*, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Tangent margins at the three starts, and at weights whose attention prefers relevant tokens by growing scores."""
    mixture = TokenizedMixture(tokens=10, dim=16, noise=0.1)
    heads, draws = 4, 3 if quick else 5
    starts: dict[str, list[float]] = {name: [] for name in INITIALIZATIONS}
    looking: dict[str, list[float]] = {f"{strength:g}": [] for strength in STRENGTHS}
    for draw in range(seed, seed + draws):
        x, y = mixture.sample(50, seed=draw)
        for name in INITIALIZATIONS:
            begin = initialize(AttentionModel(), name, x, y, heads, np.random.default_rng(draw))
            starts[name].append(_margin(x, y, begin, draw))
        for strength in STRENGTHS:
            begin = initialize(AttentionModel(), "first-step", x, y, heads, np.random.default_rng(draw))
            w = np.broadcast_to(strength * looking_weights(mixture), begin.w.shape)
            looking[f"{strength:g}"].append(_margin(x, y, Weights(begin.u, w), draw))
    limit = mixture.signal * math.sqrt(mixture.tokens / 2)
    return {
        "starts": starts,
        "looking": looking,
        "limit": limit,
        "uniform": mixture.zeta * limit,
        "draws": draws,
    }


def looking_weights(mixture: TokenizedMixture) -> Float[np.ndarray, "d d"]:
    """W under which every signal, as a query, scores relevant keys 1 and the others 0."""
    signals = mixture.signals
    return np.outer(signals.sum(axis=0), signals[:2].sum(axis=0)) / mixture.signal**4


def _margin(x: np.ndarray, y: np.ndarray, begin: Weights, seed: int) -> float:
    problem = make_problem(x, y, num_heads=len(begin.u), init="first-step")
    with precision(problem.dtype):
        return tangent(problem, begin, np.random.default_rng(seed)).margin
