"""Why no attention layer fits: the likeliest cause, with its evidence.

Each test looks for one footprint in the data itself, so none depends on how badly a fit went:

| cause | footprint |
|---|---|
| residual | what the own token adds beyond any other one is a multiple of the identity |
| normalised | all outputs lie on one ellipsoid: 1 is a linear function of the squares and values of y |
| causal | the first row is exactly linear in its own token, later rows are not |
| window | rows do not depend on tokens beyond some distance, near ones matter |
| position | tokens at different positions enter a row differently, or meet the query differently, the same way in both halves (`_by_offset`) |
| noise | equal inputs have unequal outputs |
| not attention | none of these |

For an attention layer on exchangeable tokens the best linear prediction of a row has one matrix for the own token
and one for every other. Cost: one least-squares problem with k d + 1 unknowns. Small data make tests *not run*.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnlearn._types import Mask, Outputs, Tokens
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._by_offset import Footprints, footprints
from attnlearn.solve._tokens import unexplained


@dataclass(frozen=True)
class Cause:
    """One possible cause: its name, its evidence between 0 (none) and 1 (certain), and a sentence.

    >>> Cause("noise", 1.0, "3 repeated inputs have different outputs").name
    'noise'
    """

    name: str
    evidence: float
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """Causes by falling evidence; `cause` is the likeliest one that its evidence supports.

    >>> Diagnosis((Cause("residual", 0.2, "hardly"),)).cause
    'not attention'
    """

    causes: tuple[Cause, ...]
    offsets: Footprints | None = None
    """What depends on the offset of key and query; None where the examples are too few to tell."""

    @property
    def cause(self) -> str:
        """The name of the likeliest cause, "not attention" when none is supported."""
        first = max(self.causes, key=lambda cause: cause.evidence, default=None)
        supported = first is not None and first.evidence >= calibration.SUPPORTED
        return first.name if first is not None and supported else "not attention"

    def to_json(self) -> dict[str, Any]:
        """Cause and evidence as JSON."""
        return {"cause": self.cause, "evidence": [asdict(cause) for cause in self.causes]}


def diagnose(x: Tokens, y: Outputs, mask: Mask | None = None, causal: bool = False) -> Diagnosis:
    """Name the likeliest reason why no (causal) attention layer maps x to y.

    >>> from attnlearn import AttentionLayer
    >>> x = np.random.default_rng(0).standard_normal((500, 4, 3))
    >>> diagnose(x, x + AttentionLayer.random(2, 3)(x)).cause
    'residual'
    """
    if mask is not None:  # whole sequences only: the tests compare positions
        whole = mask.all(axis=1)
        x, y = x[whole], y[whole]
    x, y = (array[: calibration.LOOK_MOST].astype(np.float64) for array in (x, y))
    _, same = np.unique(np.ascontiguousarray(x.reshape(len(x), -1)), axis=0, return_inverse=True)
    same = same.ravel()
    causes, shown = [_noise(same, y), _normalised(y)], None
    # Equal inputs go to the same half, or the halves' errors would not be independent.
    first, second = (_influence(x[same % 2 == half], y[same % 2 == half]) for half in (0, 1))
    if first is not None and second is not None and x.shape[1] >= calibration.LEAST_KEYS:
        shown = footprints(x, y, same % 2, (first, second), causal)
        causes += [_residual(first, second, causal), _window(shown), _position(shown)]
        if not causal:
            causes += [_causal(x, y)]
    return Diagnosis(tuple(sorted((c for c in causes if c is not None), key=lambda c: -c.evidence)), shown)


def _influence(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Best linear prediction of every row from every token: matrices (row, token, d, o)."""
    n, k, d = x.shape
    if n < 2 * (k * d + 1):
        return None
    design = np.concatenate([x.reshape(n, k * d), np.ones((n, 1))], axis=1)
    solution = np.linalg.lstsq(design, y.reshape(n, -1), rcond=None)[0][:-1]
    return solution.reshape(k, d, k, y.shape[2]).transpose(2, 0, 1, 3)


def _residual(first: np.ndarray, second: np.ndarray, causal: bool) -> Cause | None:
    mean = (first + second) / 2
    k, d, o = mean.shape[0], mean.shape[2], mean.shape[3]
    if d != o:
        return None
    if causal:  # rows see different numbers of keys: compare own and previous token row by row
        extra = np.mean([mean[a, a] - mean[a, :a].mean(axis=0) for a in range(1, k)], axis=0)
    else:
        extra = mean[np.eye(k, dtype=bool)].mean(axis=0) - mean[~np.eye(k, dtype=bool)].mean(axis=0)
    multiple = np.trace(extra) / d
    cosine = abs(multiple) * np.sqrt(d) / max(np.linalg.norm(extra), np.finfo(float).tiny)
    size = np.linalg.norm(multiple * np.eye(d)) / max(np.linalg.norm(mean[0]), np.finfo(float).tiny)
    return Cause(
        "residual",
        float(cosine * min(1.0, size / calibration.DIGIT)),
        f"the own token enters as {multiple:.2f} times the identity (cosine {cosine:.2f}): subtract X from Y",
    )


def _normalised(y: np.ndarray) -> Cause | None:
    rows = y.reshape(-1, y.shape[2])
    if len(rows) < calibration.EQUATIONS_PER_UNKNOWN * (2 * rows.shape[1] + 1):
        return None
    scale = np.maximum(rows.std(axis=0), np.finfo(float).tiny)
    rows = (rows - rows.mean(axis=0)) / scale
    design = np.concatenate([rows**2, rows], axis=1)
    coefficients = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)[0]
    miss = float(np.sqrt(np.mean((design @ coefficients - 1) ** 2)))
    limit = calibration.NEGLIGIBLE
    return Cause(
        "normalised",
        float(min(1.0, limit / max(miss, np.finfo(float).tiny))) if calibration.DIGIT * miss < limit else 0.0,
        f"outputs lie on one ellipsoid up to {miss:.1e}: take them before the normalisation",
    )


def _causal(x: np.ndarray, y: np.ndarray) -> Cause:
    left = unexplained(x, y, None)
    first, last = np.sqrt(left)
    return Cause(
        "causal",
        float(left.causal),
        f"the first row is linear in its own token up to {first:.1e}, the last up to {last:.2f}: use causal=True",
    )


def _window(shown: Footprints) -> Cause:
    if shown.reach is None:
        return Cause("window", 0.0, "tokens at every distance matter")
    return Cause(
        "window", 1.0, f"rows do not depend on tokens at distance {shown.reach} or more: a sliding window"
    )


def _position(shown: Footprints) -> Cause:
    share, how = max((shown.linear, "of the linear influence"), (shown.met, "of how keys meet their query"))
    likelier = "rotary rather than relative" if shown.turned else "relative rather than rotary"
    return Cause(
        "position",
        float(np.clip(share / calibration.FEW, 0.0, calibration.NEARLY_ALL)),
        f"{100 * max(0.0, share):.0f} % {how} depends on the offset: scores depend on position, {likelier}",
    )


def _noise(same: np.ndarray, y: np.ndarray) -> Cause | None:
    """`same` numbers the different inputs: examples with equal numbers have equal inputs."""
    counts = np.bincount(same)
    repeated = counts[same] > 1
    if not repeated.any():
        return Cause("noise", 0.0, "no input is repeated, so noise cannot be told from structure")
    sums = np.zeros((len(counts), y[0].size))
    np.add.at(sums, same, y.reshape(len(y), -1))
    centred = (y.reshape(len(y), -1) - (sums / counts[:, None])[same])[repeated]
    spread = np.sum(centred**2) / np.sum(counts[counts > 1] - 1)
    relative = float(np.sqrt(spread / max(np.mean(np.sum(y**2, axis=(1, 2))), np.finfo(float).tiny)))
    return Cause(
        "noise",
        float(min(1.0, relative / calibration.NEGLIGIBLE**2)),
        f"{int(repeated.sum())} repeated inputs have outputs that differ by a relative {relative:.1e}: dropout or noise",
    )
