"""Which sequences are the same, nearly the same, or share tokens: what independent units of evidence are.

Claim C1 counts independent sequences. Identical ones (also in another order of their tokens) are one unit and stay on one side
of the split. Near copies and windows of one document are found afterwards: a certify sequence that has a relative on
another side is no evidence, and relatives on the certify side count once.
Cost: one hash of every token; one product of some certify sequences with others, at most `COPY_WIDTH` coordinates wide, and of
all of them if some have relatives.
What can fail: relatives that share fewer than half of their tokens are not seen; jittered copies in another order are seen only if the
jitter is small; a share `Relatives.hidden` of relatives, which claim C1 does not count as evidence.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.special

from attnlearn._types import Mask, Tokens
from attnlearn.engine._threads import in_order
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch

NORMAL_MEDIAN = float(scipy.special.ndtri(0.75))  # of the absolute value of a standard normal number
_MIX = np.uint64(0x9E3779B97F4A7C15)


def evidence_wanted() -> int:
    """Independent sequences that must agree: then they speak of all but `UNCOVERED` of the inputs with confidence 1 - `DELTA`.

    >>> evidence_wanted()
    28
    """
    return int(np.ceil(np.log(1 / calibration.DELTA) / calibration.UNCOVERED))


def token_names(x: Tokens, mask: Mask | None) -> np.ndarray:
    """One 64-bit number for every token (n, k): equal for equal tokens, 0 where a token is padded.

    >>> names = token_names(np.array([[[1.0], [2.0], [1.0]]]), None)[0]
    >>> bool(names[0] == names[2] != names[1])
    True
    """
    whole = np.ascontiguousarray(x + 0.0)  # minus zero becomes zero
    words = whole.view(np.uint32 if whole.dtype == np.float32 else np.uint64)
    factors = np.random.default_rng(0x70C).integers(1, 2**63, x.shape[2], dtype=np.uint64) | np.uint64(1)
    flat, names = words.reshape(-1, x.shape[2]), np.empty(x.shape[:2], np.uint64)
    with np.errstate(over="ignore"):
        for start in range(0, len(flat), calibration.CHUNK_ROWS):
            block = flat[start : start + calibration.CHUNK_ROWS].astype(np.uint64) + np.uint64(1)
            sums = _mixed(block * factors).sum(axis=1, dtype=np.uint64)
            names.reshape(-1)[start : start + calibration.CHUNK_ROWS] = sums
    names |= np.uint64(1)
    return names if mask is None else np.where(mask, names, np.uint64(0))


def _mixed(values: np.ndarray) -> np.ndarray:
    """The bits of 64-bit numbers stirred, so that sums of them tell tokens apart."""
    values = (values ^ (values >> np.uint64(31))) * _MIX
    return values ^ (values >> np.uint64(29))


def sequence_names(x: Tokens, mask: Mask | None) -> np.ndarray:
    """One number for every sequence: equal for sequences with equal tokens, in whatever order."""
    with np.errstate(over="ignore"):
        return _mixed(token_names(x, mask)).sum(axis=1, dtype=np.uint64)


def merged_units(names: np.ndarray, groups: np.ndarray | None) -> np.ndarray | None:
    """The unit of every sequence when identical sequences, and those of one group, stay together; None if all are apart.

    >>> merged_units(np.array([5, 6, 5]), None).tolist()
    [0, 1, 0]
    >>> merged_units(np.array([5, 6, 7]), None) is None
    True
    """
    _, same = np.unique(names, return_inverse=True)
    if groups is None:
        return None if same.max(initial=-1) + 1 == len(names) else same
    _, members = np.unique(groups, return_inverse=True)
    return _components(np.stack([same, same.max() + 1 + members]), same.max() + members.max() + 2)[same]


def _components(pairs: np.ndarray, number: int) -> np.ndarray:
    """The connected component of each of `number` nodes."""
    graph = scipy.sparse.coo_matrix((np.ones(pairs.shape[1]), tuple(pairs)), shape=(number, number))
    return scipy.sparse.csgraph.connected_components(graph, directed=False)[1]


class Relatives(NamedTuple):
    """Certify sequences that nearly repeat a sequence on another side, the family of each on its own side, and what may be unseen.

    `hidden` is the share of certify sequences that may have a relative nobody saw, because only some were looked at.
    """

    copied: np.ndarray
    family: np.ndarray
    hidden: float = 0.0


def without_copies(held: Batch, others: Tokens, other_mask: Mask | None) -> Batch:
    """The certify examples `held` with near copies of each other as one unit, and near copies of `others` marked."""
    found = find_relatives(held.x, held.mask, others, other_mask, every=held.groups is not None)
    apart = found.family.max(initial=-1) + 1 == held.num
    units = held.groups if apart else merged_units(found.family, held.groups)
    return dataclasses.replace(held, groups=units, copied=found.copied, hidden=found.hidden)


def find_relatives(
    x: Tokens,
    mask: Mask | None,
    others: np.ndarray,
    other_mask: np.ndarray | None,
    *,
    every: bool = False,
    seed: int = 0,
) -> Relatives:
    """Near copies and shared windows between certify sequences x and the other sides, and within x.

    `SAMPLE` certify sequences are compared with all others first. If none has a relative, then with confidence 1 - `DELTA` at
    most `hidden` = ln(1/`DELTA`)/`SAMPLE` of all have one, and the rest is not looked at unless `every` one is asked for (a share of
    sequences is no share of groups). `LOOK_MOST` of the others are drawn.

    >>> x = np.random.default_rng(0).standard_normal((40, 3, 8))
    >>> find_relatives(x[:20], None, np.concatenate([x[20:], 1.01 * x[:1]]), None).copied.nonzero()[0].tolist()
    [0]
    """
    rng, number = np.random.default_rng([seed, 0x5E1EC7]), len(x)
    order = rng.permutation(number)
    drawn = np.sort(rng.permutation(len(others))[: calibration.LOOK_MOST])
    both = np.concatenate([x[order], others[drawn]])
    masks = tuple(None if m is None else m[i] for m, i in ((mask, order), (other_mask, drawn)))
    seen = _joined(masks, (number, len(drawn)), both.shape[1])
    sides = (_flattened(both, seen), _unordered(both, seen, seed), token_names(both, seen))
    if number > calibration.SAMPLE and not every and not _related(sides, calibration.SAMPLE, seed).size:
        hidden = np.log(1 / calibration.DELTA) / calibration.SAMPLE
        return Relatives(np.zeros(number, bool), np.arange(number), float(hidden))
    pairs = _related(sides, number, seed)
    outside = pairs[1] >= number
    copied = np.zeros(number, bool)
    copied[order[pairs[0][outside]]] = True
    return Relatives(copied, _components(order[pairs[:, ~outside]], number))


def _joined(masks: tuple[np.ndarray | None, ...], sizes: tuple[int, int], keys: int) -> np.ndarray | None:
    """One mask for the sequences of both sides, one behind the other; None if neither has one."""
    if all(mask is None for mask in masks):
        return None
    return np.concatenate([np.ones((n, keys), bool) if m is None else m for m, n in zip(masks, sizes)])


def _related(sides: tuple[np.ndarray, np.ndarray, np.ndarray], number: int, seed: int) -> np.ndarray:
    """Pairs of different sequences, the first of them one of the first `number`."""
    flat, unordered, names = sides
    near = [_near(side, number, seed) for side in (flat, unordered)]
    return np.concatenate([*near, _shared(names, number)], axis=1)


def _near(both: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Pairs (one of the first `number` sequences, sequence) that are closer than independent ones ever are.

    The cosine of two independent sequences has variance 1/D with D the directions in which they vary, read off the data
    by the median. Beyond the cosine that one of n pairs exceeds with probability `COPY_CHANCE` a pair is a near copy.
    """
    tiny, both = np.finfo(np.float32).tiny, both - both.mean(axis=0)
    both /= np.maximum(np.sqrt(np.mean(both * both, axis=0)), tiny)
    np.tanh(both, out=both)  # extreme tokens are not alike for it
    if both.shape[1] > calibration.COPY_WIDTH:
        mix = np.random.default_rng([seed, 0xC09]).standard_normal((both.shape[1], calibration.COPY_WIDTH))
        both = both @ mix.astype(np.float32)
    both /= np.maximum(np.sqrt(np.vecdot(both, both)), tiny)[:, None]
    own = both[:number]
    return _close_pairs(own, both, copy_limit(_some_cosines(own, both), len(both)))


def _close_pairs(own: np.ndarray, both: np.ndarray, limit: float) -> np.ndarray:
    """Pairs of different unit vectors, one of `own`, which comes first in `both`, with a cosine above the limit."""
    few, number, rounding = _leading(both), len(both), both.shape[1] * np.finfo(both.dtype).eps

    def part(start: int) -> np.ndarray:
        rows = few[start : min(start + calibration.PIECE, len(own))]
        close = np.flatnonzero(rows @ few.T > limit - rounding)
        return np.stack([start + close // number, close % number])

    found = np.concatenate(list(in_order(part, range(0, len(own), calibration.PIECE))), axis=1)
    found = found[:, found[0] != found[1]]
    left, right = own[found[0]].astype(np.float64), both[found[1]].astype(np.float64)
    sizes = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return found[:, np.vecdot(left, right) > limit * sizes]


def _leading(vectors: np.ndarray) -> np.ndarray:
    """Shorter vectors whose inner products are at least those of these unit vectors; themselves if few directions do not matter.

    With a = a_1 + a_2, a_1 in a quarter of the directions, <a, b> <= <a_1, b_1> + ‖a_2‖ ‖b_2‖. The bound leaves few pairs if
    the quarter holds three quarters of the variance.
    """
    width = vectors.shape[1]
    few = max(1, int(calibration.ENOUGH_SHARE * width))
    some = vectors[:: max(1, len(vectors) // (calibration.EQUATIONS_PER_UNKNOWN * width))]
    axes = np.linalg.eigh(some.T @ some)[1][:, -few:]
    inside = vectors @ axes
    squares = np.sum(inside**2, axis=1)
    if not np.mean(squares) > 1 - calibration.ENOUGH_SHARE:
        return vectors
    return np.concatenate([inside, np.sqrt(np.maximum(1 - squares, 0))[:, None]], axis=1)


def _some_cosines(own: np.ndarray, both: np.ndarray) -> np.ndarray:
    """Cosines of every certify sequence with others, evenly spaced, about `SCAN_COORDINATES` of their coordinates: (i, i + shift) for some shifts."""
    step = max(1, own.size * len(both) // calibration.SCAN_COORDINATES)
    around = np.concatenate([both, own])[1:]
    windows = np.lib.stride_tricks.sliding_window_view(around, len(own), axis=0)[: len(both) - 1 : step]
    return np.vecdot(own, windows.swapaxes(1, 2))


def copy_limit(cosine: np.ndarray, number: int) -> float:
    """The cosine above which one of `number` pairs is a near copy, from the median of some cosines.

    (1 - c^2)^((D - 1)/2) bounds the chance of a cosine above c between independent directions in D dimensions.
    """
    median = float(np.median(np.abs(cosine)))
    deviation = max(median / NORMAL_MEDIAN, float(np.finfo(np.float32).eps))
    dimensions = max(1 / deviation**2, 2.0)
    chance = calibration.COPY_CHANCE / number
    return float(np.sqrt(1 - chance ** (2 / max(dimensions - 1, 1))))


def _flattened(x: Tokens, mask: Mask | None) -> np.ndarray:
    whole = x if mask is None else x * mask[..., None]
    return whole.reshape(len(x), -1).astype(np.float32)


def _unordered(x: Tokens, mask: Mask | None, seed: int) -> np.ndarray:
    """Numbers that tell sequences apart and do not depend on the order of their tokens.

    Random projections of tokens are bent before they are summed: the sum of the tokens alone has few directions.
    """
    rng, width = np.random.default_rng([seed, 0x5E7]), calibration.COPY_WIDTH // 2
    spread = max(float(np.std(x[-calibration.SAMPLE :])), float(np.finfo(np.float32).tiny))
    mix = rng.standard_normal((x.shape[2], width)).astype(np.float32)
    offsets = rng.uniform(-1, 1, width).astype(np.float32)
    found = np.empty((len(x), width), np.float32)
    for start in range(0, len(x), calibration.SAMPLE):  # pieces that stay in the cache
        part = slice(start, start + calibration.SAMPLE)
        bent = np.tanh((x[part] / spread).astype(np.float32) @ mix + offsets)
        found[part] = (bent if mask is None else bent * mask[part, :, None]).sum(axis=1)
    return found


def _shared(both: np.ndarray, number: int) -> np.ndarray:
    """Pairs of sequences that share more tokens than independent ones would; as in `_near`.

    Tokens are compared at the same place (partial copies, shared beginnings) and at any place (windows of one text).
    """
    different, names = np.unique(both, return_inverse=True)
    if len(different) == both.size:
        return np.zeros((2, 0), int)
    names = np.where(both == 0, -1, names.reshape(both.shape))
    placed = np.where(names < 0, -1, names * both.shape[1] + np.arange(both.shape[1]))
    return np.concatenate([_sharing(names, number), _sharing(placed, number)], axis=1)


def _sharing(names: np.ndarray, number: int) -> np.ndarray:
    """Pairs (one of the first `number` rows, row) with more names in common than chance gives; names below zero do not count."""
    _, places, counts = np.unique(names, return_inverse=True, return_counts=True)
    places = places.reshape(names.shape)
    usable = (names >= 0) & (counts[places] > 1) & (counts[places] <= calibration.NEARLY_ALL * len(names))
    keys = int((names[:number] >= 0).sum(axis=1).max(initial=1))
    rows = np.repeat(np.arange(len(names)), usable.sum(axis=1))
    table = scipy.sparse.csr_matrix(
        (np.ones(len(rows), np.int32), (rows, places[usable])), shape=(len(names), len(counts))
    )
    table.data = np.minimum(table.data, 1)
    common = (table[:number] @ table.T).tocoo()
    own = common.row != common.col
    again = np.bincount(places[usable], minlength=len(counts)).astype(float)
    coincidence = float(np.sum(again * (again - 1))) / (keys * len(names) ** 2)
    wanted = _shared_wanted(coincidence, keys, len(names), common.data[own], number * len(names))
    pairs = own & (common.data >= wanted)
    return np.stack([common.row[pairs], common.col[pairs]])


def _shared_wanted(chance: float, keys: int, number: int, shared: np.ndarray, pairs: int) -> int:
    """Names in common, at least half of all, that independent sequences hardly reach or reach far more rarely than these do.

    `chance` is the probability that one name of a sequence is in another; more than `keys`: nothing tells copies apart.
    """
    for wanted in range(max(1, int(np.ceil(calibration.UNCOVERED * keys))), keys + 1):
        expected = float(scipy.special.bdtrc(wanted - 1, keys, min(1.0, chance)))
        observed = int(np.sum(shared >= wanted))
        crowded = observed > calibration.FAR_MORE * (expected * pairs + evidence_wanted())
        if number * expected <= calibration.COPY_CHANCE or crowded:
            return wanted
    return keys + 1
