"""`extract` from end to end: right answers certified, wrong ones never, every query counted."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, NotEstablished, Outcome, distance, hard, load
from attnlearn.engine import Tools
from attnlearn.extraction import ExtractConfig, extract, leak
from attnlearn.extraction._conclude import conclude
from attnlearn.extraction._extract import PHASES
from attnlearn.extraction._polish import layer_of
from attnlearn.extraction._state import Problem, State
from attnlearn.oracle import Oracle

FEW = ExtractConfig(certify_sequences=300)


def run(oracle, dim=6, **options):
    options = {"config": FEW, "progress": False, "raise_on_failure": False, **options}
    return extract(oracle, dim, **options)


def with_head(layer, theta, w, query_bias):
    return AttentionLayer(
        np.concatenate([layer.theta, theta[None]]),
        np.concatenate([layer.w, w[None]]),
        np.concatenate([layer.query_bias, query_bias[None]]),
        layer.output_bias,
    )


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=3, dim=6, bias=True, seed=seed)


@pytest.mark.parametrize("causal", [False, True])
def test_float64_to_twelve_digits(seed, layer, causal):
    truth = layer.replace(causal=causal)
    oracle = Oracle.wrap(truth)
    solution = run(oracle, seed=seed)
    assert solution.certified
    assert solution.layer.num_heads == 3
    assert solution.layer.causal is causal
    assert distance(solution.layer, truth).max < 1e-12
    counts = oracle.counts
    assert (counts.sequences, counts.tokens, counts.scalars) == tuple(
        solution.stats[name] for name in ("sequences", "tokens", "scalars")
    )
    assert [phase.name for phase in solution.phases] == [
        "measure", "probe", "separate", "match", "complete", "polish", "ask", "certify",
    ]  # fmt: skip


def test_float32_oracle(seed, layer):
    truth = layer.astype(np.float32)
    solution = run(truth, seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert solution.layer.dtype == np.float32
    assert distance(solution.layer, truth).max < 1e-4


def test_no_query_is_longer_than_the_caller_wants(seed, layer):
    longest = []

    def oracle(x):
        longest.append(x.shape[1])
        return layer(x)

    assert run(oracle, seed=seed, config=ExtractConfig(certify_tokens=3)).certified
    assert max(longest) == 3


def test_equal_heads_are_merged(seed, layer):
    truth = with_head(layer, layer.theta[0], layer.w[1] + layer.w[2], layer.query_bias[0])
    solution = run(truth, seed=seed)
    assert solution.layer.num_heads == 3
    assert distance(solution.layer, truth).max < 1e-10


@pytest.mark.slow
def test_a_head_that_writes_nothing_is_not_there(seed, layer):
    truth = with_head(layer, layer.theta[0] + 1, np.zeros((6, 6)), layer.query_bias[1])
    solution = run(truth, seed=seed)
    assert solution.layer.num_heads == 3
    assert distance(solution.layer, truth).max < 1e-10


@pytest.mark.parametrize("biased", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_head_without_scores(seed, layer, biased):
    bias = layer.query_bias[0] * biased
    truth = with_head(layer.replace(query_bias=0.5 * layer.query_bias), np.zeros((6, 6)), layer.w[0].T, bias)
    solution = run(truth, seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert solution.layer.num_heads == 4
    assert distance(solution.layer, truth).max <= solution.certificate.claim("C3").value["bound"] < 1e-9


def test_several_heads_without_scores_are_not_told_apart(seed):
    layer = AttentionLayer.random(num_heads=4, dim=6, bias=True, seed=seed)
    flat = layer.replace(theta=layer.theta * np.array([0.0, 0.0, 1.0, 1.0])[:, None, None])
    solution = run(flat, seed=seed)
    assert solution.outcome is Outcome.HEADS_INDISTINGUISHABLE
    assert "do not depend on the query" in solution.stats["failures"][0]["cause"]


@pytest.mark.parametrize(
    ("biased", "causal", "dtype"),
    [
        (False, False, "float64"),
        pytest.param(True, False, "float64", marks=pytest.mark.slow),
        pytest.param(False, True, "float64", marks=pytest.mark.slow),
        pytest.param(True, False, "float32", marks=pytest.mark.slow),
    ],
)
def test_a_layer_without_any_scores_is_one_head(seed, layer, biased, causal, dtype):
    bias = biased * np.repeat(layer.query_bias[:1], 3, axis=0)
    flat = layer.replace(theta=0 * layer.theta, query_bias=bias, causal=causal).astype(dtype)
    solution = run(flat, seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert solution.layer.num_heads == 1
    assert not solution.layer.theta.any()
    assert distance(solution.layer, flat).max <= solution.certificate.claim("C3").value["bound"] < 1e-3
    assert "variance one" in solution.certificate.claim("C3").text


def _of_ranks(dim, ranks, seed):
    heads = [AttentionLayer.random(1, dim, rank=max(1, r), seed=100 * seed + i) for i, r in enumerate(ranks)]
    theta = np.concatenate([head.theta * (rank > 0) for head, rank in zip(heads, ranks)])
    return AttentionLayer(theta, np.concatenate([head.w for head in heads]) / np.sqrt(len(ranks)))


@pytest.mark.parametrize(
    ("dim", "ranks", "dtype"),
    [
        (10, [1, 3, 5], "float64"),
        (22, [2, 5, 7], "float64"),
        pytest.param(20, [0, 2, 4, 4], "float64", marks=pytest.mark.slow),
        pytest.param(24, [1, 4, 9, 13], "float64", marks=pytest.mark.slow),
        pytest.param(24, [2, 4, 7], "float32", marks=pytest.mark.slow),
    ],
)
def test_heads_of_different_ranks(seed, dim, ranks, dtype):
    truth = _of_ranks(dim, ranks, seed).astype(dtype)
    solution = run(truth, dim=dim, seed=seed, config=ExtractConfig(certify_sequences=1000))
    assert solution.outcome is Outcome.RECOVERED
    assert sorted(solution.stats["ranks"]) == ranks
    assert distance(solution.layer, truth).max < {"float64": 1e-11, "float32": 1e-4}[dtype]


def _linear_attention(layer):
    return lambda x: (x @ layer.theta[0] @ x.transpose(0, 2, 1)) @ x @ layer.w[0]


NO_ATTENTION = {
    "token by token": lambda layer: lambda x: np.tanh(x @ layer.w[0]),
    "linear": lambda layer: lambda x: x @ layer.w[0],
    "linear attention": _linear_attention,
    "residual": lambda layer: lambda x: x + layer(x),
    "shift": lambda layer: lambda x: x + np.roll(x, 1, 1) @ layer.w[0],
    "positions": lambda layer: lambda x: layer(x + 0.1 * np.arange(x.shape[1])[:, None]),
    "clipped": lambda layer: lambda x: np.maximum(layer(x), 0),
}


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_what_is_no_attention_is_said_so(seed, layer, name):
    solution = run(NO_ATTENTION[name](layer), seed=seed)
    assert solution.outcome is Outcome.NOT_ATTENTION
    assert not solution.certified


def test_a_random_oracle_is_no_attention(seed, rng):
    solution = run(lambda x: rng.standard_normal(x.shape), seed=seed)
    assert solution.outcome in (Outcome.NOT_ATTENTION, Outcome.ORACLE_FAILED)


def test_a_small_foreign_term_is_never_certified(seed, layer):
    def oracle(x):
        return layer(x) + 1e-3 * np.tanh(x).sum(1, keepdims=True)

    solution = run(oracle, seed=seed)
    assert not solution.certified


def stepped(layer, step):
    ends = np.cumsum([array.size for array in layer.parameters])[:-1]
    moved = [a + s.reshape(a.shape) for a, s in zip(layer.parameters, np.split(step, ends))]
    return AttentionLayer(*moved, causal=layer.causal)


def written_out(layer, asked):
    """Central differences of every answer (rows) in every parameter (columns)."""
    size, step = sum(array.size for array in layer.parameters), 1e-5

    def answers(move):
        return np.concatenate([stepped(layer, move)(x).ravel() for x in asked])

    return np.stack([(answers(move) - answers(-move)) / (2 * step) for move in step * np.eye(size)], 1)


def test_no_false_certificate_where_queries_show_least(seed, layer):
    """The Jacobian is taken on fitted queries too: move the layer along the direction that they all show least."""
    problem, state = Problem(Oracle.wrap(layer), 6), State()
    for _, phase in PHASES:
        state, _ = phase(problem, state, Tools(seed=seed))
    found = layer_of(state)
    whole = state.held_mask.all(axis=1)
    jacobian = written_out(found, [state.held_x[whole], *state.asked_x])
    norms = np.linalg.norm(jacobian, axis=0)
    weakest = np.linalg.svd(jacobian / norms, full_matrices=False)[2][-1] / norms
    certified = []
    for size in (0.0, 1e-13, 1e-11, 1e-9, 1e-6, 1e-3):
        moved = stepped(found, size * weakest / np.abs(weakest).max())
        certificate, _, _ = conclude(problem, state, moved)
        certified.append(certificate.certified)
        if certificate.certified:
            assert distance(moved, layer).max <= certificate.claim("C3").value["bound"]
    assert certified[0]
    assert not certified[-1]


DEPENDENT = {
    "more heads than outputs": lambda: AttentionLayer.random(5, 3, seed=0),
    "opposite heads": lambda: _opposite(AttentionLayer.random(2, 6, seed=0)),
    "parity of two bits": lambda: hard.parity(6, 2, seed=0),
}


def _opposite(layer):
    return layer.replace(w=np.stack([layer.w[0], -layer.w[0]]))


@pytest.mark.parametrize("name", DEPENDENT)
def test_heads_whose_values_depend_on_each_other_are_found(seed, name):
    truth = DEPENDENT[name]()
    solution = run(truth, dim=truth.dim, seed=seed)
    assert solution.certified
    assert solution.layer.num_heads == truth.num_heads
    assert distance(solution.layer, truth).max < 1e-11


def test_too_many_dependent_heads_are_an_outcome(monkeypatch, seed):
    monkeypatch.setattr("attnlearn.extraction._calibration.SEARCH_UNKNOWNS", 10)
    solution = run(AttentionLayer.random(5, 3, seed=seed), dim=3, seed=seed)
    assert solution.outcome is Outcome.HEADS_INDISTINGUISHABLE
    assert solution.stats["failures"][0]["heads_at_least"] == 5


@pytest.mark.parametrize(("factor", "outcome"), [(1e2, Outcome.RECOVERED), (1e4, Outcome.SATURATED)])
def test_a_head_much_stronger_than_the_others(seed, factor, outcome):
    layer = AttentionLayer.random(num_heads=3, dim=6, bias=True, seed=0)
    strong = layer.replace(theta=layer.theta * np.array([factor, 1.0, 1.0])[:, None, None])
    assert run(strong, seed=seed).outcome is outcome


def test_rounded_answers_state_the_floor(seed, layer):
    solution = run(lambda x: np.round(layer(x), 3), seed=seed)
    assert solution.outcome is Outcome.BELOW_NOISE_FLOOR
    assert solution.layer.num_heads == 3
    assert distance(solution.layer.astype(np.float64), layer).max < 0.02
    assert 1e-4 < solution.stats["noise"] < 1e-3


def test_budget_and_cache(tmp_path, seed, layer):
    first = run(layer, seed=seed, budget=200, cache=tmp_path)
    assert first.outcome is Outcome.BUDGET_SPENT
    assert first.stats["sequences"] <= 200
    again = run(layer, seed=seed, cache=tmp_path)
    assert again.certified
    assert again.stats["cached_sequences"] > 50


def test_a_dead_oracle_keeps_what_was_learned(monkeypatch, seed, layer):
    monkeypatch.setattr("attnlearn.oracle._patience.BACKOFF_SECONDS", 0.001)
    asked = []

    def oracle(x):
        asked.append(len(x))
        if sum(asked) > 200:
            raise ConnectionError("gone")
        return layer(x)

    solution = run(oracle, seed=seed)
    assert solution.outcome is Outcome.ORACLE_FAILED
    assert solution.phases[0].name == "measure"


def test_failure_raises_with_the_solution(layer):
    with pytest.raises(NotEstablished) as caught:
        extract(layer, 6, budget=50, progress=False)
    assert caught.value.solution.outcome is Outcome.BUDGET_SPENT


def test_bad_input_is_refused(layer):
    with pytest.raises(ValueError, match="dim"):
        extract(layer, 0)
    with pytest.raises(ValueError, match="num_heads"):
        extract(layer, 6, num_heads=0)


def test_checkpoint_resumes_to_the_same_bytes(tmp_path, seed, layer):
    whole = run(layer, seed=seed)
    with_folder = run(layer, seed=seed, checkpoint=tmp_path / "run")
    resumed = run(layer, seed=seed, checkpoint=tmp_path / "run")
    assert with_folder.layer == whole.layer == resumed.layer


def test_leak_falls_with_queries_and_rounding_stops_it(seed, layer):
    curve = leak(layer, 6, decimals=(None, 2), truth=layer, seed=seed, progress=False)
    exact = [row for row in curve.rows if row["decimals"] is None]
    rounded = [row for row in curve.rows if row["decimals"] == 2]
    assert exact[0]["error"] == 1.0
    assert exact[-1]["error"] < 1e-9 < 1e-4 < rounded[-1]["error"]
    spent = [row["sequences"] for row in exact]
    assert spent == sorted(spent)
    assert "2 decimals" in str(curve)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sapiens-vh-layer0", "sapiens-vh-layer3"])
def test_real_layers_in_float32(seed, layers, name):
    truth = load(layers / f"{name}.safetensors")
    solution = extract(truth.astype(np.float32), 128, seed=seed, progress=False, raise_on_failure=False)
    assert solution.layer.num_heads == 8
    assert distance(solution.layer.astype(np.float64), truth.astype(np.float64)).max < 1e-4
    assert solution.certified
    assert solution.stats["sequences"] <= 3_000
    assert solution.stats["tokens"] <= 8_000


def test_the_dimension_is_asked_from_oracles_that_know_it(seed, layer):
    assert distance(run(layer, dim=None, seed=seed).layer, layer).max < 1e-12
    with pytest.raises(
        ValueError, match=r"^dim: must be given for an oracle that does not say its token dimension"
    ):
        run(lambda x: layer(x), dim=None, seed=seed)
    with pytest.raises(ValueError, match=r"^dim: must be an integer >= 1, got 0"):
        run(layer, dim=0)


def test_a_target_that_is_met_is_enough(seed, layer):
    """Answers of three decimals can never show the number of heads, but they show the function to a percent."""
    oracle = Oracle.wrap(lambda x: np.round(layer(x), 3))
    without = run(oracle, seed=seed)
    assert not without.achieved
    enough = run(oracle, seed=seed, target=0.1)
    assert enough.outcome is Outcome.ON_TARGET
    assert enough.achieved
    assert not enough.certified
    assert enough.certificate.claim("C1").value["error"] <= 0.1
    assert not run(oracle, seed=seed, target=1e-9).achieved


def test_a_time_limit_ends_the_run_and_can_be_resumed(seed, layer, tmp_path):
    limits = {"seed": seed, "checkpoint": tmp_path / "run", "time_limit": 1e-9}
    limited = [run(layer, **limits) for _ in range(7)]
    assert [found.outcome for found in limited[:6]] == 6 * [Outcome.BUDGET_SPENT]
    assert [found.layer is None for found in limited[:6]] == [True, True, True, True, False, False]
    assert limited[-1].certified  # nothing was left but to ask and to judge
    assert distance(limited[-1].layer, layer).max < 1e-12
