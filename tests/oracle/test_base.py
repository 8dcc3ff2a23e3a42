from __future__ import annotations

import time

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from attnlearn import AttentionLayer, OracleError
from attnlearn.oracle import BudgetSpent, Counts, Oracle


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=4, bias=True, seed=seed)


@pytest.fixture
def x(rng):
    return rng.standard_normal((10, 3, 4))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("attnlearn.oracle._patience.BACKOFF_SECONDS", 0.001)


def test_counts_what_is_read(layer, x):
    oracle = Oracle.wrap(layer, batch_size=3)
    np.testing.assert_allclose(oracle(x), layer(x), atol=1e-13)
    assert oracle.counts == Counts(sequences=10, tokens=30, scalars=120)
    np.testing.assert_array_equal(oracle(x[:2], rows=[0, 2]), layer(x[:2])[:, [0, 2]])
    assert oracle.counts == Counts(sequences=12, tokens=36, scalars=136)


def test_batches(x):
    sizes = []

    def function(batch):
        sizes.append(len(batch))
        return batch

    Oracle.wrap(function, batch_size=4)(x)
    assert sizes == [4, 4, 2]


def test_wrap_is_idempotent_and_options_share_the_counts(layer, x):
    oracle = Oracle.wrap(layer)
    assert Oracle.wrap(oracle) is oracle
    assert Oracle.wrap(oracle, budget=None, cache=None) is oracle
    oracle(x)
    limited = Oracle.wrap(oracle, budget=4)
    limited(x[:4])
    assert oracle.counts.sequences == 14
    with pytest.raises(BudgetSpent):
        limited(x[:1])


def test_budget_is_never_exceeded(x):
    asked = []
    oracle = Oracle.wrap(lambda batch: asked.append(len(batch)) or batch, budget=12, batch_size=4)
    oracle(x)
    assert oracle.remaining == 2
    with pytest.raises(BudgetSpent, match="3 more sequences asked, 2 left"):
        oracle(x[:3])
    oracle(x[:2])
    assert sum(asked) == 12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers_come_in_the_dtype_of_the_question(layer, x, dtype):
    for source in (
        layer.astype(np.float32),
        lambda x: x.astype(np.float64),
        lambda x: jnp.asarray(x, jnp.float32),
    ):
        oracle = Oracle.wrap(source)
        asked = oracle.accepted(x.astype(dtype))
        assert oracle(asked).dtype == dtype


def test_tokens_that_would_be_rounded_are_refused(layer, x):
    oracle = Oracle.wrap(layer.astype(np.float32))
    with pytest.raises(ValueError, match=r"^x: would be rounded"):
        oracle(x)
    assert oracle.counts.sequences == 0
    oracle(oracle.accepted(x))


@pytest.mark.parametrize(
    "bad", [np.ones((3, 4)), np.ones((2, 3, 5)), np.ones((0, 3, 4)), np.ones((1, 3, 4), complex)]
)
def test_bad_questions(layer, bad):
    with pytest.raises(ValueError, match=r"^x: "):
        Oracle.wrap(layer)(bad)


def test_bad_options(layer):
    for name, value in {"batch_size": 0, "budget": -1, "retries": -1, "timeout": 0.0}.items():
        with pytest.raises(ValueError, match=name):
            Oracle.wrap(layer, **{name: value})
    with pytest.raises(ValueError, match="oracle: must be"):
        Oracle.wrap(3)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (lambda x: x[:, :2], r"shape \(1, 2, 4\)"),
        (lambda x: x[0], "shape"),
        (lambda x: np.full_like(x, np.nan), "NaN"),
        (lambda x: x * np.inf, "NaN or infinity"),
        (lambda x: x.astype(int), "int64"),
        (lambda x: "forty-two", "no array"),
        (lambda x: None, "no array"),
        (lambda x: x.undefined, "AttributeError"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_lies_are_errors(lie, message):
    with pytest.raises(OracleError, match=message):
        Oracle.wrap(lie)(np.zeros((1, 3, 4)))


def test_output_dimension_must_not_change(x):
    answers = iter([4, 4, 2])
    oracle = Oracle.wrap(lambda x: x[..., : next(answers)], batch_size=1)
    oracle(x[:2])
    with pytest.raises(OracleError, match=r"not \(1, 3, 4\)"):
        oracle(x[:1])


def test_hiccups_are_retried_and_counted_apart(x):
    failures = iter([True, True, False, False])

    def function(x):
        if next(failures):
            raise ConnectionResetError("gone")
        return x

    oracle = Oracle.wrap(function)
    oracle(x)
    assert oracle.counts == Counts(sequences=10, tokens=30, scalars=120, retried=20)


def test_outages_end(x):
    calls = []

    def function(x):
        calls.append(1)
        raise ConnectionResetError("gone")

    with pytest.raises(OracleError, match="after 3 tries: ConnectionResetError: gone"):
        Oracle.wrap(function, retries=2)(x)
    assert len(calls) == 3


def test_mistakes_are_not_retried(x):
    calls = []

    def function(x):
        calls.append(1)
        raise TypeError("no")

    with pytest.raises(OracleError, match="TypeError: no"):
        Oracle.wrap(function, retries=2)(x)
    assert len(calls) == 1


def test_slow_oracles_are_given_up(x):
    oracle = Oracle.wrap(lambda x: time.sleep(1.0) or x, timeout=0.05, retries=1)
    with pytest.raises(OracleError, match=r"no answer within 0.05 s"):
        oracle(x)
    np.testing.assert_array_equal(Oracle.wrap(lambda x: x, timeout=30.0)(x), x)


def test_an_oracle_may_spoil_its_argument(x):
    def function(batch):
        batch *= 0
        return batch

    before = x.copy()
    Oracle.wrap(function)(x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_torch_attention(batch_first, dtype, rng):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first, dtype=dtype)
    oracle = Oracle.wrap(module)
    x = oracle.accepted(rng.standard_normal((5, 3, 8)))
    query = torch.from_numpy(x).to(dtype)
    query = query if batch_first else query.transpose(0, 1)
    expected = module(query, query, query)[0]
    expected = expected if batch_first else expected.transpose(0, 1)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    np.testing.assert_allclose(oracle(x), expected.detach().double().numpy(), atol=tolerance)
    names = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16"}
    assert oracle.noise().rounding == names[dtype]


def test_torch_module_with_several_outputs(rng):
    class Block(torch.nn.Module):
        def forward(self, x):
            return 2 * x, None

    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(Oracle.wrap(Block())(x), 2 * x)


def test_repr_shows_no_weights(layer):
    assert repr(Oracle.wrap(layer)) == "Oracle(layer, 0 sequences asked)"
