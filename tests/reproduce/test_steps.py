"""Sculpting one step at a time: sections of a body, and the table of the paper's steps."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.recovery.sculpt._body import Body
from attnlearn.reproduce._plots import plot
from attnlearn.reproduce._steps import plane_of, polygon, shadow, step_table


def test_a_section_lies_in_the_shadow_and_in_the_body():
    rng = np.random.default_rng(0)
    normals = rng.standard_normal((12, 3))
    body = Body(normals, np.zeros(12), Body.box(np.ones(3)).half_spaces, radius=50.0)
    plane = np.eye(3)[:2]
    inner, outer = polygon(body, plane), shadow(body, plane)
    assert max(body.violation(np.append(corner, 0.0)) for corner in inner) < 1e-9
    assert inner[:, 0].max() <= outer[:, 0].max() + 1e-9
    assert inner[:, 1].max() <= outer[:, 1].max() + 1e-9


def test_the_plane_holds_both_heads_and_zero():
    heads = AttentionLayer.random(2, 3, seed=1).theta.reshape(2, -1)
    plane = plane_of(heads)
    np.testing.assert_allclose((heads @ plane.T) @ plane, heads, atol=1e-12)
    places = heads @ plane.T
    np.testing.assert_allclose(places[0, 1], places[1, 1])


def test_runs_that_ended_early_are_told_and_drawn(tmp_path):
    done = {"outcome": "answered", "seconds": {"carve": 1.0}, "sum_error": 0.3, "weights_error": 0.01}
    ended = {"outcome": "TOO_FEW_EXAMPLES", "ended_at": "carve", "seconds": {"carve": 2.0}, "sum_error": 0.3}
    point = {"dim": 8, "tokens": 3, "heads": 1, "by_step": {"ours": done, "paper": ended}}
    text = step_table([point])
    assert "TOO_FEW_EXAMPLES at carve" in text
    square = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    cut = {"round": 1, "tolerance": 0.05, "shadow": square, "section": [], "heads": [[0.0, 1.0], [1.0, 1.0]]}
    point |= {"widths_across": [0.1], "seconds": 1.0, "spectral": {"seconds": 1.0}, "sections": [cut]}
    plot({"learning": {"points": [point]}}, tmp_path / "picture.svg")
    drawn = (tmp_path / "picture.svg").read_text("utf-8")
    assert drawn.startswith("<?xml")
    assert len(drawn) > 10_000
