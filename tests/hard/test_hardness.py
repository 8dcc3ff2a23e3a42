"""Why parities are hard for statistical queries, and for whom they are not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnlearn import data, hard


@pytest.mark.parametrize(("dim", "num_heads"), [(6, 2), (8, 4), (9, 2)])
def test_members_are_orthogonal_after_their_common_part(dim: int, num_heads: int) -> None:
    gram = hard.parity_gram(dim, num_heads)
    assert len(gram) == hard.parity_members(dim, num_heads)
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-9)


def test_no_moment_of_the_spectral_route_depends_on_the_hidden_set() -> None:
    """E[x_a[u] x_b[p] x_b[q] y_a[o]] over all 4^d inputs is the same for every J, and so is E[x_a x_b y_a]."""
    dim = 5
    tokens = np.array(list(itertools.product((1.0, -1.0), repeat=dim)))
    x = np.stack([np.repeat(tokens, len(tokens), axis=0), np.tile(tokens, (len(tokens), 1))], axis=1)
    found = []
    for subset in hard.parity_subsets(dim, 2):
        y = hard.parity(dim, 2, subset)(x)[:, 0, -1]
        third = np.einsum("nu,np,nq,n->upq", x[:, 0], x[:, 1], x[:, 1], y, optimize=True) / len(x)
        found.append(np.concatenate([third.ravel(), (x[:, 0].T @ y) / len(x), (x[:, 1].T @ y) / len(x)]))
    assert np.ptp(np.array(found), axis=0).max() < 1e-9
    assert np.abs(found[0]).max() > 0.1  # the common part is there


def test_no_query_sees_more_members_than_the_bound_allows(seed: int) -> None:
    """sum_J E[h chi_J]^2 <= p^2 for queries of many kinds: the step on which the bound rests."""
    rng = np.random.default_rng(seed)
    dim, num_heads = 9, 4
    x = hard.all_patterns(dim)
    seen = (x[:, 1, -2] == -1) & (x[:, 1, -1] == -1)
    labels = np.stack([x[:, 1, list(s)].prod(axis=1) for s in hard.parity_subsets(dim, num_heads)])
    for query in (
        rng.uniform(-1, 1, len(x)),
        rng.choice([-1.0, 1.0], len(x)),
        labels[3],
        np.sign(labels[:7].sum(0)),
    ):
        strengths = (labels * (query * seen)).mean(axis=1)
        assert np.sum(strengths**2) <= 0.25**2 + 1e-12
        for tolerance in (0.02, 0.05, 0.1):
            assert np.sum(np.abs(strengths) > tolerance) <= (0.25 / tolerance) ** 2


def test_query_count_follows_the_bound_in_members_and_tolerance(seed: int) -> None:
    rows = []
    for dim, num_heads in ((10, 4), (12, 4), (14, 4), (14, 6)):
        for tolerance in (0.04, 0.08, 0.16):
            run = hard.simulate_queries(dim, num_heads, tolerance, seed=seed)
            assert run.queries >= run.bound
            assert len(run.left) == 1
            if run.bound > 10:
                rows.append((np.log(run.members), np.log(tolerance), np.log(run.queries)))
    members, tolerance, queries = np.array(rows).T
    design = np.column_stack([members, tolerance, np.ones(len(rows))])
    slopes = np.linalg.lstsq(design, queries, rcond=None)[0]
    assert slopes[0] == pytest.approx(1.0, abs=0.15)
    assert slopes[1] == pytest.approx(2.0, abs=0.3)


def test_learner_finds_the_member_that_answers(seed: int) -> None:
    dim, num_heads, tolerance = 12, 4, 0.06
    hidden = hard.parity_subset(dim, num_heads, seed)
    uniform = hard.simulate_queries(dim, num_heads, tolerance, subset=hidden, seed=seed)
    assert uniform.left == (hidden,)
    # Answers from fresh examples: a standard deviation is at most sqrt(p/N), six of them stay within the tolerance.
    examples = int(np.ceil(36 * 0.25 / tolerance**2))
    sampled = hard.simulate_queries(dim, num_heads, tolerance, subset=hidden, examples=examples, seed=seed)
    assert sampled.left == (hidden,)


def test_too_few_queries_leave_more_than_one_member() -> None:
    run = hard.simulate_queries(12, 4, 0.1, max_queries=int(hard.sq_bound(210, 0.1)))
    assert len(run.left) > 1


@pytest.mark.parametrize("num_heads", [2, 4, 8])
def test_elimination_solves_parity_without_noise_and_fails_with_it(num_heads: int, seed: int) -> None:
    dim = 12
    x = data.Boolean(tokens=2, dim=dim).sample(200, seed=seed)
    y = hard.parity(dim, num_heads, seed=seed)(x)
    found = hard.solve_parity(x, y)
    assert found.subset == hard.parity_subset(dim, num_heads, seed)
    assert found.equations < 80
    noisy = hard.solve_parity(x, hard.flip_labels(x, y, rate=0.1, seed=seed))
    assert noisy.subset is None
    assert not noisy.consistent


def test_flipped_labels_are_labels() -> None:
    x = data.Boolean(tokens=2, dim=8).sample(400)
    y = hard.parity(8, 4)(x)
    flipped = hard.flip_labels(x, y, rate=0.25)
    changed = np.abs(flipped - y).max(axis=(1, 2)) > 1e-9
    assert 0.02 < changed.mean() < 0.11  # a quarter of the visible quarter
    np.testing.assert_allclose(hard.flip_labels(x, y, rate=1.0)[changed], flipped[changed])


def test_chosen_queries_find_the_set_at_once(seed: int) -> None:
    for num_heads in (2, 4, 8):
        layer = hard.parity(12, num_heads, seed=seed)
        assert hard.query_parity(layer, 12) == hard.parity_subset(12, num_heads, seed)


def test_one_function_is_near_to_few_members(seed: int) -> None:
    """At most 1/gamma^2 members are within (1 - gamma^2)/2 of a function; the mean of j members reaches it at gamma^2 = 1/j."""
    rng = np.random.default_rng(seed)
    dim, num_heads = 8, 2
    x = hard.all_patterns(dim)
    members = np.stack([hard.parity(dim, num_heads, s)(x) for s in hard.parity_subsets(dim, num_heads)])
    members = members.reshape(len(members), -1)
    size = np.sum(members**2, axis=1)
    assert np.allclose(size, size[0])
    apart = np.sum((members[0] - members[1:]) ** 2, axis=1)
    assert np.allclose(apart, size[0])  # so half the distance is a quarter of the size, squared
    reached = 0
    for trial in range(300):
        several = rng.choice(len(members), 1 + trial % 6, replace=False)
        guess = members[several].mean(axis=0) + (trial % 3) * 0.2 * rng.standard_normal(members.shape[1])
        errors = np.sum((guess - members) ** 2, axis=1) / size[0]
        for gamma in np.sqrt(1 / np.arange(1, 8)):
            near = int(np.sum(errors <= (1 - gamma**2) / 2 + 1e-9))
            assert near <= 1 / gamma**2 + 1e-6
            reached += near == round(1 / gamma**2)
    assert reached > 50


def test_a_guessing_learner_succeeds_no_more_often_than_the_bound_allows(seed: int) -> None:
    """J is drawn, the oracle tells nothing it need not tell, and the learner guesses after t queries."""
    from attnlearn.hard._family import VISIBLE
    from attnlearn.hard._statistical import _correlations, group_size

    dim, num_heads, tolerance, trials = 10, 4, 0.08, 300
    subsets = list(hard.parity_subsets(dim, num_heads))
    index = np.array([sum(1 << p for p in s) for s in subsets])
    rng = np.random.default_rng(seed)
    for queries in (0, 2, 5):
        right = 0
        for _ in range(trials):
            hidden, alive = rng.integers(len(subsets)), np.ones(len(subsets), bool)
            for _ in range(queries):
                asked = rng.permutation(np.flatnonzero(alive))[: group_size(tolerance)]
                strengths = VISIBLE * _correlations(index[asked], dim - 2, rng)[index]
                answer = 0.0 if abs(strengths[hidden]) <= tolerance else strengths[hidden]
                alive &= np.abs(answer - strengths) <= tolerance
            right += rng.choice(np.flatnonzero(alive)) == hidden
        most = (queries * (VISIBLE / tolerance) ** 2 + 1) / len(subsets)
        assert hard.sq_bound(len(subsets), tolerance, success=min(1.0, most)) <= queries + 1e-9
        assert right / trials <= most + 4 * np.sqrt(min(most, 0.25) / trials)
    assert right / trials > 1 / len(subsets)  # queries help, so the bound is not idle


def test_the_bound_refuses_what_it_does_not_speak_of() -> None:
    with pytest.raises(ValueError, match="success: must lie in"):
        hard.sq_bound(10, 0.1, success=0.0)
    with pytest.raises(ValueError, match="error: must lie in"):
        hard.sq_bound(10, 0.1, error=0.5)
    assert hard.sq_bound(10, 0.1, success=0.1) == 0
