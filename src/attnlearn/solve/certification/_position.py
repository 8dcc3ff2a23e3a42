"""General position: whether the tokens of a sequence are free of each other, as the theorem behind C2 and C3 asks.

The theorem (docs/certificates.md, "When two layers are one function") wants sequences with a joint density. Data cannot show a
density, but they show these violations of it, each a number in `Position`:

keys       Repeated tokens are one key. With fewer than three different keys (or two of different multiplicity) a head
           equals its negative and a flat one.
spread     The differences of a sequence's tokens have full rank min(keys - 1, directions); collinear tokens have rank one.
tied       Directions of the stacked sequence in which it does not vary: linear relations between tokens. One more where a share
           of the sequences has a relation that the others hide (`_atoms`), or differences of smaller rank.
functions  Directions of one token that a quadratic function of the others gives exactly.
balanced   Directions in which the *mean* of a sequence's tokens does not vary. If a linear map permutes the keys of every sequence
           (antipodal pairs, mirror images, orbits of a rotation, in any order), the mean lies in the map's fixed space.
           So a mean that varies in every direction excludes all such maps. Centred sequences are balanced too and identifiable:
           there the second opinion decides.
quadrics   Quadrics that hold all tokens, but for one ellipsoid. Tokens in a union of subspaces lie on quadrics, and there a head can be
           made of the parts of others.
continuous Whether tokens look as if they had a density: every coordinate takes about as many values as there are tokens, hardly
           any sequence has differences of smaller rank, and no direction was found in which a share of the tokens has one value.

Tokens that stand in every sequence ([CLS], BOS) are left out. The mean is that of sequences of every length. The rest is looked for in
sequences of one number of different keys: the commonest one whose tokens vary in every direction, for sequences in a subspace
tell nothing about the others. Relations are looked for on random subsets of about twice as many sequences as directions: a few
free sequences among thousands of tied ones do not hide a relation.
Cost: eigenvalues of one matrix as large as the stacked sequence, and small regressions. What can fail: too few sequences for
the stacked matrix; then relations are looked for between three tokens at a time (`Position.whole` is False).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from jaxtyping import Float

from attnlearn._types import Mask, Tokens
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._sequences import evidence_wanted, token_names
from attnlearn.solve._white import whitening
from attnlearn.solve.certification._atoms import has_atom


@dataclass(frozen=True)
class Position:
    """What the tokens show about general position; see the module for each number."""

    keys: int
    spread: float
    tied: int
    functions: int
    balanced: int
    quadrics: int
    continuous: bool
    whole: bool

    @property
    def free(self) -> bool:
        """Whether nothing was found that ties the tokens of a sequence to each other."""
        return self.tied == 0 and self.functions == 0

    @property
    def centred(self) -> bool:
        """Whether the tokens' sum is fixed in some directions and no other relation was found."""
        return 0 < self.balanced == self.tied and self.functions <= self.balanced


def measure_position(x: Tokens, mask: Mask | None, seed: int = 0) -> Position:
    """General position of sequences x (n, k, d), as far as they can show it.

    >>> x = np.random.default_rng(0).standard_normal((400, 4, 3))
    >>> measure_position(x, None).free
    True
    >>> measure_position(np.concatenate([x, -x], axis=1), None).tied
    12
    """
    names = token_names(x, mask)
    distinct, multiple = _distinct(names)
    keys = _telling_keys(distinct, multiple)
    if keys < calibration.LEAST_KEYS:
        return Position(keys, 0.0, 0, 0, 0, 0, False, False)
    kinds = [_free_tokens(x[kind], names[kind]) for kind in _classes(distinct, multiple)]
    if kinds[0].shape[1] < calibration.LEAST_KEYS - 1:
        return Position(kinds[0].shape[1] + 1, 0.0, 0, 0, 0, 0, False, False)
    white = whitening(np.concatenate([tokens.reshape(1, -1, x.shape[2]) for tokens in kinds], axis=1), None)
    inside = [white.tokens(tokens) for tokens in kinds]
    chosen = next((place for place, free in enumerate(inside) if _spans(free)), 0)
    tokens, free, rng = kinds[chosen], inside[chosen], np.random.default_rng([seed, 0x9051])
    tied, whole = _tied(free, rng)
    spread, deficient = _spread(free)
    values = _values(tokens)
    many = values >= calibration.NEARLY_ALL
    few = has_atom(free.reshape(-1, free.shape[2]), rng)
    quadrics = _quadrics(free, few) if many else 0
    balanced, seldom = _balanced(inside, rng), deficient <= calibration.FEW
    if values >= calibration.ENOUGH_SHARE and not few and tied <= balanced:
        tied += not seldom or _tied_in_turn(free, rng)
    continuous = many and not few and seldom
    return Position(keys, spread, tied, _functions(free, rng), balanced, quadrics, continuous, whole)


def _distinct(names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different keys of every sequence, and whether they have different multiplicities; 0 names a padded token."""
    ordered = np.sort(names, axis=1)
    first = np.ones(names.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first &= ordered != 0
    distinct, visible = first.sum(axis=1), (names != 0).sum(axis=1)
    place = np.cumsum(first, axis=1)
    most = np.zeros(len(names), int)
    for key in range(1, int(distinct.max(initial=0)) + 1):
        np.maximum(most, ((place == key) & (ordered != 0)).sum(axis=1), out=most)
    return distinct, most * distinct != visible


def _telling_keys(distinct: np.ndarray, multiple: np.ndarray) -> int:
    """The number of keys that enough sequences have; two of different multiplicity tell as much as three."""
    telling = np.where(_two_unequal(distinct, multiple), calibration.LEAST_KEYS, distinct)
    place = min(len(telling), evidence_wanted())
    return int(np.sort(telling)[::-1][place - 1])


def _two_unequal(distinct: np.ndarray, multiple: np.ndarray) -> np.ndarray:
    """Sequences with two different keys of different multiplicity."""
    return (distinct == calibration.LEAST_KEYS - 1) & multiple


def _classes(distinct: np.ndarray, multiple: np.ndarray) -> list[np.ndarray]:
    """Sequences that tell anything, by their number of different keys: the commonest number first, rare ones left out."""
    telling = (distinct >= calibration.LEAST_KEYS) | _two_unequal(distinct, multiple)
    counts = np.bincount(distinct[telling])
    order = [number for number in np.argsort(-counts, kind="stable") if counts[number] >= evidence_wanted()]
    numbers = order or [int(np.argmax(counts))]
    return [np.flatnonzero(telling & (distinct == number))[: calibration.LOOK_MOST] for number in numbers]


def _free_tokens(x: Tokens, names: np.ndarray) -> Float[np.ndarray, "n free d"]:
    """The different tokens of every sequence in order of appearance, without those that stand in every sequence."""
    everywhere = [name for name in set(names[0].tolist()) if (names == name).any(axis=1).all()]
    earlier = np.tril(names[:, :, None] == names[:, None, :], -1).any(axis=2)
    kept = ~earlier & (names != 0) & ~np.isin(names, everywhere)
    return x[kept].reshape(len(x), -1, x.shape[2]).astype(np.float64)


def _spread(tokens: Tokens) -> tuple[float, float]:
    """Rank of the differences within a sequence over its largest possible value in the median; share of smaller ranks."""
    few = tokens[: calibration.SAMPLE]
    apart = few[:, 1:] - few[:, :1]
    values = np.linalg.svd(apart, compute_uv=False)
    ranks = np.sum(values > calibration.NO_VARIANCE**0.5 * values[:, :1], axis=1)
    full = max(min(apart.shape[1:]), 1)
    return float(np.median(ranks) / full), float(np.mean(ranks < full))


def _tied(tokens: Tokens, rng: np.random.Generator) -> tuple[int, bool]:
    """Directions in which the stacked tokens do not vary, and whether all tokens were stacked at once.

    Without enough sequences for that, or in more than `MATRIX_MOST` directions, three tokens are stacked at a time.
    """
    number, keys, width = tokens.shape
    most = min(calibration.MATRIX_MOST, number // 2)
    if keys * width <= most:
        return _flat_directions(tokens.reshape(number, -1), rng), True
    few = max(2, min(keys, most // max(width, 1)))
    if few * width > most:
        return 0, False
    found = 0
    for _ in range(calibration.TRIES):
        places = np.sort(rng.choice(keys, few, replace=False))
        found = max(found, _flat_directions(tokens[:, places].reshape(number, -1), rng))
    return found, False


def _flat_directions(rows: np.ndarray, rng: np.random.Generator) -> int:
    """The most directions without variance that a random subset of about twice as many rows as directions shows."""
    width = rows.shape[1]
    size = min(len(rows), 2 * width + evidence_wanted())
    tries = calibration.TRIES if width <= calibration.SAMPLE and size < len(rows) else 1
    found = 0
    for _ in range(tries):
        some = rows[rng.choice(len(rows), size, replace=False)] if size < len(rows) else rows
        found = max(found, _flat(some))
    return found


def _flat(rows: np.ndarray) -> int:
    centred = rows - rows.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred / len(rows))
    return int(np.sum(values < calibration.NO_VARIANCE * max(values[-1], 1.0)))


def _spans(tokens: Tokens) -> bool:
    """Whether these tokens, in white coordinates of all, vary in every direction."""
    return tokens.shape[1] >= calibration.LEAST_KEYS - 1 and _flat(tokens.reshape(-1, tokens.shape[2])) == 0


def _balanced(kinds: list[Tokens], rng: np.random.Generator) -> int:
    """Directions in which the mean token of a sequence does not vary though the tokens do, over sequences of every number of keys."""
    means = [tokens.mean(axis=1) for tokens in kinds if tokens.shape[1]]
    return _flat_directions(np.sqrt(kinds[0].shape[1]) * np.concatenate(means), rng)


def _tied_in_turn(tokens: Tokens, rng: np.random.Generator) -> bool:
    """Whether some relation ties the tokens of a share of the sequences, so that the others hide it."""
    rows = tokens.reshape(len(tokens), 1, -1)
    return rows.shape[2] <= calibration.PIECE and has_atom(whitening(rows, None).tokens(rows)[:, 0], rng)


def _functions(tokens: Tokens, rng: np.random.Generator) -> int:
    """Directions of a token that a quadratic function of the others gives exactly, the most over all tokens."""
    number, keys, width = tokens.shape
    inputs = (keys - 1) * width
    features = 1 + inputs + inputs * (inputs + 1) // 2
    if features > calibration.FEATURES_MOST or number < features + width + evidence_wanted():
        return 0
    size = min(number, features + width + 2 * evidence_wanted())
    rows = tokens[rng.choice(number, size, replace=False)].reshape(size, keys * width)
    left, right = np.triu_indices(keys * width)
    columns = np.concatenate([np.ones((size, 1)), rows, rows[:, left] * rows[:, right]], axis=1)
    matrix = columns.T @ columns
    # The token to which each feature belongs, twice; the constant belongs to none.
    owner = np.concatenate([[-1], np.arange(keys * width), left]) // width
    other = np.concatenate([[-1], np.arange(keys * width), right]) // width
    found = 0
    for key in range(keys):
        chosen = np.flatnonzero((owner != key) & (other != key))
        own = slice(1 + key * width, 1 + (key + 1) * width)
        solved = scipy.linalg.cho_solve(_factor(matrix[np.ix_(chosen, chosen)]), matrix[chosen, own])
        missed = columns[:, own] - columns[:, chosen] @ solved
        values = np.linalg.eigvalsh(missed.T @ missed / size)
        found = max(found, int(np.sum(values < calibration.NO_VARIANCE)))
    return found


def _factor(matrix: np.ndarray) -> tuple[np.ndarray, bool]:
    """Cholesky factor of normal equations, with a ridge far below what counts as variance."""
    matrix[np.diag_indices_from(matrix)] *= 1 + calibration.RIDGE
    return scipy.linalg.cho_factor(matrix, check_finite=False, overwrite_a=True)


def _values(tokens: Tokens) -> float:
    """The number of values that a coordinate takes over the number of tokens, the least of all coordinates that vary."""
    rows = tokens.reshape(-1, tokens.shape[2])[: 2 * calibration.LOOK_MOST]
    different = [len(np.unique(column)) for column in rows.T]
    return min((number for number in different if number > 1), default=0) / len(rows)


def _quadrics(tokens: Tokens, flagged: bool) -> int:
    """Quadrics that contain all tokens: none count if there is one only, and that is an ellipsoid or a direction of two values.

    On an ellipsoid the theorem holds. A direction of two values (`flagged`, and the form has rank one) is the claim's to name.
    """
    width = tokens.shape[2]
    left, right = np.triu_indices(width)
    features = 1 + width + len(left)
    rows = tokens.reshape(-1, width)[: 2 * features + evidence_wanted()]
    if features > calibration.FEATURES_MOST or len(rows) < features + evidence_wanted():
        return 0
    columns = np.concatenate([np.ones((len(rows), 1)), rows, rows[:, left] * rows[:, right]], axis=1)
    sizes = np.maximum(np.linalg.norm(columns, axis=0), np.finfo(float).tiny)
    values, vectors = np.linalg.eigh((columns / sizes).T @ (columns / sizes))
    number = int(np.sum(values < calibration.NO_VARIANCE * values[-1]))
    if number != 1:
        return number
    form = np.zeros((width, width))
    form[left, right] = (vectors[:, 0] / sizes)[1 + width :]
    spectrum = np.linalg.eigvalsh(form + form.T)
    large = np.abs(spectrum) > calibration.NEGLIGIBLE * np.abs(spectrum).max()
    definite = large.all() and spectrum[0] * spectrum[-1] > 0
    return 0 if definite or (flagged and large.sum() == 1) else 1
