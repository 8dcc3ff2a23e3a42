"""Examples that are not independent: copies, near copies, windows of one text, one large document.

Too few different sequences determine the layer, and the certify side repeats what was fitted. Fresh examples come from the
population behind the copies. C1 is false there whenever the fit is not the layer itself, and no setting of a bound helps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlearn import AttentionLayer
from tests.problems._plain import forward
from tests.problems._problem import (
    FIT_FAILED,
    GENERAL_POSITION,
    HONEST,
    Fresh,
    Problem,
    from_tokens,
    random_layer,
    shuffled,
)

FEW = HONEST | FIT_FAILED


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.choice([6, 8])), int(rng.integers(3, 6)), int(rng.integers(2, 5))


def _few(rng: np.random.Generator, d: int, k: int, m: int) -> int:
    """About as many sequences as it takes to have an equation for every unknown."""
    return max(6, int(rng.uniform(0.4, 1.2) * m * (2 * d + 1) / k))


def _gaussian(k: int, d: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda g, n: g.standard_normal((n, k, d))


def _copied(
    name: str,
    rng: np.random.Generator,
    layer: AttentionLayer,
    population: Callable[[np.random.Generator, int], np.ndarray],
    copy: Callable[[np.ndarray], np.ndarray],
    different: int,
    right: frozenset[str] = FEW,
    **options,
) -> Problem:
    """Examples that `copy` makes of a few sequences of the population, which also gives the fresh ones."""
    x = copy(population(rng, different))
    seed = int(rng.integers(2**31))

    def draw(num: int, _) -> Fresh:
        fresh = population(np.random.default_rng(seed), num)
        return Fresh(fresh, forward(layer, fresh))

    return Problem(name, x, forward(layer, x), layer, right, options=options, draw=draw)


def upsampled(rng):
    """Few sequences, each many times, or a few of them much oftener than the rest; sometimes only C1 is asked for."""
    d, k, m = _shape(rng)
    different = _few(rng, d, k, m)
    weights = rng.dirichlet(np.full(different, float(rng.choice([0.3, 100.0]))))
    options = {"target": 1e-3} if rng.random() < 0.5 else {}
    return _copied(
        "few sequences, many times",
        rng,
        random_layer(rng, d, m),
        _gaussian(k, d),
        lambda u: u[rng.choice(different, 2500, p=weights)],
        different,
        **options,
    )


def jittered(rng):
    """Copies that differ by a jitter of 1e-12 to 1e-1, so that no two are equal."""
    d, k, m = _shape(rng)
    size = float(10.0 ** rng.uniform(-12, -1))

    def copy(u: np.ndarray) -> np.ndarray:
        x = np.tile(u, (2500 // len(u), 1, 1))
        return x + size * rng.standard_normal(x.shape)

    different = _few(rng, d, k, m)
    return _copied(
        "jittered copies", rng, random_layer(rng, d, m), _gaussian(k, d), copy, different, target=1e-3
    )


def one_changed(rng):
    """Copies with one coordinate drawn anew: every sequence is new, and nearly none of what it shows."""
    d, k, m = _shape(rng)

    def copy(u: np.ndarray) -> np.ndarray:
        x = np.tile(u, (2500 // len(u), 1, 1))
        x[np.arange(len(x)), rng.integers(k, size=len(x)), rng.integers(d, size=len(x))] = (
            rng.standard_normal(len(x))
        )
        return x

    different = _few(rng, d, k, m)
    return _copied(
        "one coordinate anew", rng, random_layer(rng, d, m), _gaussian(k, d), copy, different, target=1e-3
    )


def reordered(rng):
    """Few sequences, their tokens in many orders: different arrays, and one and the same information."""
    d, k, m = _shape(rng)
    k, jitter = max(k, 5), float(rng.choice([0.0, 1e-9, 1e-6]))

    def copy(u: np.ndarray) -> np.ndarray:
        x = shuffled(np.tile(u, (2500 // len(u), 1, 1)), rng)
        return x + jitter * rng.standard_normal(x.shape)

    return _copied(
        "copies in other orders",
        rng,
        random_layer(rng, d, m),
        _gaussian(k, d),
        copy,
        _few(rng, d, k, m),
        target=1e-3,
    )


def windows(rng):
    """Windows of one text, overlapping; the text is read several times over."""
    d, k, m = _shape(rng)
    length = k + 2 * _few(rng, d, k, m)

    def copy(u: np.ndarray) -> np.ndarray:
        text = u.reshape(-1, d)[:length]
        starts = np.tile(np.arange(length - k + 1), 2500 // (length - k + 1))
        return np.stack([text[start : start + k] for start in starts])

    return _copied(
        "windows of one text", rng, random_layer(rng, d, m), _gaussian(k, d), copy, length, target=1e-3
    )


def bags(rng):
    """Choices of a few tokens: hardly two sequences are equal, and all are made of fewer than twenty tokens.

    No data tell a text of few tokens from a list of few words, so fresh examples are made of the same ones.
    """
    d, k, m = _shape(rng)
    few = rng.standard_normal((int(rng.integers(max(k, d - 3), 20)), d))

    def tokens(g: np.random.Generator, n: int) -> np.ndarray:
        return few[np.argsort(g.random((n, len(few))), axis=1)[:, :k]]

    layer = random_layer(rng, d, m)
    return from_tokens("choices of a few tokens", rng, layer, tokens, FEW, n=2500, excuses=GENERAL_POSITION)


def prefixes(rng):
    """A causal layer on texts that begin with one of a few prefixes and differ in the last token."""
    d, k, m = _shape(rng)
    layer = random_layer(rng, d, m, causal=True)

    def copy(u: np.ndarray) -> np.ndarray:
        x = u[rng.integers(len(u), size=2500)]
        x[:, -1] = rng.standard_normal((2500, d))
        return x

    return _copied(
        "shared prefixes", rng, layer, _gaussian(k, d), copy, int(rng.integers(2, 12)), target=1e-3
    )


def giant_group(rng):
    """One document in a thousand is so long that half of all inputs are its own, and another layer made the outputs there.

    A sample without such a document is no rarity. What is claimed of documents is true, and of inputs false.
    """
    d, k, m = 8, int(rng.integers(3, 6)), int(rng.integers(1, 3))
    layer, other = random_layer(rng, d, m), random_layer(rng, d, m)
    seed, size = int(rng.integers(2**31)), int(rng.integers(1, 4))

    def draw(num: int, _) -> Fresh:
        x = np.random.default_rng([seed, 1]).standard_normal((num, k, d))
        long = np.arange(num) >= num // 2
        y = np.where(long[:, None, None], forward(other, x), forward(layer, x))
        return Fresh(x, y, None, np.arange(num) // np.where(long, 1000 * size, size) + num * long)

    x = np.random.default_rng([seed, 0]).standard_normal((5000, k, d))
    options = {"groups": np.arange(5000) // size} | ({"target": 1e-3} if rng.random() < 0.5 else {})
    return Problem("giant documents", x, forward(layer, x), layer, HONEST, options=options, draw=draw)


def documents(rng):
    """Documents of many sequences, given as groups; some documents, at least one, are another layer's."""
    d, k, m = 8, int(rng.integers(3, 6)), int(rng.integers(1, 3))
    layer, other = random_layer(rng, d, m), random_layer(rng, d, m)
    seed, share, size = (
        int(rng.integers(2**31)),
        float(10.0 ** rng.uniform(-2.5, -1)),
        int(rng.integers(5, 40)),
    )

    def draw(num: int, side: int) -> Fresh:
        g = np.random.default_rng([seed, side])
        groups = np.arange(num) // size
        chance = g.random(num // size + 1)
        odd = ((chance < share) | (chance == chance.min()))[groups]
        x = g.standard_normal((num, k, d))
        return Fresh(x, np.where(odd[:, None, None], forward(other, x), forward(layer, x)), None, groups)

    x, y, _, groups = draw(6000, 0)
    right = FIT_FAILED | {"HEADS_INDISTINGUISHABLE"}
    return Problem(
        "some foreign documents", x, y, None, right, options={"groups": groups}, draw=lambda n, _: draw(n, 1)
    )


COPIES: dict[str, Callable[[np.random.Generator], Problem]] = {
    "upsampled": upsampled,
    "jittered": jittered,
    "one coordinate anew": one_changed,
    "reordered": reordered,
    "windows": windows,
    "bags": bags,
    "prefixes": prefixes,
    "giant document": giant_group,
    "foreign documents": documents,
}
