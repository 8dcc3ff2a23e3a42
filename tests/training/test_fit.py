"""`fit` as a user sees it: certificates, optimizers, resuming, errors, the trained model."""

import json

import numpy as np
import pytest

from attnlearn import Outcome
from attnlearn._certificate import Status
from attnlearn._errors import NotEstablished
from attnlearn._serialize import schema
from attnlearn.data import TokenizedMixture
from attnlearn.training import ReadoutModel, TrainConfig, TrainedClassifier, _phases, fit, loss_and_gradient

QUICK = TrainConfig(replays=0)


@pytest.fixture(scope="module")
def examples():
    return TokenizedMixture(tokens=4, dim=6, noise=0.2).sample(40, seed=3)


@pytest.fixture(scope="module")
def solution(examples):
    held_out = TokenizedMixture(tokens=4, dim=6, noise=0.2).sample(200, seed=4)
    return fit(*examples, num_heads=4, max_steps=150, test=held_out, config=TrainConfig(replays=2))


def test_run_is_certified_and_the_bound_holds(solution, examples):
    assert solution.certified
    assert solution.outcome is Outcome.TRAINED
    figures = solution.stats["tiers"]["run-verified"]
    assert figures["violations"] == 0
    assert figures["measured"] <= figures["bound"]
    loss, _ = loss_and_gradient(*solution.layer.weights, *examples)
    assert loss == pytest.approx(solution.stats["train_loss"], rel=1e-10)


def test_bound_along_training_never_falls_below_the_mean(solution):
    curves = solution.stats["curves"]
    bound, mean = (np.array(curves[name][1:]) for name in ("bound", "mean_loss"))
    assert np.all(bound >= mean)
    assert bound[-1] == pytest.approx(solution.stats["tiers"]["run-verified"]["bound"], rel=1e-6)


def test_tiers_are_not_mixed(solution):
    assert [claim.code for claim in solution.certificate.claims] == ["M", "R"]
    assert all(claim.assumes for claim in solution.certificate.claims)
    assert solution.certificate.check("A.heads").status is Status.FAILS
    assert solution.certificate.check("G.draw").status is not Status.HOLDS
    assert solution.certificate.check("G.radius").status is Status.NOT_RUN
    assert solution.certificate.check("G.step").status is Status.FAILS  # step="auto" looks at the sample
    measured = solution.stats["tiers"]["measured"]
    assert measured["loss_interval"][0] <= measured["loss"] <= measured["loss_interval"][1]


def test_every_bound_stands_beside_its_ratio(solution):
    tiers = solution.stats["tiers"]
    assert (
        tiers["run-verified"]["ratio"] == tiers["run-verified"]["bound"] / tiers["run-verified"]["measured"]
    )
    assert f"ratio {tiers['run-verified']['ratio']:.3g}" in solution.certificate.claim("R").text
    for code, ratio in (
        ("A.bound", tiers["a-priori"]["ratio"]),
        ("A.gap", tiers["a-priori"]["generalization_ratio"]),
        ("G.draw", solution.stats["generalization"]["ratio"]),
    ):
        said = f"{ratio:.3g} times the measurement" if np.isfinite(ratio) else "not finite"
        assert said in solution.certificate.check(code).text


def test_json_follows_the_schema(solution):
    import jsonschema

    jsonschema.validate(json.loads(json.dumps(solution.to_json())), schema())


def test_adam_learns_but_is_never_certified(examples):
    settings = {"num_heads": 3, "optimizer": "adam", "max_steps": 150, "config": QUICK}
    with pytest.raises(NotEstablished, match="Adam's are not") as caught:
        fit(*examples, **settings)
    result = caught.value.solution
    assert result.stats["train_loss"] < 0.3
    assert not result.certified
    assert result.outcome is Outcome.NOT_ESTABLISHED
    assert result.certificate.check("R.bound").status is Status.NOT_APPLICABLE
    enough = fit(*examples, **settings, target=0.3)
    assert enough.outcome is Outcome.ON_TARGET
    assert not enough.certified
    assert "at most the target 0.3" in enough.verdict


def test_a_target_is_judged_beside_the_bound(examples, solution):
    settings = {"num_heads": 4, "max_steps": 150, "config": QUICK}
    met = fit(*examples, **settings, target=0.6)
    assert met.certified
    assert met.certificate.claim("L").value == {"loss": met.stats["train_loss"], "target": 0.6}
    missed = fit(*examples, **settings, target=1e-9, raise_on_failure=False)
    assert not missed.achieved
    assert missed.certificate.claim("R").established
    assert missed.outcome is Outcome.NOT_ESTABLISHED


def test_a_time_limit_ends_the_run_with_the_weights_so_far_and_can_be_resumed(
    examples, tmp_path, monkeypatch
):
    monkeypatch.setattr(_phases, "SEGMENT_STEPS", 10)
    settings = {"num_heads": 2, "max_steps": 45, "config": QUICK, "checkpoint": tmp_path / "run"}
    straight = fit(*examples, **settings | {"checkpoint": None})
    limited = [fit(*examples, **settings, time_limit=1e-9, raise_on_failure=False) for _ in range(4)]
    assert {found.outcome for found in limited} == {Outcome.BUDGET_SPENT}
    assert [found.layer is None for found in limited] == [True, True, False, False]
    assert "after 20 of 45 steps" in limited[-1].verdict
    resumed = fit(*examples, **settings)
    assert resumed.layer.u.tobytes() == straight.layer.u.tobytes()
    assert resumed.stats["curves"]["loss"] == straight.stats["curves"]["loss"]


def test_gd_takes_the_steps_it_says(examples):
    x, y = examples
    first = fit(x, y, num_heads=2, step=0.3, max_steps=1, config=QUICK, raise_on_failure=False)
    second = fit(x, y, num_heads=2, step=0.3, max_steps=2, config=QUICK, raise_on_failure=False)
    _, gradient = loss_and_gradient(*first.layer.weights, x, y)
    for before, slope, after in zip(first.layer.weights, gradient, second.layer.weights):
        np.testing.assert_allclose(after, before - 0.3 * slope, rtol=1e-12, atol=1e-14)


def test_too_large_a_step_is_admitted(examples):
    with pytest.raises(NotEstablished) as caught:
        fit(*examples, num_heads=2, step=200.0, max_steps=30, config=QUICK)
    assert caught.value.solution.outcome in (Outcome.NOT_ESTABLISHED, Outcome.NUMERICAL_FAILURE)
    assert not caught.value.solution.certified


def test_auto_step_recovers_from_a_bad_guess(examples, monkeypatch):
    monkeypatch.setattr(_phases, "choose_step", lambda *_: 200.0)
    result = fit(*examples, num_heads=2, max_steps=30, config=QUICK)
    assert result.certified
    assert result.phase("descend").evidence["halvings"] >= 1


@pytest.mark.parametrize("optimizer", ["gd", "adam"])
def test_resume_ends_in_the_same_bytes(optimizer, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(_phases, "SEGMENT_STEPS", 10)
    settings = {"num_heads": 2, "optimizer": optimizer, "max_steps": 45, "config": QUICK, "target": 0.69}
    straight = fit(*examples, **settings)
    real, calls = _phases.advance, []

    def dying(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(_phases, "advance", dying)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(*examples, **settings, checkpoint=tmp_path / "run", raise_on_failure=False)
    assert caught.value.solution.outcome is Outcome.INTERRUPTED
    monkeypatch.setattr(_phases, "advance", real)
    resumed = fit(*examples, **settings, checkpoint=tmp_path / "run", resume=True)
    assert resumed.layer.u.tobytes() == straight.layer.u.tobytes()
    assert resumed.layer.w.tobytes() == straight.layer.w.tobytes()
    assert resumed.stats["curves"]["loss"] == straight.stats["curves"]["loss"]


def test_float32_stays_float32(examples):
    x, y = examples
    result = fit(x.astype(np.float32), y, num_heads=2, max_steps=60, config=QUICK)
    assert result.layer.dtype == np.float32
    assert result.certified


def test_readout_variation_trains_and_is_certified(examples):
    x, y = examples
    marked = np.concatenate([np.zeros((len(x), 1, 6)), x], axis=1)  # a class token to ask with
    marked[:, 0, 0] = 1
    result = fit(marked, y, num_heads=4, max_steps=200, model=ReadoutModel(0), config=QUICK)
    assert result.certified
    assert result.layer.patterns(marked).shape == (40, 4, 1, 5)


def test_theory_step_meets_its_limit_and_proves_nothing_in_twenty_steps(examples):
    result = fit(*examples, num_heads=2, step="theory", max_steps=20, config=QUICK, raise_on_failure=False)
    assert result.certificate.check("A.step").status is Status.HOLDS
    assert result.certificate.check("R.violations").status is Status.HOLDS
    assert result.certificate.check("R.says").status is Status.FAILS
    assert result.outcome is Outcome.NOT_ESTABLISHED
    assert result.layer is not None


def test_coin_flips_prove_nothing(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((300, 4, 6)) / 2, rng.choice([-1.0, 1.0], 300)
    result = fit(x, y, num_heads=2, max_steps=50, config=QUICK, raise_on_failure=False)
    figures = result.stats["tiers"]["run-verified"]
    assert figures["violations"] == 0
    assert figures["bound"] <= figures["loss_start"] * (1 + 1e-12)
    assert not result.certified
    assert result.outcome is Outcome.NOT_ESTABLISHED
    assert result.layer is not None
    assert "says nothing" in result.certificate.claim("R").text
    assert max(result.stats["curves"]["bound"][1:]) <= figures["loss_start"] * (1 + 1e-12)


def test_a_bound_above_guessing_proves_nothing(seed):
    """Nine labels in ten are equal: guessing has a loss of 0.33, and a bound of 0.5 is worse than that."""
    from attnlearn.training import bounds

    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((200, 3, 4)), np.where(np.arange(200) < 20, -1.0, 1.0)
    result = fit(x, y, num_heads=2, max_steps=50, config=QUICK, raise_on_failure=False)
    check = result.certificate.check("R.says")
    assert check.threshold == pytest.approx(0.99 * bounds.guessing_loss(0.9))
    assert not result.certified


def test_model_file_round_trip(solution, examples, tmp_path):
    path = tmp_path / "model.safetensors"
    solution.layer.save(path)
    back = TrainedClassifier.load(path)
    np.testing.assert_array_equal(back.decision(examples[0]), solution.layer.decision(examples[0]))
    assert json.dumps(solution.to_json(path)["layer"]["shapes"])
    np.testing.assert_allclose(back.patterns(examples[0]).sum(axis=-1), 1, rtol=1e-12)


def test_weights_cannot_be_changed(solution):
    with pytest.raises(ValueError, match="read-only"):
        solution.layer.u[0, 0, 0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.arange(40) % 3}, "y: must hold the labels"),
        ({"y": np.ones(40)}, "y: must hold both labels"),
        (
            {"y": np.where(np.arange(40) == 3, np.nan, 1.0)},
            "y: must hold the labels -1 and .1 only .*got .*nan",
        ),
        ({"y": np.array(["a", "b"] * 20)}, "y: must be numbers"),
        ({"y": [[1], [1, -1]]}, "y: must be one label for each example"),
        ({"x": np.zeros((0, 4, 6)), "y": []}, "x: must have no empty axis"),
        ({"seed": -1}, "seed: must be an integer >= 0"),
        ({"step": True}, "step: must be a number > 0"),
        ({"max_steps": 2.5}, "max_steps: must be an integer >= 1"),
        ({"config": {"replays": 1}}, "config: must be a TrainConfig"),
        ({"config": TrainConfig(radius=0.1)}, "radius: must bound every token norm"),
        ({"model": ReadoutModel(9)}, "position: must be an integer from -4 to 3"),
        ({"num_heads": 0}, "num_heads: must be an integer >= 1"),
        ({"num_heads": 2.5}, "num_heads: must be an integer >= 1"),
        ({"step": -1.0}, "step: must be a number > 0"),
        ({"step": "fast"}, "step: must be a number > 0"),
        ({"optimizer": "sgd"}, "optimizer: must be one of"),
        ({"init": "ones"}, "init: must be one of"),
        ({"max_steps": 0}, "max_steps: must be an integer >= 1"),
        ({"x": np.zeros((40, 6))}, "x: must have shape"),
        ({"x": np.full((40, 4, 6), 1e200)}, "x: must hold no token above 1e.77 in float64"),
        ({"x": np.full((40, 4, 6), 1e20, np.float32)}, "x: must hold no token above 4e.09 in float32"),
        ({"test": (np.full((3, 4, 6), 1e200), np.ones(3))}, "test x: must hold no token above"),
        ({"test": (np.zeros((3, 5, 6)), np.ones(3))}, "test: must have tokens of shape"),
    ],
)
def test_bad_input_is_named(examples, change, message):
    given = {"x": examples[0], "y": examples[1], "num_heads": 2} | change
    with pytest.raises(ValueError, match=message):
        fit(**given)


def test_nan_tokens_are_named(examples):
    x = examples[0].copy()
    x[3, 1, 2] = np.nan
    with pytest.raises(ValueError, match=r"x: must be finite, got nan at index \(3, 1, 2\)"):
        fit(x, examples[1], num_heads=2)


@pytest.mark.parametrize("field", ["init_scale", "radius"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, "1", True])
def test_bad_configuration_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}: must be a number > 0"):
        TrainConfig(**{field: value})


def test_weights_that_do_not_fit_each_other_are_named():
    with pytest.raises(ValueError, match=r"w: must have shape \(H, d, d\)"):
        TrainedClassifier(np.ones((1, 2, 3)), np.ones((2, 3, 3)))
    mixed = TrainedClassifier(np.ones((1, 2, 3)), np.ones((1, 3, 3), np.float32))
    assert mixed.dtype == np.float64
    assert mixed.decision(np.ones((4, 2, 3), np.float32)).dtype == np.float64
    single = TrainedClassifier(np.ones((1, 2, 3), np.float32), np.ones((1, 3, 3), np.float32))
    assert single.decision(np.ones((4, 2, 3))).dtype == np.float64


def test_other_number_of_tokens_is_named(solution):
    with pytest.raises(ValueError, match=r"x: must have shape \(n, 4, 6\) as fitted"):
        solution.layer.predict(np.zeros((2, 5, 6)))
