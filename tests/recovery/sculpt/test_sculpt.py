"""`recover(..., method="sculpt")` end to end."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, data, distance, recover
from attnlearn.recovery.sculpt import SculptConfig, _carve, _hull
from attnlearn.reporting import phase_figures
from tests.recovery.sculpt._models import BiasedBits, Sphere

SMALL = SculptConfig(num_examples=400_000, held_examples=12_000, batch=32_768)


def sculpt(model, layer, config=SMALL, **options):
    return recover(model, layer, method="sculpt", config=config, raise_on_failure=False, **options)


def test_one_head(seed):
    layer = AttentionLayer.random(1, 4, scale=4.0, seed=seed)
    solution = sculpt(data.Gaussian(3, 4), layer, seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert distance(solution.layer, layer).max < 1e-8
    assert solution.certificate.check("S1.body").status.name == "HOLDS"


def test_arrays_are_counted_once(seed):
    layer = AttentionLayer.random(1, 4, scale=4.0, seed=seed)
    x = data.Gaussian(3, 4).sample(60_000, seed=seed + 1)
    solution = sculpt(x, layer(x), seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert 0 < solution.phase("carve").evidence["examples"] <= len(x)
    assert solution.stats["examples"] == solution.phase("carve").evidence["examples"]


def test_two_heads_and_their_evidence(seed):
    layer = AttentionLayer.random(2, 4, scale=4.0, seed=seed)
    solution = sculpt(data.Gaussian(3, 4), layer, seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert solution.layer.num_heads == 2
    assert distance(solution.layer, layer).max < 1e-6
    recheck = solution.phase("recheck").evidence
    assert recheck["violated"] == 0
    assert recheck["proved"] > 0
    rounds = solution.phase("carve").evidence["rounds"]
    assert all(entry["slabs"] > 0 and entry["widths_across"] for entry in rounds)
    assert solution.stats["examples"] <= SMALL.num_examples
    document = solution.to_json()
    drawn = [figure for phase in document["phases"] for figure in phase_figures(document, phase)]
    (widths,) = [figure for figure in drawn if figure.title == "Width of the body K by round"]
    assert [len(series.x) for series in widths.series] == [len(rounds)] * 2


def test_a_head_too_few_is_noticed_on_select_examples(seed, monkeypatch):
    def one_only(slabs, most):
        return _hull.Count(1, [1.0], _hull.fit_hull(slabs, 1))

    monkeypatch.setattr(_carve, "count_heads", one_only)
    layer = AttentionLayer.random(2, 4, scale=4.0, seed=seed)
    solution = sculpt(data.Gaussian(3, 4), layer, seed=seed)
    assert solution.phase("span").evidence["num_heads"] == 1
    found = solution.phase("search").evidence
    assert found["tried"]["2"] < 0.7 * found["tried"]["1"]
    assert found["span"]["num_heads"] == 2
    assert solution.outcome is Outcome.RECOVERED
    assert distance(solution.layer, layer).max < 1e-6


def test_bad_knobs_are_one_line():
    with pytest.raises(ValueError, match=r"^window: must be at least 2, got 1$"):
        SculptConfig(window=1)
    with pytest.raises(ValueError, match="config: must be a SculptConfig"):
        recover(np.zeros((40, 3, 2)), np.zeros((40, 3, 2)), method="sculpt", config=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [data.Boolean(4, 8), data.Gaussian(4, 8), Sphere(4, 8), BiasedBits(4, 8)], ids=repr
)
def test_two_heads_on_any_data_model(model, seed):
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    solution = sculpt(model, layer, config=SculptConfig(num_examples=4_000_000), seed=seed)
    assert solution.outcome is Outcome.RECOVERED
    assert distance(solution.layer, layer).max < 1e-6


@pytest.mark.slow
def test_without_refine_and_with_a_target(seed):
    layer = AttentionLayer.random(2, 8, scale=4.0, seed=seed)
    plain = sculpt(data.Boolean(4, 8), layer, config=SculptConfig(refine=False), seed=seed)
    assert distance(plain.layer, layer).theta < 0.05
    on_target = recover(data.Boolean(4, 8), layer, method="sculpt", target=0.3, seed=seed)
    assert on_target.certificate.claim("C1").established
    assert on_target.phase("fit").evidence["tried"] == []  # judged as it is
    x = data.Boolean(4, 8).sample(20_000, seed=seed + 99)
    error = np.linalg.norm(on_target.layer(x) - layer(x), axis=(1, 2)) / np.linalg.norm(layer(x), axis=(1, 2))
    assert np.mean(error > 0.3) < 0.01


@pytest.mark.slow
def test_two_tokens_determine_the_function_only(seed):
    layer = AttentionLayer.random(2, 4, scale=4.0, seed=seed)
    solution = sculpt(data.Gaussian(2, 4), layer, seed=seed)
    x = data.Gaussian(2, 4).sample(1000, seed=seed + 99)
    assert np.abs(solution.layer(x) - layer(x)).max() < 1e-8
    assert solution.outcome is Outcome.NOT_ESTABLISHED
    assert solution.certificate.claim("C1").established
    assert solution.certificate.check("C2.keys").status.name == "FAILS"


@pytest.mark.slow
def test_the_search_leaves_the_answer_that_a_run_without_refine_gives(seed):
    layer = AttentionLayer.random(2, 4, scale=4.0, seed=seed)
    plain = dataclasses.replace(SMALL, refine=False)
    full, ended = (sculpt(data.Gaussian(3, 4), layer, config=config, seed=seed) for config in (SMALL, plain))
    np.testing.assert_array_equal(full.phase("search").evidence["answer"]["theta"], ended.layer.theta)
