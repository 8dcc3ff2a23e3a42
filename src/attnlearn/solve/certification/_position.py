"""General position: whether the tokens of a sequence are free of each other, as the theorem behind C2 and C3 asks.

The theorem (docs/certificates.md, "When two layers are one function") wants sequences with a joint density. Data cannot show a
density, but they show these violations of it, each a number in `Position`:

keys       Repeated tokens are one key. With fewer than three different keys (or two of different multiplicity) a head
           equals its negative and a flat one.
spread     The differences of a sequence's tokens have full rank min(keys - 1, directions); collinear tokens have rank one.
tied       Directions of the stacked sequence in which it does not vary: linear relations between tokens.
functions  Directions of one token that a quadratic function of the others gives exactly.
balanced   Directions in which the *sum* of the tokens does not vary. If a linear map permutes the keys of every sequence
           (antipodal pairs, mirror images, orbits of a rotation, in any order), the sum lies in the map's fixed space.
           So a sum that varies in every direction excludes all such maps. Centred sequences are balanced too and identifiable:
           there the second opinion decides.
quadrics   Quadrics that hold all tokens, but for one ellipsoid. Tokens in a union of subspaces lie on quadrics, and there a head can be
           made of the parts of others.
continuous Whether tokens look as if they had a density: every coordinate takes about as many values as there are tokens, hardly
           any sequence has differences of smaller rank, and no direction was found in which tokens take few values.

Tokens that stand in every sequence ([CLS], BOS) are left out. Sequences are compared within one number of different keys. Relations
are looked for on random subsets of about twice as many sequences as directions: a few free sequences among thousands of
tied ones do not hide a relation.
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
    chosen = _largest_class(distinct, multiple)
    tokens = _free_tokens(x[chosen], names[chosen])
    if tokens.shape[1] < calibration.LEAST_KEYS - 1:
        return Position(tokens.shape[1] + 1, 0.0, 0, 0, 0, 0, False, False)
    free, rng = whitening(tokens, None).tokens(tokens), np.random.default_rng([seed, 0x9051])
    tied, whole = _tied(free, rng)
    spread, deficient = _spread(free)
    many, few = _continuous(tokens), _few_values(free, rng)
    quadrics = _quadrics(free, few) if many else 0
    continuous = many and not few and deficient <= calibration.FEW
    return Position(keys, spread, tied, _functions(free, rng), _balanced(free), quadrics, continuous, whole)


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


def _largest_class(distinct: np.ndarray, multiple: np.ndarray) -> np.ndarray:
    """Sequences with one number of different keys: the number that most sequences have among those that tell anything."""
    telling = (distinct >= calibration.LEAST_KEYS) | _two_unequal(distinct, multiple)
    number = int(np.argmax(np.bincount(distinct[telling])))
    return np.flatnonzero(telling & (distinct == number))[: calibration.LOOK_MOST]


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


def _balanced(tokens: Tokens) -> int:
    """Directions in which the sum of the tokens does not vary though the tokens do."""
    return _flat(tokens.sum(axis=1) / np.sqrt(tokens.shape[1]))


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


def _continuous(tokens: Tokens) -> bool:
    """Whether hardly any token comes twice, and every coordinate that varies takes about as many values as there are tokens."""
    rows = tokens.reshape(-1, tokens.shape[2])[: 2 * calibration.LOOK_MOST]
    different = [len(np.unique(column)) for column in rows.T]
    varying = [number for number in different if number > 1]
    return min(varying, default=0) >= calibration.NEARLY_ALL * len(rows)


def _few_values(tokens: Tokens, rng: np.random.Generator) -> bool:
    """Whether tokens take few values in some direction, also one that is no axis: flags, types of tokens, grids.

    Such a direction has a kurtosis of its own, which fixed-point steps w <- E[z (w.z)^3] - 3 w find nearly. Its few values part the
    tokens into classes, and in the true direction the covariance within the classes is zero.
    """
    rows = tokens.reshape(-1, tokens.shape[2])[: calibration.SIDE_MOST]
    width = rows.shape[1]
    if len(rows) < calibration.EQUATIONS_PER_UNKNOWN * width:
        return False
    found = rng.standard_normal((width, calibration.TRIES))
    for _ in range(calibration.STEPS_MOST // 2):
        found /= np.maximum(np.linalg.norm(found, axis=0), np.finfo(float).tiny)
        along = rows @ found
        found = rows.T @ (along * along * along) / len(rows) - 3 * found
    return any(_parted(rows, direction) for direction in found.T)


def _parted(rows: np.ndarray, direction: np.ndarray) -> bool:
    """Whether classes along a direction leave another one, near it, without variance inside any class."""
    total = rows.T @ rows
    for _ in range(calibration.TRIES):
        along = rows @ direction
        order = np.argsort(along)
        along = along[order]
        wide = np.flatnonzero(np.diff(along) > calibration.FEW * (along[-1] - along[0]))
        if not len(wide):
            return False
        firsts = np.append(0, wide + 1)  # where each class begins
        sums = np.add.reduceat(rows[order], firsts, axis=0)
        sizes = np.diff(np.append(firsts, len(rows)))
        inside = total - (sums / sizes[:, None]).T @ sums
        values, vectors = np.linalg.eigh(inside / len(rows))
        if values[0] < calibration.NO_VARIANCE:
            return True
        direction = vectors[:, 0]
    return False


def _quadrics(tokens: Tokens, flagged: bool) -> int:
    """Quadrics that contain all tokens: none count if there is one only, and that is an ellipsoid or a direction of two values.

    On an ellipsoid the theorem holds. A direction of two values (`flagged`) is the claim's to name.
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
    definite = (
        np.abs(spectrum).min() > calibration.NEGLIGIBLE * np.abs(spectrum).max()
        and spectrum[0] * spectrum[-1] > 0
    )
    return 0 if definite or flagged else 1
