"""Figures of the wide search and of the hull."""

from __future__ import annotations

import numpy as np

import attnlearn
from attnlearn import AttentionLayer
from attnlearn.reporting import phase_figures
from attnlearn.reporting._search_figures import SHOWN_STARTS


def start(**known):
    entry = {"heads": 8, "rank": None, "residual": 1e-4, "select_error": 1e-4, "steps": 2}
    return entry | {"residuals": [0.1, 1e-4], "drop_costs": {"7": 1e-4, "2": 0.4}} | known


def test_a_run_on_words_of_a_list_has_no_empty_card() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((25, 6))[rng.integers(0, 25, (1200, 6))]
    truth = AttentionLayer.random(2, 6, bias=True, seed=2)
    document = attnlearn.recover(x, truth(x), progress=False, raise_on_failure=False).to_json()
    ran = [phase for phase in document["phases"] if "skipped" not in phase["evidence"]]
    titles = {phase["name"]: [d.title for d in phase_figures(document, phase)] for phase in ran}
    assert titles["wide search"][-2:] == ["Descent of the starts", "What dropping heads costs"]
    assert titles["fit"] == ["Refinement"]
    assert titles["certify"] == ["Errors on certify examples"]


def test_one_start_is_shown_as_bars_and_many_say_which_are_left_out() -> None:
    phase = {"name": "wide search", "evidence": {"starts": [start(left=3, left_error=1e-9)]}}
    first, _, costs = phase_figures({"stats": {}}, phase)
    assert first.labels == ("8 heads", "3 kept")
    assert costs.note.endswith("Kept were 3.")
    assert costs.series[0].x == [7, 2]
    phase["evidence"]["starts"] *= 9
    _, descent, _ = phase_figures({"stats": {}}, phase)
    assert len(descent.series) == SHOWN_STARTS
    assert "The first 6 of 9 starts are drawn." in descent.note


def test_the_hull_marks_as_many_singular_values_as_heads() -> None:
    evidence = {"num_heads": 2, "singular_values": [1e-3, 2e-3, 0.5, 0.9]}
    (figure,) = phase_figures({"stats": {}}, {"name": "span", "evidence": evidence})
    assert figure.chosen == 2
    assert figure.svg().count('class="bar"') == 2


def test_heads_whose_spectra_are_not_drawn_are_mentioned() -> None:
    evidence = {"singular_values": [1.0], "unmix": {"head_spectra": [[1.0, 0.1]] * 8, "rank": 1}}
    figures = phase_figures({"stats": {}}, {"name": "moment", "evidence": evidence})
    assert "The first 6 of 8 heads are drawn." in figures[-1].note
