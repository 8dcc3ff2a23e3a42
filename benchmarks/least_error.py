"""How close any layer with fewer heads can come on Gaussian tokens: a lower bound on its error.

Fix the query x_a. Head i sees key x_b by t_i . x_b alone, t_i = Theta_i^T x_a + c_i, and a head of another layer by tau_j . x_b.
Let x' be the part of a key that is orthogonal to all t_i and tau_j: Gaussian, and independent of every pattern. The difference of
the two outputs is linear in the x'_b,

    sum_b x'_b (sum_i alpha_ib W_i - sum_j beta_jb V_j)  +  terms that x' does not enter,

so its mean square is at least that of this sum: the error of approximating sum_i alpha_i (x) P W_i, P the projection onto the
directions of x', by h terms beta_j (x) P V_j. Whatever functions the beta_j are, that is at least the tail of the singular values
after the h-th: with A_il = E sum_b alpha_ib alpha_lb and B_il = <P W_i, P W_l>, of the eigenvalues of A^1/2 B A^1/2. The V_j may
even differ from query to query, and attention to the query's own token costs nothing here, so the bound is generous.

The tau_j are not known: the least tail over h further directions taken out of P is looked for by turns (the best directions for
given combinations of heads, the best combinations for given directions), from the plain tail and from random combinations; what
it finds is a minimum that several starts agree on, not one that is proved. Averaged over queries, minus three standard errors.
"""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn._attention import softmax

QUERIES = 200
KEYS = 3_000
STARTS = 4
TURNS = 60
SETTLED = 1e-4


def least_error(
    layer: AttentionLayer, tokens: int, heads: int, *, queries: int = QUERIES, seed: int = 0
) -> float:
    """Error, relative to the spread of the outputs, below which no layer with so many heads comes on Gaussian white tokens."""
    rng = np.random.default_rng([seed, 0xB0D])
    layer = layer.astype(np.float64)
    y = layer(rng.standard_normal((2_000, tokens, layer.dim)))
    spread = np.mean(np.sum((y - y.mean(axis=(0, 1))) ** 2, axis=2))
    tails = [_least_tail(_terms(layer, tokens, rng), heads, rng) for _ in range(queries)]
    bound = np.mean(tails) - 3 * np.std(tails) / np.sqrt(queries)
    return float(np.sqrt(max(bound, 0.0) / spread))


def _terms(layer: AttentionLayer, tokens: int, rng: np.random.Generator) -> np.ndarray:
    """A^1/2 applied to the P W_i (m, d, o), for a random query; P leaves the directions that no t_i has."""
    query = rng.standard_normal(layer.dim)
    t = np.einsum("mij,i->mj", layer.theta, query) + layer.query_bias
    basis, root = np.linalg.qr(t.T)  # t_i . x = root[:, i] . z with z white
    scores = rng.standard_normal((KEYS, tokens - 1, len(root))) @ root
    own = np.broadcast_to(t @ query, (KEYS, 1, len(t)))
    alpha = softmax(np.swapaxes(np.concatenate([scores, own], axis=1), 1, 2))[:, :, :-1]
    values, vectors = np.linalg.eigh(np.einsum("nib,nlb->il", alpha, alpha, optimize=True) / KEYS)
    half = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    left = layer.w - np.einsum("dj,ej,meo->mdo", basis, basis, layer.w, optimize=True)
    return np.einsum("il,ldo->ido", half, left, optimize=True)


def _least_tail(terms: np.ndarray, heads: int, rng: np.random.Generator) -> float:
    """The least sum of squared singular values after the first `heads`, over `heads` directions that may be taken out."""
    m = len(terms)
    if heads >= m:
        return 0.0
    d = terms.shape[1]
    reads = np.einsum("ido,leo->ilde", terms, terms, optimize=True).reshape(m * m, d * d)
    gram = (reads @ np.eye(d).reshape(-1)).reshape(m, m)
    plain = np.linalg.eigh(gram)[1][:, : m - heads]
    least = np.inf
    for start in range(STARTS):
        lost = plain if start == 0 else np.linalg.qr(rng.standard_normal((m, m - heads)))[0]
        before = np.inf
        for _ in range(TURNS):
            read = ((lost @ lost.T).reshape(-1) @ reads).reshape(d, d)
            taken = np.linalg.eigh(read)[1][:, -heads:]
            values, vectors = np.linalg.eigh(gram - (reads @ (taken @ taken.T).reshape(-1)).reshape(m, m))
            lost, tail = vectors[:, : m - heads], float(np.sum(values[: m - heads]))
            if tail > (1 - SETTLED) * before:
                break
            before = tail
        least = min(least, tail)
    return max(least, 0.0)
