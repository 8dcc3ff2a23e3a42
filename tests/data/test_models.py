"""The contract of data models: example i depends on (seed, i) alone; moments and dtypes are right."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from attnlearn.data import Boolean, DataModel, Gaussian, Planted, TokenizedMixture

MODELS = {
    "boolean": lambda k, d, dtype: Boolean(k, d, dtype=dtype),
    "gaussian": lambda k, d, dtype: Gaussian(k, d, dtype=dtype),
    "gaussian-shaped": lambda k, d, dtype: Gaussian(
        k, d, mean=np.arange(d, dtype=float), covariance=np.eye(d) + 0.5, dtype=dtype
    ),
    "mixture": lambda k, d, dtype: TokenizedMixture(k, d, num_distractors=d - 2, dtype=dtype),
    "planted": lambda k, d, dtype: Planted(k, d, margin=0.5, dtype=dtype),
}


@pytest.fixture(params=MODELS, ids=str)
def make(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]


def arrays(sample: Any) -> tuple[np.ndarray, ...]:
    return sample if isinstance(sample, tuple) else (sample,)


def same(a: Any, b: Any) -> bool:
    return all(p.tobytes() == q.tobytes() and p.shape == q.shape for p, q in zip(arrays(a), arrays(b)))


def joined(chunks: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(parts) for parts in zip(*map(arrays, chunks)))


# 50 x 40 tokens make blocks of 32 examples, so 100 examples cross block borders; 3 x 5 fit into one block.
@pytest.mark.parametrize(("tokens", "dim"), [(50, 40), (3, 5)])
@pytest.mark.parametrize("chunk", [1, 7, 32, 33, 1000])
def test_any_chunking_gives_the_same_bytes(make, tokens, dim, chunk, seed):
    model = make(tokens, dim, np.float64)
    whole = model.sample(100, seed)
    assert same(joined(model.stream(100, chunk, seed)), whole)
    tail = tuple(part[60:] for part in arrays(whole))
    assert same(joined(model.stream(40, chunk, seed, start=60)), tail)


def test_more_examples_extend_fewer(make, seed):
    model = make(50, 40, np.float64)
    assert same(tuple(part[:45] for part in arrays(model.sample(100, seed))), model.sample(45, seed))


def test_a_worker_sees_the_same_bytes(make, seed):
    model = make(50, 40, np.float64)
    assert same(pickle.loads(pickle.dumps(model)).sample(70, seed), model.sample(70, seed))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_blas_threads_does_not_matter(make, seed, threads):
    model = make(16, 64, np.float64)
    whole = model.sample(200, seed)
    with threadpool_limits(threads):
        assert same(model.sample(200, seed), whole)


def test_seeds_and_blocks_differ(make, seed):
    model = make(50, 40, np.float64)
    x, other = arrays(model.sample(64, seed))[0], arrays(model.sample(64, seed + 1))[0]
    assert (x != other).mean() > 0.3
    assert (x[:32] != x[32:]).mean() > 0.3


def test_models_with_one_seed_are_unrelated(seed):
    boolean, gaussian = Boolean(8, 64).sample(200, seed), Gaussian(8, 64).sample(200, seed)
    # 102,400 products of mean 0 and variance 1: five standard deviations.
    assert abs((boolean * gaussian).mean()) < 5 / np.sqrt(boolean.size)


def test_float32_is_the_rounded_float64(make, seed):
    single, double = (
        arrays(make(4, 6, np.float32).sample(50, seed)),
        arrays(make(4, 6, np.float64).sample(50, seed)),
    )
    assert all(part.dtype == np.float32 for part in single)
    assert all(part.dtype == np.float64 for part in double)
    assert same(single, tuple(part.astype(np.float32) for part in double))


def test_they_are_data_models(make):
    model = make(4, 6, np.float64)
    assert isinstance(model, DataModel)
    assert (model.tokens, model.dim) == (4, 6)
    assert type(model).__name__ in repr(model)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 9), st.integers(3, 9), st.integers(1, 40))
def test_shapes(name, tokens, dim, num):
    x, *labels = arrays(MODELS[name](tokens, dim, np.float64).sample(num))
    assert x.shape == (num, tokens, dim)
    assert np.isfinite(x).all()
    assert all(y.shape == (num,) for y in labels)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "3", None])
def test_bad_counts_are_refused_in_one_line(make, bad):
    with pytest.raises(ValueError, match=r"^tokens: must be an integer >= 1, got "):
        make(bad, 5, np.float64)
    model = make(3, 5, np.float64)
    with pytest.raises(ValueError, match=r"^num: must be an integer >= 1, got "):
        model.sample(bad)
    with pytest.raises(ValueError, match=r"^chunk: must be an integer >= 1, got "):
        model.stream(5, bad)


def test_bad_seed_and_dtype_are_refused():
    with pytest.raises(ValueError, match="seed: must be an integer >= 0"):
        Boolean(3, 4).sample(1, seed=-1)
    for dtype in (np.float16, int, "nonsense"):
        with pytest.raises(ValueError, match="dtype: must be float32 or float64"):
            Boolean(3, 4, dtype=dtype)


def covariance_error(x: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    """Largest entry error of the empirical covariance in standard deviations (Isserlis: <= 2 max var^2 / n)."""
    rows = x.reshape(-1, x.shape[-1]) - mean
    deviation = np.sqrt(2 * covariance.max() ** 2 / len(rows))
    return float(np.abs(rows.T @ rows / len(rows) - covariance).max() / deviation)


def test_moments_of_boolean(seed):
    x = Boolean(4, 6).sample(20_000, seed)
    assert set(np.unique(x)) == {-1.0, 1.0}
    assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(len(x))
    flat = x.reshape(len(x), -1)
    assert np.abs(flat.T @ flat / len(x) - np.eye(24)).max() < 5 / np.sqrt(len(x))


def test_moments_of_gaussian(seed, rng):
    factor = rng.standard_normal((5, 5))
    mean, covariance = rng.standard_normal(5), factor @ factor.T
    x = Gaussian(3, 5, mean=mean, covariance=covariance).sample(20_000, seed)
    scale = np.sqrt(np.diag(covariance).max() / (3 * len(x)))
    assert np.abs(x.mean(axis=(0, 1)) - mean).max() < 5 * scale
    assert covariance_error(x, mean, covariance) < 5
    across = (x[:, 0] - mean).T @ (x[:, 1] - mean) / len(x)
    assert np.abs(across).max() < 6 * covariance.max() / np.sqrt(len(x))


def test_a_singular_covariance_keeps_tokens_on_their_affine_support(seed):
    direction = np.array([3.0, 4.0, 0.0]) / 5
    x = Gaussian(2, 3, mean=np.array([0.0, 0.0, 1.0]), covariance=np.outer(direction, direction)).sample(
        50, seed
    )
    off = (x - [0, 0, 1]) - np.einsum("nkd,d->nk", x, direction)[..., None] * direction
    # A null eigenvalue of 1e-17 has the root 3e-9.
    assert np.abs(off).max() < 1e-7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mean": np.zeros(4)}, r"^mean: must have shape \(3,\)"),
        ({"mean": np.array([0, np.nan, 0])}, "^mean: must be finite"),
        ({"covariance": np.eye(2)}, r"^covariance: must have shape \(3, 3\)"),
        ({"covariance": np.diag([1.0, 1.0, -1.0])}, "^covariance: must have no negative eigenvalue"),
        ({"covariance": np.triu(np.ones((3, 3)))}, "^covariance: must be symmetric"),
        ({"covariance": np.full((3, 3), np.inf)}, "^covariance: must be finite"),
    ],
)
def test_bad_gaussians_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(2, 3, **arguments)
