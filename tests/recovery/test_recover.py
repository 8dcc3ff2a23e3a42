"""`recover` as a user meets it: certified answers, honest failures, checkpoints, other sources of examples."""

from __future__ import annotations

import json
from itertools import pairwise

import jsonschema
import numpy as np
import pytest

from attnlearn import AttentionLayer, NotEstablished, Outcome, data, distance, recover
from attnlearn._certificate import Status
from attnlearn._serialize import schema
from attnlearn.recovery import SpectralConfig
from tests.problems import HOSTILE, UNMODELLED, broken_claims
from tests.problems import _teachers as teachers

DIM, TOKENS, HEADS, NUM = 8, 4, 2, 4000  # one shape for most tests, so that little is compiled


@pytest.fixture(scope="module")
def truth() -> AttentionLayer:
    return AttentionLayer.random(HEADS, DIM, seed=21, bias=True)


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return data.Gaussian(TOKENS, DIM).sample(NUM, seed=2)


@pytest.fixture(scope="module")
def solution(truth, x):
    return recover(x, truth(x))


def test_the_answer_is_the_layer(solution, truth, x) -> None:
    assert solution.outcome is Outcome.RECOVERED
    assert solution.certified
    assert distance(solution.layer, truth).max < 1e-8
    fresh = data.Gaussian(TOKENS, DIM).sample(5000, seed=99)
    assert not broken_claims(solution.certificate, solution.layer, truth, (fresh, truth(fresh)))
    ran = [phase.name for phase in solution.phases if "skipped" not in phase.evidence]
    assert ran == ["signals", "moment", "fit", "certify"]
    np.testing.assert_allclose(solution.layer.patterns(x[:3]).sum(-1), 1, atol=1e-12)


def test_the_result_is_valid_json(solution, tmp_path) -> None:
    solution.layer.save(tmp_path / "layer.safetensors")
    solution.save_json(tmp_path / "result.json", tmp_path / "layer.safetensors")
    jsonschema.validate(json.loads((tmp_path / "result.json").read_text()), schema())


def test_same_seed_same_bytes(solution, truth, x) -> None:
    again = recover(x, truth(x))
    for first, second in zip(solution.layer.parameters, again.layer.parameters, strict=True):
        assert first.tobytes() == second.tobytes()


def test_recorded_folders_and_oracles_give_the_same_layer(truth, x, tmp_path) -> None:
    with data.RecordedWriter(tmp_path / "folder") as writer:
        writer.write(x, truth(x))
    assert distance(recover(tmp_path / "folder").layer, truth).max < 1e-8
    assert distance(recover(data.Recorded(tmp_path / "folder")).layer, truth).max < 1e-8
    drawn = recover(data.Gaussian(TOKENS, DIM), truth, config=SpectralConfig(num_examples=NUM))
    assert distance(drawn.layer, truth).max < 1e-8


@pytest.mark.parametrize("times", [0.02, 50.0])
def test_the_token_scale_makes_a_weak_or_saturated_layer_visible(truth, times) -> None:
    layer = AttentionLayer(truth.theta * times, truth.w)
    drawn = recover(data.Gaussian(TOKENS, DIM), layer, config=SpectralConfig(num_examples=NUM))
    assert drawn.certified
    assert distance(drawn.layer, layer).max < 1e-8
    scale = drawn.stats["token_scale"]
    assert (scale > 2) if times < 1 else (scale < 0.5)
    assert "tokens times" in drawn.certificate.claim("C1").text


def test_a_checkpoint_resumes_to_the_same_bytes(solution, truth, x, tmp_path, monkeypatch) -> None:
    from attnlearn.recovery import _fit

    class Cut(Exception):
        pass

    def cut(*args, **kwargs):
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(_fit, "refine", cut)
        with pytest.raises(Cut):
            recover(x, truth(x), checkpoint=tmp_path / "saved")
    resumed = recover(x, truth(x), checkpoint=tmp_path / "saved")
    for first, second in zip(solution.layer.parameters, resumed.layer.parameters, strict=True):
        assert first.tobytes() == second.tobytes()
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        recover(x, truth(x), checkpoint=tmp_path / "saved", seed=1)


@pytest.mark.parametrize("raise_on_failure", [True, False])
def test_an_interrupt_ends_the_caller_too_and_carries_the_solution(
    raise_on_failure, truth, x, monkeypatch, tmp_path
) -> None:
    from attnlearn.recovery import _fit

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(_fit, "refine", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        recover(x, truth(x), checkpoint=tmp_path / "saved", raise_on_failure=raise_on_failure)
    stopped = caught.value.solution
    assert list((tmp_path / "saved").glob("state-*"))
    assert stopped.outcome is Outcome.INTERRUPTED
    assert not stopped.certified
    assert [phase.name for phase in stopped.phases] == [
        "signals",
        "residual connection",
        "wide search",
        "moment",
    ]


def test_causal_masks_are_found(truth, x) -> None:
    causal = truth.replace(causal=True)
    found = recover(x, causal(x))
    assert found.layer.causal
    assert distance(found.layer, causal).max < 1e-8


def test_noise_is_certified_at_the_accuracy_it_allows(truth, x, rng) -> None:
    y = truth(x)
    noisy = recover(x, y + 1e-3 * y.std() * rng.standard_normal(y.shape), raise_on_failure=False)
    assert noisy.outcome is Outcome.RECOVERED
    assert noisy.certified
    assert noisy.certificate.claim("C3").value["weights"] > distance(noisy.layer, truth).theta
    assert noisy.stats["select_error"] == pytest.approx(1e-3, rel=0.2)
    found = distance(noisy.layer, truth)
    expected = max(noisy.stats["standard_errors"]["theta"])
    assert expected / 2 < found.theta < 2 * expected


def test_float32_stays_float32(truth, x) -> None:
    single = truth.astype(np.float32)
    found = recover(x.astype(np.float32), single(x.astype(np.float32)), raise_on_failure=False)
    assert found.layer.dtype == np.float32
    assert found.layer.num_heads == HEADS
    assert distance(found.layer, single).theta < 1e-4


def test_a_residual_is_named(truth, x) -> None:
    with pytest.raises(NotEstablished, match="NOT_ATTENTION") as caught:
        recover(x, truth(x) + x)
    assert caught.value.solution.stats["diagnosis"]["cause"] == "residual"


def test_an_exact_answer_that_too_few_examples_could_check(seed) -> None:
    layer = AttentionLayer.random(2, 6, seed=seed)
    x = np.random.default_rng([seed, 2]).standard_normal((120, 4, 6))
    found = recover(x, layer(x), raise_on_failure=False)
    assert distance(found.layer, layer).max < 1e-10
    assert found.outcome is Outcome.TOO_FEW_EXAMPLES
    assert (
        round(0.15 * found.stats["examples_needed"]) >= 28
    )  # so many certify examples cover half of the inputs


@pytest.mark.parametrize("method", ["moment", "wide", "spectral"])
def test_every_method_that_looks_for_heads_finds_them(method, truth, x) -> None:
    found = recover(x[:1500], truth(x[:1500]), method=method)
    assert found.certified
    assert distance(found.layer, truth).max < 1e-8
    assert found.stats["method"] == ("moment" if method == "spectral" else method)


def test_a_time_limit_ends_the_run_with_the_best_answer_so_far_and_can_be_resumed(truth, x, tmp_path) -> None:
    saved = tmp_path / "saved"
    limited = [
        recover(x, truth(x), time_limit=1e-9, checkpoint=saved, raise_on_failure=False) for _ in range(5)
    ]
    assert [found.outcome for found in limited] == 5 * [Outcome.BUDGET_SPENT]
    assert [found.layer is None for found in limited[:3]] == 3 * [True]
    assert limited[-1].layer is not None  # a fit has begun
    seen = [[phase.name for phase in found.phases] for found in limited]
    assert seen[0] == ["signals"]
    assert all(later[: len(sooner)] == sooner for sooner, later in pairwise(seen))
    found = recover(x, truth(x), checkpoint=saved)
    assert found.certified
    assert distance(found.layer, truth).max < 1e-8
    with pytest.raises(ValueError, match=r"^time_limit: must be positive"):
        recover(x, truth(x), time_limit=0)


def test_groups_stay_on_one_side(truth, x) -> None:
    found = recover(x, truth(x), groups=np.arange(NUM) // 8)
    assert found.certified
    assert found.certificate.claim("C1").value["examples"] == round(0.15 * NUM / 8)


def test_a_missed_target_is_not_established(truth, x) -> None:
    found = recover(x, truth(x), target=1e-16, raise_on_failure=False)
    assert not found.certified
    assert not found.achieved


def test_a_target_ends_the_run_there(truth, x) -> None:
    found = recover(x, truth(x), target=1e-3)
    claims = {claim.code: claim.established for claim in found.certificate.claims}
    assert claims == {"C1": True, "C2": False, "C3": False}
    assert found.outcome is Outcome.ON_TARGET
    assert found.achieved
    assert not found.certified
    assert found.phase("fit").evidence["stop"] == "target"
    assert found.certificate.check("C3.bound").status is Status.NOT_RUN
    fresh = np.random.default_rng(99).standard_normal((4_000, *x.shape[1:]))
    error = np.linalg.norm(found.layer(fresh) - truth(fresh), axis=(1, 2))
    assert np.mean(error > 1e-3 * np.linalg.norm(truth(fresh), axis=(1, 2))) < 0.01
    assert error.max() > 1e-12  # it did stop early


@pytest.mark.parametrize("family", ["too few", "perceptron", "wrong count", "positions"])
def test_hostile_problems_end_in_a_right_outcome(family: str, seed: int) -> None:
    problem = HOSTILE[family](np.random.default_rng([seed, 5]))
    found = recover(problem.x, problem.y, raise_on_failure=False, **problem.options)
    assert found.outcome.name in problem.right
    assert found.certified == (found.outcome is Outcome.RECOVERED)


@pytest.mark.slow
@pytest.mark.parametrize("family", HOSTILE | UNMODELLED)
def test_the_whole_hostile_suite(family: str, seed: int) -> None:
    problem = (HOSTILE | UNMODELLED)[family](np.random.default_rng([seed, 6]))
    found = recover(problem.x, problem.y, raise_on_failure=False, **problem.options)
    assert found.outcome.name in problem.right
    assert problem.broken(found, 20_000) == []


@pytest.mark.slow
def test_two_dask_workers_give_the_same_layer(solution, truth, x) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        found = recover(x, truth(x), engine=f"dask:{cluster.scheduler_address}")
    assert found.outcome is solution.outcome
    assert distance(found.layer, solution.layer).max < 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, y: recover(x, y, method="guess"),
            "method: must be one of auto, moment, wide, sculpt, linear, spectral, got 'guess'",
        ),
        (lambda x, y: recover(x, y, num_heads=0), "num_heads: must be at least 1, got 0"),
        (lambda x, y: recover(x, y[:10]), "y: "),
        (lambda x, y: recover(x), "y: must be given when x is an array"),
        (lambda x, y: recover(x[:10], y[:10]), "x: must hold at least 20 sequences"),
        (lambda x, y: recover(x, y, target=-1.0), "target: must be positive"),
        (lambda x, y: recover(x, y, groups=[1, 2]), "groups: must have one entry per sequence"),
        (lambda x, y: recover(x, np.full_like(y, np.nan)), "y: must be finite"),
        (lambda x, y: recover(data.Gaussian(4, 8)), "y: must be an oracle"),
    ],
)
def test_bad_input_is_one_line(call, message: str, x, truth) -> None:
    with pytest.raises(ValueError, match="^" + message) as caught:
        call(x, truth(x))
    assert "\n" not in str(caught.value)


def test_teachers_differ_from_layers(x, truth, rng) -> None:
    """The hostile teachers really are something else: otherwise their outcomes would prove nothing."""
    assert np.abs(teachers.normalise(truth(x), rng) - truth(x)).max() > 0.1
