"""No false claim on random problems, most of them made to mislead: tokens of many kinds, heads that depend on each other, noise."""

from __future__ import annotations

import numpy as np

from attnlearn import LinearAttentionLayer, recover
from attnlearn.recovery.linear import LinearConfig

KINDS = {
    "gaussian": lambda x, rng: x,
    "signs": lambda x, rng: np.sign(x),
    "integers": lambda x, rng: np.round(2 * x),
    "words": lambda x, rng: rng.standard_normal((12, x.shape[2]))[rng.integers(12, size=x.shape[:2])],
    "antipodal": lambda x, rng: np.concatenate([x, -x], axis=1),
    "repeated": lambda x, rng: np.concatenate([x, x], axis=1),
    "flat": lambda x, rng: x * (np.arange(x.shape[2]) > 0),
    "shifted": lambda x, rng: x + 5,
    "tiny": lambda x, rng: 1e-4 * x,
    "sphere": lambda x, rng: x / np.linalg.norm(x, axis=2, keepdims=True),
    "copies": lambda x, rng: np.concatenate([x[: len(x) // 2]] * 2),
    "one-hot": lambda x, rng: np.eye(x.shape[2])[rng.integers(x.shape[2], size=x.shape[:2])],
    "heavy": lambda x, rng: rng.standard_t(2.5, size=x.shape),
}


def drawn(rng, kind):
    """Tokens, a layer and its outputs."""
    n, k, d, o, m = (
        int(rng.choice(choices))
        for choices in ([60, 600], range(2, 6), range(1, 5), range(1, 5), range(1, 4))
    )
    x = KINDS[kind](rng.standard_normal((n, k, d)), rng)
    rank = int(rng.integers(1, d + 1))
    theta = rng.standard_normal((m, d, rank)) @ rng.standard_normal((m, rank, d))
    if m > 1 and rng.integers(4) == 0:
        theta[1] = theta[0]
    c, b = rng.standard_normal((m, d)) * rng.integers(2), rng.standard_normal(o) * rng.integers(2)
    truth = LinearAttentionLayer(theta, rng.standard_normal((m, d, o)), c, b, bool(rng.integers(2)))
    mask = np.arange(x.shape[1]) < rng.integers(1, x.shape[1] + 1, (n, 1)) if rng.integers(3) == 0 else None
    y = truth(x, mask)
    return x, y + 1e-6 * np.abs(y).max() * rng.standard_normal(y.shape) * (rng.integers(6) == 0), mask, truth


def needed(truth, rng):
    """The rank of M(a), from the true heads."""
    a = rng.standard_normal(truth.dim)
    left = np.concatenate([truth.theta @ a, (truth.query_bias @ a)[:, None]], axis=1)
    values = np.linalg.svd(np.einsum("iu,io->uo", left, a @ truth.w), compute_uv=False)
    return int(np.sum(values > 1e-9 * values[0]))


def test_no_claim_is_false(seed):
    unique = certified = refused = 0
    for index in range(104):
        rng = np.random.default_rng([seed, index])
        x, y, mask, truth = drawn(rng, list(KINDS)[index % len(KINDS)])
        config = LinearConfig(
            biases=bool(np.any(truth.query_bias) or np.any(truth.output_bias) or rng.integers(2))
        )
        causal = truth.causal if rng.integers(2) else None
        solution = recover(
            x, y, method="linear", mask=mask, causal=causal, config=config, raise_on_failure=False
        )
        if not solution.certificate.claims:
            continue
        u, c2 = solution.certificate.claim("U"), solution.certificate.claim("C2")
        refused += not u.established
        if u.established and c2.value["at_least"] is not None:
            fresh = np.abs(x).max() * rng.standard_normal((100, 5, truth.dim))
            error = np.linalg.norm(solution.layer(fresh) - truth(fresh)) / np.linalg.norm(truth(fresh))
            assert error < 1e-6, (index, error)
            unique += 1
        if c2.established:
            assert solution.layer.num_heads == needed(truth, rng), index
            certified += 1
    assert min(unique, certified, refused) >= 15, "too few of each kind to say anything"
