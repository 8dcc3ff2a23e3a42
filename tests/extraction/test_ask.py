"""The certify queries: which are asked, that they are asked anew, and what they see."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome
from attnlearn.engine import CheckpointError, Tools
from attnlearn.extraction import ExtractConfig, extract
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._ask import ask, certified_range
from attnlearn.extraction._state import Problem, State
from attnlearn.oracle import Oracle

D = 4


@pytest.fixture
def layer(seed):
    return AttentionLayer.random(num_heads=2, dim=D, bias=True, seed=seed)


def run(oracle, **options):
    return extract(oracle, D, **{"progress": False, "raise_on_failure": False, **options})


def learned(layer, scale=0.5) -> State:
    """The state that the phases before leave of `layer`, as far as `ask` looks at it."""
    asked = [np.zeros((0, length, D)) for length in (1, 2, 3)]
    return State(
        scale=scale, w=layer.w, theta=layer.theta, query_bias=layer.query_bias, asked_x=asked, asked_y=asked
    )


class Recorder:
    """An oracle that keeps what it was asked and refuses sequences above `most` tokens."""

    def __init__(self, layer, most=99):
        self.layer, self.most, self.asked = layer, most, []

    def __call__(self, x):
        if x.shape[1] > self.most:
            raise ValueError("too long")
        self.asked.append(np.array(x))
        return self.layer(x)

    def lengths(self) -> dict[int, int]:
        """How many sequences of each length were asked."""
        found: dict[int, int] = {}
        for x in self.asked:
            found[x.shape[1]] = found.get(x.shape[1], 0) + len(x)
        return found


# --- lengths and sizes ---


def test_every_length_and_size_is_asked(layer, seed):
    oracle = Recorder(layer)
    problem = Problem(Oracle.wrap(oracle), D, config=ExtractConfig(certify_sequences=600))
    state, found = ask(problem, learned(layer), Tools(seed=seed))
    lengths = state.held_mask.sum(axis=1)
    assert set(lengths.tolist()) == set(calibration.CERTIFY_LENGTHS)
    assert found["certify_sequences"] == len(lengths) == 600
    assert found["longest"] == 16
    seen = state.held_mask[..., None] * state.held_x
    sizes = np.sqrt((seen**2).sum(axis=(1, 2)) / (D * lengths)) / 0.5
    long = np.log(sizes[lengths >= 8])  # enough numbers to tell the size
    low, high = np.log(calibration.CERTIFY_SCALES)
    shares = np.histogram(long, bins=np.linspace(low, high, 5))[0] / len(long)
    assert shares.min() > 0.15  # evenly over the range
    assert np.mean((long > low - 0.5) & (long < high + 0.5)) == 1.0
    np.testing.assert_allclose(
        state.held_y * state.held_mask[..., None],
        layer(state.held_x, state.held_mask) * state.held_mask[..., None],
    )


def test_the_order_of_lengths_is_random(layer, seed):
    """Parts of the certify examples are looked at alone: the first ones must be like all of them."""
    problem = Problem(Oracle.wrap(layer), D)
    state, _ = ask(problem, learned(layer), Tools(seed=seed))
    lengths = state.held_mask.sum(axis=1)
    assert len(set(lengths[:60].tolist())) == len(calibration.CERTIFY_LENGTHS)


def test_the_range_is_named(layer, seed):
    problem = Problem(Oracle.wrap(layer), D, config=ExtractConfig(certify_tokens=8))
    state, _ = ask(problem, learned(layer, scale=0.6), Tools(seed=seed))
    assert certified_range(state) == "2 to 8 Gaussian tokens of standard deviation 0.2 to 1.2"


def test_an_oracle_of_six_tokens_is_certified_up_to_six(layer, seed):
    oracle = Recorder(layer, most=6)
    solution = run(oracle, seed=seed)
    assert solution.certified
    assert max(oracle.lengths()) == 6
    assert "of 2 to 6 Gaussian tokens" in solution.certificate.claim("C1").text
    assert "of 2 to 6 Gaussian tokens" in solution.certificate.claim("C2").text
    assert solution.phase("ask").evidence["longest"] == 6


def test_an_oracle_that_dies_before_the_certify_queries_is_not_certified(layer, seed):
    alive = Recorder(layer)
    run(alive, seed=seed)
    before = next(number for number, x in enumerate(alive.asked) if x.shape[1] > 3)
    mortal = Recorder(layer)

    def oracle(x):
        if len(mortal.asked) >= before:
            raise ValueError("gone")
        return mortal(x)

    solution = run(oracle, seed=seed)
    assert solution.outcome is Outcome.ORACLE_FAILED
    assert not solution.certified


# --- the budget ---


def test_a_budget_that_ends_at_the_certify_queries_is_an_outcome(layer, seed):
    """At none of them it is an exception: the first asks for a length, the last for an answer."""
    whole = run(layer, seed=seed)
    learning, everything = (whole.phase(name).evidence["sequences"] for name in ("polish", "ask"))
    for budget in (learning, everything - 1):
        solution = run(layer, seed=seed, budget=budget)
        assert solution.outcome is Outcome.BUDGET_SPENT
        assert solution.stats["sequences"] <= budget


@pytest.mark.parametrize("budget", [1, 3, 5])
def test_a_budget_that_ends_at_the_probes_of_a_checkpoint_is_an_outcome(budget, layer, tmp_path):
    assert run(layer, budget=budget, checkpoint=tmp_path / "run").outcome is Outcome.BUDGET_SPENT


# --- asked anew ---


@pytest.mark.parametrize("keeping", ["checkpoint", "cache"])
def test_certify_queries_are_asked_anew(keeping, layer, seed, tmp_path):
    first, again = Recorder(layer), Recorder(layer)
    name = "the oracle"
    for oracle in (first, again):
        wrapped = Oracle.wrap(
            oracle, name=name, **({"cache": tmp_path / "kept"} if keeping == "cache" else {})
        )
        options = {"checkpoint": tmp_path / "kept"} if keeping == "checkpoint" else {}
        solution = run(wrapped, seed=seed, **options)
        wrapped.close()
        assert solution.certified
    # The fit asks single tokens, pairs, triples and the longest: all between are there to certify.
    asked = [
        {length: count for length, count in each.lengths().items() if 3 < length < 16}
        for each in (first, again)
    ]
    assert sum(asked[0].values()) > 100
    assert asked[0] == asked[1]
    fitting = [sum(x.shape[1] <= 3 and len(x) for x in oracle.asked) for oracle in (first, again)]
    assert fitting[1] < fitting[0]  # the others are not


@pytest.mark.parametrize("keeping", ["checkpoint", "cache"])
def test_an_oracle_that_changed_on_long_sequences_only_is_not_certified(keeping, layer, seed, tmp_path):
    """The probes of a checkpoint or a cache do not see it; the fresh answers do."""

    def changed(x):
        return layer(x) * (1 + 1e-3 * (x.shape[1] > 3))

    for oracle, certified in ((layer, True), (changed, False)):
        wrapped = Oracle.wrap(lambda x, oracle=oracle: oracle(x), name="the oracle",
            **({"cache": tmp_path / "kept"} if keeping == "cache" else {}))  # fmt: skip
        options = {"checkpoint": tmp_path / "kept"} if keeping == "checkpoint" else {}
        assert run(wrapped, seed=seed, **options).certified is certified
        wrapped.close()


# --- checkpoints of another oracle ---


def test_the_checkpoint_of_another_layer_is_refused(layer, seed, tmp_path):
    other = layer.replace(w=2 * layer.w)
    assert run(layer, seed=seed, checkpoint=tmp_path / "run").certified
    with pytest.raises(CheckpointError, match="oracle"):
        run(other, seed=seed, checkpoint=tmp_path / "run")


def test_the_checkpoint_of_a_function_with_other_answers_is_refused(layer, seed, tmp_path):
    """Two lambdas have one name: their answers to the probes differ."""
    other = layer.replace(w=2 * layer.w)
    first, second = (lambda x, which=which: which(x) for which in (layer, other))
    assert run(first, seed=seed, checkpoint=tmp_path / "run").certified
    with pytest.raises(CheckpointError, match="another oracle"):
        run(second, seed=seed, checkpoint=tmp_path / "run")


# --- oracles that are attention on short sequences or small tokens only ---


def scores_changed(layer, change):
    """The layer with its scores (n, m, k, k) changed before the softmax."""

    def oracle(x):
        scores = np.einsum("nad,mde,nbe->nmab", x, layer.theta, x)
        scores = change(scores + np.einsum("md,nbd->nmb", layer.query_bias, x)[:, :, None])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("nmab,nbd,mdo->nao", weights, x, layer.w, optimize=True) + layer.output_bias

    return oracle


def window(scores, width=5):
    places = np.arange(scores.shape[-1])
    return np.where(np.abs(places[:, None] - places) < width, scores, -np.inf)


def best_three(scores):
    if scores.shape[-1] <= 3:
        return scores
    return np.where(scores >= np.sort(scores, axis=-1)[..., -3:-2], scores, -np.inf)


CHANGED = {
    "window": lambda layer: scores_changed(layer, window),
    "three best keys": lambda layer: scores_changed(layer, best_three),
    "clipped tokens": lambda layer: lambda x: layer(np.clip(x, -2.0, 2.0)),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_what_is_no_layer_on_the_whole_range_is_not_certified(kind, layer, seed):
    assert not run(CHANGED[kind](layer), seed=seed).certified


def test_the_same_scores_unchanged_are_certified(layer, seed):
    assert run(scores_changed(layer, lambda scores: scores), seed=seed).certified
