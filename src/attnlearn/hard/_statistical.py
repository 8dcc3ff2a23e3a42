"""Statistical queries on the parity family: the bound, and a simulator whose learner comes near it.

A learner asks for the mean of a function q(x, y) in [-1, 1] and is answered within `tolerance` (tau). Given x, the
output takes one of two values, told apart by chi_J where it is visible (probability p = 1/4, see `_family`):

    q = g(x) + h(x) chi_J(x),   |g| + |h| <= 1,   h = 0 where the label is invisible
    sum over J of E[h chi_J]^2  <=  p E[h^2]  <=  p^2                            (Bessel: chi_J 1_V / sqrt(p) orthonormal)

so at most (p/tau)^2 members have |E[h chi_J]| > tau. To every other one the answer E[g], which knows nothing of J, is
within tolerance. An adversary who answers E[g] throughout leaves a deterministic learner with two members or more
until it has asked at least (D - 1) (tau/p)^2 = 16 tau^2 (D - 1) queries; in particular at least 2 tau^2 (D - 1).

The learner of the simulator asks h = sign(sum over a group of K members of ± chi_J): each has correlation about
p sqrt(2/(pi K)), above tau for K up to (2/pi) (p/tau)^2: within a constant of what the bound allows. Whatever is
inconsistent with an answer is struck out, so the learner is right against any oracle that keeps its tolerance.

A learner that may guess and err: J is uniform, and with probability s the answer is a function whose mean squared error is at most
`error` = (1 - gamma^2)/2 of the member's. Whatever its coins, at most t (p/tau)^2 members are seen by t queries; for all others the answer
is one function, which is that near to at most 1/gamma^2 members. So t >= (s D - 1/gamma^2) (tau/p)^2 (docs/hardness.md).

Cost: one fast Walsh-Hadamard transform of 2^(d-2) numbers a query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn._errors import require
from attnlearn.hard._family import VISIBLE, parity_subsets

MARGIN = 1.1
"""Expected correlation of a group's members over the tolerance: the characters of a group are only pairwise independent,
so the correlations scatter, and a group at the limit leaves many members below the tolerance, to be asked again (924
members, tau = 0.04: 71 queries at 1.0, 51 at 1.1, 66 at 1.25)."""
MOST_BITS = 20
"""Largest d - 2 of the simulator: 2^20 numbers a query."""
Answer = Callable[[Float[np.ndarray, "D"], Bool[np.ndarray, "D"]], float]


def sq_bound(
    members: int, tolerance: float, visible: float = VISIBLE, *, success: float = 1.0, error: float = 0.0
) -> float:
    """Queries of tolerance tau that every learner needs: (s D - 1/(1 - 2 error)) (tau/p)^2 (see the module).

    `visible` is the probability p that an answer shows the label; with N fresh examples a query tau is about
    1/sqrt(N). `success` is the learner's probability s of succeeding, over J and its own coins; 1 is also the bound for deterministic
    learners and the worst J. `error` is the mean squared error it may have, as a share of the member's; guessing the parity has 1/2.

    >>> sq_bound(members=1001, tolerance=0.05), sq_bound(members=1001, tolerance=0.05, success=0.5, error=0.25)
    (40.0, 19.94)
    """
    require(members >= 1, "members", "must be at least 1", members)
    require(tolerance >= 0, "tolerance", "must not be negative", tolerance)
    require(0 < visible <= 1, "visible", "must lie in (0, 1]", visible)
    require(0 < success <= 1, "success", "must lie in (0, 1]", success)
    require(0 <= error < 1 / 2, "error", "must lie in [0, 1/2)", error)
    return round(max(0.0, success * members - 1 / (1 - 2 * error)) * (tolerance / visible) ** 2, 12)


@dataclass(frozen=True)
class QueryRun:
    """What a statistical-query learner spent: queries, the bound, the members left, the hidden one among them.

    >>> simulate_queries(8, 2, tolerance=0.2).queries >= sq_bound(15, 0.2)
    True
    """

    queries: int
    bound: float
    members: int
    tolerance: float
    left: tuple[tuple[int, ...], ...]


def simulate_queries(
    dim: int,
    num_heads: int,
    tolerance: float,
    *,
    subset: tuple[int, ...] | None = None,
    examples: int | None = None,
    seed: int = 0,
    max_queries: int = 100_000,
) -> QueryRun:
    """Find the hidden set by statistical queries and count them.

    Without `subset` the adversary answers: the common value, as long as some member allows it. With `subset` that
    member answers, with an error drawn uniformly within the tolerance, or, with `examples`, by the mean over so many
    fresh examples (then the tolerance should be a few times 1/(2 sqrt(examples)), or answers may exceed it).

    >>> simulate_queries(8, 2, tolerance=0.1, subset=(1, 4)).left
    ((1, 4),)
    """
    require(0 < tolerance < VISIBLE, "tolerance", f"must lie between 0 and {VISIBLE}: beyond, no query says anything", tolerance)  # fmt: skip
    require(dim - 2 <= MOST_BITS, "dim", f"must be at most {MOST_BITS + 2}", dim)
    subsets = list(parity_subsets(dim, num_heads))
    index = np.array([sum(1 << p for p in s) for s in subsets])
    rng = np.random.default_rng([seed, 0x50])
    answer = _answering(subsets, subset, tolerance, examples, rng)
    group = group_size(tolerance)
    alive, queries = np.ones(len(subsets), bool), 0
    while alive.sum() > 1 and queries < max_queries:
        asked = rng.permutation(np.flatnonzero(alive))[: min(group, max(1, int(alive.sum()) // 2))]
        correlations = VISIBLE * _correlations(index[asked], dim - 2, rng)[index]
        value = answer(correlations, alive)
        alive &= np.abs(value - correlations) <= tolerance
        queries += 1
    left = tuple(subsets[j] for j in np.flatnonzero(alive))
    return QueryRun(queries, sq_bound(len(subsets), tolerance), len(subsets), tolerance, left)


def group_size(tolerance: float) -> int:
    """The largest odd K for which the majority of K independent signs correlates with each beyond the tolerance.

    The correlation is p C(K - 1, (K - 1)/2)/2^(K - 1), about p sqrt(2/(pi K)).

    >>> [group_size(tolerance) for tolerance in (0.2, 0.1, 0.05)]
    [1, 3, 13]
    """
    size, correlation = 1, VISIBLE
    # The majority of three is (a + b + c - abc)/2, whose correlations are exactly 1/2: no margin is needed.
    while (following := correlation * size / (size + 1)) > (MARGIN if size > 1 else 1.0) * tolerance:
        size, correlation = size + 2, following
    return size


def _answering(
    subsets: list[tuple[int, ...]],
    subset: tuple[int, ...] | None,
    tolerance: float,
    examples: int | None,
    rng: np.random.Generator,
) -> Answer:
    if subset is None:
        return _adversary(tolerance)
    hidden = tuple(sorted(subset))
    require(hidden in subsets, "subset", "must be a member of the family", subset)
    true = subsets.index(hidden)
    if examples is None:
        return lambda correlations, alive: float(correlations[true] + rng.uniform(-tolerance, tolerance))

    def sampled(correlations: np.ndarray, alive: np.ndarray) -> float:
        # q is ±1 where the label is visible and 0 elsewhere: a multinomial count is the mean of fresh examples.
        mean = correlations[true]
        plus, minus, _ = rng.multinomial(examples, [(VISIBLE + mean) / 2, (VISIBLE - mean) / 2, 1 - VISIBLE])
        return float((plus - minus) / examples)

    return sampled


def _adversary(tolerance: float) -> Answer:
    """The common value 0 while some member allows it, otherwise what keeps most members."""

    def answer(correlations: np.ndarray, alive: np.ndarray) -> float:
        if np.any(alive & (np.abs(correlations) <= tolerance)):
            return 0.0
        values = correlations[alive]
        return float(values[np.argmax([np.sum(np.abs(values - v) <= tolerance) for v in values])])

    return answer


def _correlations(
    group: Int[np.ndarray, "K"], bits: int, rng: np.random.Generator
) -> Float[np.ndarray, "2**n"]:
    """E[h chi_J] for every J, h the sign of a random signed sum of the group's characters."""
    coefficients = np.zeros(1 << bits)
    coefficients[group] = rng.choice([-1.0, 1.0], len(group)) * rng.uniform(1.0, 1.0 + 1e-6, len(group))
    return walsh(np.sign(walsh(coefficients))) / (1 << bits)


def walsh(values: Float[np.ndarray, "2**n"]) -> Float[np.ndarray, "2**n"]:
    """The fast Walsh-Hadamard transform: sum over z of values[z] (-1)^<z, index>.

    >>> walsh(np.array([1.0, 0.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    out, width = np.array(values, float), 1
    while width < len(out):
        pairs = out.reshape(-1, 2, width)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        width *= 2
    return out
