"""Which sequences are one: names of tokens and sequences, units, near copies, shared windows."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch
from attnlearn.solve._sequences import (
    copy_limit,
    find_relatives,
    merged_units,
    sequence_names,
    token_names,
    without_copies,
)

OWN, OTHER, K, D = 120, 500, 4, 6


# --- names ---


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_tokens_have_equal_names_and_others_do_not(rng, dtype):
    words = rng.standard_normal((300, 5)).astype(dtype)
    places = rng.integers(0, 300, (400, K))
    names = token_names(words[places], None)
    assert names.dtype == np.uint64
    same_token = places.reshape(-1)[:, None] == places.reshape(-1)
    np.testing.assert_array_equal(names.reshape(-1)[:, None] == names.reshape(-1), same_token)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_minus_zero_is_zero(dtype):
    minus, zero = (token_names(np.array([[[value, 1.0]]], dtype), None) for value in (-0.0, 0.0))
    assert minus == zero


def test_the_place_of_a_coordinate_counts():
    x = np.array([[[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 2.0], [0.0, 3.0], [3.0, 0.0]]])
    assert len(np.unique(token_names(x, None))) == 6


def test_tokens_one_rounding_apart_differ(rng):
    x = rng.standard_normal((1, 1, 3))
    assert token_names(x, None) != token_names(np.nextafter(x, np.inf), None)


def test_padded_tokens_are_nameless_and_real_ones_are_not(rng):
    x = rng.standard_normal((30, K, 2))
    x[0] = 0.0
    mask = rng.random((30, K)) < 0.5
    np.testing.assert_array_equal(token_names(x, mask) == 0, ~mask)
    np.testing.assert_array_equal(token_names(x, mask)[mask], token_names(x, None)[mask])


def test_names_do_not_depend_on_the_chunks(rng, monkeypatch):
    x = rng.standard_normal((50, 3, 4))
    whole = token_names(x, None)
    monkeypatch.setattr(calibration, "CHUNK_ROWS", 7)
    np.testing.assert_array_equal(token_names(x, None), whole)


def test_names_of_a_view_are_those_of_its_values(rng):
    x = rng.standard_normal((20, 3, 8))
    np.testing.assert_array_equal(token_names(x[:, ::2, ::2], None), token_names(x[:, ::2, ::2].copy(), None))


def test_the_order_of_tokens_does_not_matter_for_a_sequence(rng):
    x = rng.standard_normal((40, K, 3))
    moved = np.take_along_axis(x, np.argsort(rng.random((40, K)), axis=1)[..., None], axis=1)
    np.testing.assert_array_equal(sequence_names(x, None), sequence_names(moved, None))
    assert len(np.unique(sequence_names(x, None))) == 40


def test_the_number_of_equal_tokens_matters_for_a_sequence(rng):
    a, b = rng.standard_normal((2, 3))
    first, second = sequence_names(np.array([[a, a, b], [a, b, b]]), None)
    assert first != second


def test_what_stands_in_padded_places_does_not_matter(rng):
    x = rng.standard_normal((2, K, 3))
    x[1, :2] = x[0, :2]
    mask = np.array([[True, True, False, False]] * 2)
    assert len(np.unique(sequence_names(x, mask))) == 1
    assert len(np.unique(sequence_names(x, None))) == 2


# --- units ---


def test_units_without_groups():
    assert merged_units(np.array([5, 6, 7]), None) is None
    assert merged_units(np.array([], np.uint64), None) is None
    assert merged_units(np.array([9, 4, 9, 4, 1]), None).tolist() == [2, 1, 2, 1, 0]


def same_units(units: np.ndarray) -> list[list[bool]]:
    return (units[:, None] == units).tolist()


def test_groups_without_identical_sequences_stay_as_they_are():
    groups = np.array(["a", "b", "a", "c"])
    assert same_units(merged_units(np.arange(4), groups)) == same_units(groups)


def test_identical_sequences_join_their_groups_along_chains():
    names = np.array([1, 2, 2, 3, 3, 4])
    groups = np.array(["a", "a", "b", "b", "c", "d"])  # a - b by name 2, b - c by name 3
    wanted = np.array([0, 0, 0, 0, 0, 1])
    assert same_units(merged_units(names, groups)) == same_units(wanted)


# --- relatives ---


def make(kind: str, rng: np.random.Generator, number: int) -> np.ndarray:
    shape = (number, K, D)
    if kind == "gaussian":
        return rng.standard_normal(shape)
    if kind == "heavy-tailed":
        return rng.standard_t(1.2, shape)
    if kind == "correlated":
        return rng.standard_normal(shape) @ rng.standard_normal((D, D)) + 3.0
    if kind == "constant first":
        return np.concatenate([np.ones((number, 1, D)), rng.standard_normal((number, K - 1, D))], axis=1)
    if kind == "words":
        return np.random.default_rng(7).standard_normal((200, D))[rng.integers(0, 200, shape[:2])]
    if kind == "frequent words":
        often = 1 / np.arange(1, 201)
        places = rng.choice(200, shape[:2], p=often / often.sum())
        return np.random.default_rng(7).standard_normal((200, D))[places]
    assert kind == "plus and minus one"
    return rng.choice([-1.0, 1.0], shape)


KINDS = [
    "gaussian", "heavy-tailed", "correlated", "constant first", "words", "frequent words", "plus and minus one",
]  # fmt: skip
SMALL_SHARE = 0.1
"""Independent sequences that may look related: 0.00 to 0.08 in 70 draws, most of them short or of frequent words."""


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_independent_sequences_are_no_relatives(kind, padded, rng):
    x = make(kind, rng, OWN + OTHER)
    mask = np.arange(K) < rng.integers(3, K + 1, OWN + OTHER)[:, None] if padded else None
    own, others = (None if mask is None else mask[side] for side in (slice(OWN), slice(OWN, None)))
    found = find_relatives(x[:OWN], own, x[OWN:], others)
    assert found.copied.mean() <= SMALL_SHARE
    assert len(np.unique(found.family)) >= (1 - SMALL_SHARE) * OWN


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_one_token_among_longer_ones_are_seldom_relatives(kind, rng):
    """They vary in fewer directions than the others, so more of them look alike; too many would cost claim C1 its evidence."""
    x = make(kind, rng, OWN + OTHER)
    mask = np.arange(K) < rng.integers(1, K + 1, OWN + OTHER)[:, None]
    assert find_relatives(x[:OWN], mask[:OWN], x[OWN:], mask[OWN:]).copied.mean() < 0.4


@pytest.mark.parametrize("kind", ["gaussian", "heavy-tailed", "words"])
@pytest.mark.parametrize("jitter", [1e-8, 1e-3, 0.03])
def test_jittered_copies_are_found(kind, jitter, rng):
    x = make(kind, rng, OWN + OTHER)
    size = np.median(np.abs(x))
    x[:10] = x[OWN : OWN + 10] + jitter * size * rng.standard_normal((10, K, D))  # on the other side
    x[20:25] = x[30:35] + jitter * size * rng.standard_normal((5, K, D))  # on the same side
    found = find_relatives(x[:OWN], None, x[OWN:], None)
    assert found.copied[:10].all()
    assert found.copied[10:].mean() <= SMALL_SHARE
    np.testing.assert_array_equal(found.family[20:25], found.family[30:35])
    assert len(np.unique(found.family)) >= (1 - SMALL_SHARE) * OWN - 5


def test_scaled_and_wide_copies_are_found(rng):
    """Wider than `COPY_WIDTH` coordinates, random combinations of them are compared."""
    x = rng.standard_normal((220, 8, 40))
    x[0] = 1.05 * x[150]
    found = find_relatives(x[:100], None, x[100:], None)
    assert found.copied[0]
    assert found.copied[1:].mean() <= SMALL_SHARE


def test_windows_of_one_text_are_relatives(rng):
    text = rng.standard_normal((OWN + 3, D))
    windows = np.stack([text[start : start + K] for start in range(OWN)])
    others = rng.standard_normal((OTHER, K, D))
    found = find_relatives(windows, None, others, None)
    assert len(np.unique(found.family)) == 1  # each shares three of four tokens with the next
    assert not found.copied.any()
    found = find_relatives(windows[::2], None, np.concatenate([windows[1::2], others]), None)
    assert found.copied.all()


def test_windows_need_half_of_the_tokens(rng):
    text = rng.standard_normal((3 * OWN + K, D))
    apart = np.stack([text[start : start + K] for start in range(0, 3 * OWN, 3)])  # one token in common
    found = find_relatives(apart, None, rng.standard_normal((OTHER, K, D)), None)
    assert len(np.unique(found.family)) == OWN
    half = np.stack([text[start : start + K] for start in range(0, 2 * OWN, 2)])  # two in common
    found = find_relatives(half, None, rng.standard_normal((OTHER, K, D)), None)
    assert len(np.unique(found.family)) == 1


def test_shared_beginnings_are_relatives(rng):
    x = rng.standard_normal((OWN + OTHER, K, D))
    x[:40, :2] = x[OWN : OWN + 40, :2]
    found = find_relatives(x[:OWN], None, x[OWN:], None)
    assert found.copied[:40].all()
    assert not found.copied[40:].any()


def test_shared_beginnings_among_words_are_relatives(rng):
    """Sequences that repeat the first half of one of three, from few words: more common than chance, at the same place."""
    words = rng.standard_normal((40, D))
    places = rng.integers(0, 40, (OWN + OTHER, 8))
    places[:60, :6] = places[OWN : OWN + 60, :6]
    x = words[places]
    found = find_relatives(x[:OWN], None, x[OWN:], None)
    assert found.copied[:60].mean() > 0.9
    assert found.copied[60:].mean() <= SMALL_SHARE


def test_a_token_of_every_sequence_makes_no_relatives(rng):
    x = rng.standard_normal((OWN + OTHER, 2, D))
    x[:, 0] = 1.0  # half of the tokens of every sequence
    found = find_relatives(x[:OWN], None, x[OWN:], None)
    assert not found.copied.any()
    assert len(np.unique(found.family)) == OWN


def test_padded_places_make_no_relatives_and_hide_none(rng):
    x = rng.standard_normal((OWN + OTHER, 8, D))
    x[:, 4:] = rng.standard_normal(D)  # all alike where nobody looks
    mask = np.broadcast_to(np.arange(8) < 4, x.shape[:2])
    x[:10, :4] = x[OWN : OWN + 10, :4]
    x[:10, 4:] = rng.standard_normal((10, 4, D))
    found = find_relatives(x[:OWN], mask[:OWN], x[OWN:], mask[OWN:])
    assert found.copied[:10].all()
    assert not found.copied[10:].any()
    assert len(np.unique(found.family)) == OWN


def test_without_copies_marks_and_merges(rng):
    x = rng.standard_normal((OWN + OTHER, K, D))
    x[0] = 1.001 * x[OWN]
    x[1] = 1.001 * x[2]
    held = Batch(x[:OWN], np.zeros((OWN, K, 1)))
    found = without_copies(held, x[OWN:], None)
    assert found.copied.nonzero()[0].tolist() == [0]
    assert found.groups[1] == found.groups[2]
    assert len(np.unique(found.groups)) == OWN - 1
    assert found.x is held.x
    assert held.copied is None


def test_without_copies_keeps_units_where_nothing_is_related(rng):
    x = rng.standard_normal((OWN + OTHER, K, D))
    assert without_copies(Batch(x[:OWN], x[:OWN]), x[OWN:], None).groups is None
    groups = np.arange(OWN) // 2
    kept = without_copies(Batch(x[:OWN], x[:OWN], groups=groups), x[OWN:], None)
    np.testing.assert_array_equal(kept.groups, groups)
    assert not kept.copied.any()


def test_without_copies_joins_groups_of_relatives(rng):
    x = rng.standard_normal((OWN + OTHER, K, D))
    x[0] = 1.001 * x[2]
    found = without_copies(Batch(x[:OWN], x[:OWN], groups=np.arange(OWN) // 2), x[OWN:], None)
    assert len(set(found.groups[:4].tolist())) == 1
    assert len(np.unique(found.groups)) == OWN // 2 - 1


# --- the limit ---


@pytest.mark.parametrize("dimensions", [8, 32, 128])
def test_few_independent_directions_exceed_the_limit(dimensions, rng):
    """One pair of n exceeds it with probability `COPY_CHANCE`, so of 400 rows at most a few have such a pair."""
    rows = rng.standard_normal((400, dimensions))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = rows @ rows.T
    np.fill_diagonal(cosine, 0.0)
    limit = copy_limit(cosine, 400)
    assert (cosine > limit).any(axis=1).sum() <= 4
    # The chance of a cosine c is at most (1 - c^2)^((D - 1) / 2), with D read off the data.
    wanted = np.sqrt(1 - (calibration.COPY_CHANCE / 400) ** (2 / (dimensions - 1)))
    assert limit == pytest.approx(wanted, rel=0.05)


def test_the_limit_grows_with_the_number_and_falls_with_the_directions(rng):
    cosine = {d: rng.standard_normal((100, 100)) / np.sqrt(d) for d in (16, 64)}
    assert copy_limit(cosine[16], 100) < copy_limit(cosine[16], 10_000) < 1.0
    assert copy_limit(cosine[64], 100) < copy_limit(cosine[16], 100)


def test_the_limit_is_below_one_where_everything_is_alike():
    assert 0.99 < copy_limit(np.full((20, 20), 0.99), 20) <= 1.0


def test_a_sample_without_relatives_speaks_for_all_but_a_stated_share(rng):
    """ln(1e6)/256: with a larger share of relatives a sample of 256 misses them all with probability below 1e-6."""
    x = rng.standard_normal((2_000, K, D))
    held = Batch(x[:1_000], x[:1_000])
    found = without_copies(held, x[1_000:], None)
    assert found.hidden == pytest.approx(np.log(1e6) / 256)
    assert not found.copied.any()
    assert without_copies(Batch(x[:256], x[:256]), x[256:], None).hidden == 0  # all were looked at
    grouped = Batch(x[:1_000], x[:1_000], groups=np.arange(1_000) // 2)
    assert without_copies(grouped, x[1_000:], None).hidden == 0  # a share of sequences is no share of groups


def test_every_relative_is_marked_where_the_sample_has_one(rng):
    x = rng.standard_normal((2_000, K, D))
    share = int(2 * np.log(1e6) / 256 * 1_000)
    x[:share] = x[1_000 : 1_000 + share] + 1e-3 * rng.standard_normal((share, K, D))
    found = find_relatives(x[:1_000], None, x[1_000:], None)
    assert found.hidden == 0
    assert found.copied[:share].all()
    assert found.copied[share:].mean() <= SMALL_SHARE


def test_relatives_are_found_wherever_they_stand_among_many_others(rng):
    """More others than are looked at: those that repeat the certify side come last."""
    few = rng.standard_normal((30, K, D))
    copies = np.repeat(few, 400, axis=0) + 1e-6 * rng.standard_normal((12_000, K, D))
    others = np.concatenate([rng.standard_normal((12_000, K, D)), copies])
    assert find_relatives(few, None, others, None).copied.all()
