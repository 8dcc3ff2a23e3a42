"""All heads at a glance, maps with their scales, and words beside patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, report
from attnlearn._maps import SampleInputs, attention_json, output_shares
from attnlearn._summary import copying_score, summarize
from attnlearn.reporting import Heatmap, head_panels
from attnlearn.reporting._glance import glances
from attnlearn.reporting._heatmap import places
from tests.reporting.conftest import made_up


def test_shares_of_the_output_add_up_and_ablation_is_what_a_head_changes(seed: int) -> None:
    layer = AttentionLayer.random(3, 5, bias=True, seed=seed)
    x = np.random.default_rng(seed).standard_normal((40, 4, 5))
    mask = np.ones((40, 4), bool)
    mask[::2, 3] = False
    for given in (None, mask):
        found = output_shares(layer, np.asarray(layer.patterns(x, given)), x, given)
        assert sum(entry["share"] for entry in found) == pytest.approx(1, abs=2e-3)
        real = np.ones((40, 4), bool) if given is None else given
        without = layer.replace(w=layer.w * np.array([0, 1, 1])[:, None, None])
        whole, rest = layer(x, given)[real], without(x, given)[real]
        part = whole - rest
        expected = np.linalg.norm(part - part.mean(0)) / np.linalg.norm(whole - whole.mean(0))
        assert found[0]["ablation"] == pytest.approx(expected, rel=1e-3)


def test_the_copying_score_is_that_of_all_eigenvalues(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for rank in (1, 3, 6):
        w = rng.standard_normal((6, rank)) @ rng.standard_normal((rank, 6))
        values = np.linalg.eigvals(w)
        assert copying_score(w, rank) == pytest.approx(values.real.sum() / np.abs(values).sum(), abs=1e-8)
    copies = AttentionLayer(np.zeros((2, 4, 4)), np.stack([np.eye(4), -2 * np.eye(4)]))
    assert [head.copying for head in summarize(copies)] == [1.0, -1.0]


def test_every_head_is_in_the_overview_and_opens_its_panel(tmp_path: Path) -> None:
    solution = made_up(layer=AttentionLayer.random(50, 6, seed=1), claims=())
    found = glances(solution.to_json())
    assert [glance.name for glance in found] == [f"Head {i}" for i in range(50)]
    text = report(solution, tmp_path / "report.html").read_text("utf-8")
    assert text.count('<button type="button" class="glance"') == 48  # as many as have a panel
    assert text.count('class="glance"') == 50


def test_maps_have_ticks_of_the_matrix_before_it_was_averaged_and_a_colour_bar() -> None:
    svg = Heatmap("QK", matrix=np.linspace(-0.5, 0.25, 96 * 96).reshape(96, 96), extent=(128, 128)).svg()
    assert svg.count(">100<") == 2
    assert ">0.5<" in svg
    assert ">-0.5<" in svg
    assert svg.count('class="key"') == 1
    assert places(10) == list(range(10))
    assert places(96)[-1] == 80


def test_shares_that_are_nearly_equal_are_coloured_from_the_smallest() -> None:
    assert Heatmap("flat", matrix=np.array([[0.24, 0.26]]), signed=False).range == (0.24, 0.26)
    assert Heatmap("steep", matrix=np.array([[0.02, 0.26]]), signed=False).range == (0.0, 0.26)
    assert Heatmap("equal", matrix=np.full((2, 2), 0.5), signed=False).range == (0.0, 0.5)


def test_words_stand_beside_the_patterns_of_the_inputs_they_belong_to() -> None:
    layer = AttentionLayer.random(2, 4, seed=1)
    x = np.random.default_rng(0).standard_normal((5, 3, 4))
    words = (("The", "cat", "sat"), ("A", "<b>dog</b>", "uncommonly-long-word"))
    solution = made_up(layer=layer, claims=(), sample_inputs=SampleInputs(x, None, words))
    assert attention_json(layer, solution.stats)["words"] == [list(entry) for entry in words]
    _, first, second, third = head_panels(solution.to_json())[0].attention
    assert first.words == words[0]
    assert third.words == ()
    svg = second.svg()
    assert "&lt;b&gt;dog&lt;" in svg.replace("&lt;b&gt;dog&lt;/…", "&lt;b&gt;dog&lt;")
    assert "uncommonl…" in svg
    assert second.table()[0] == ["", *words[1]]


def test_layers_with_positions_have_their_attention_by_offset(tmp_path: Path) -> None:
    from attnlearn import Outcome, Solution
    from attnlearn.reporting._heads import overview
    from attnlearn.scores import Rotary, Rotation

    rng = np.random.default_rng(0)
    form = Rotary(*rng.standard_normal((2, 8, 5, 4)), Rotation((1.0, 0.1)))
    layer = AttentionLayer.from_scores(form, rng.standard_normal((8, 4, 4)), causal=True)
    document = Solution(layer, Outcome.RECOVERED).to_json()
    curves = [display for display in overview(document) if display.title == "Attention by offset"]
    assert len(curves) == 1
    assert len(curves[0].series) == 6
    own = head_panels(document)[7].attention[1]
    entry = document["layer"]["summary"]["attention"]["heads"][7]["by_offset"]
    assert own.title == "Attention by offset"
    assert list(own.series[0].y) == entry["share"]
    report(Solution(layer, Outcome.RECOVERED), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("Attention by offset") >= 9
    plain = Solution(AttentionLayer.random(2, 4), Outcome.RECOVERED).to_json()
    assert not any(display.title == "Attention by offset" for display in overview(plain))
