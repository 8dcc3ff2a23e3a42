"""Every claim that `reproduce` measures has a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from attnlearn import report, reproduce
from attnlearn.reporting._reproduction import _DISPLAYS, CLAIMS, claim_displays, reproduce_page

PARTS = {
    "protocol": {
        "trials": 2,
        "examples": 100,
        "curve_steps": [1, 10],
        "rows": [
            {
                "heads": h,
                "constant": {"curves": [[0.7, 0.1], [0.6, 0.2]]},
                "sqrt": {"curves": [[0.7, 0.1]] * 2},
            }
            for h in (1, 4)
        ],
    },
    "planted": {
        "trials": 2,
        "rows": [{"heads": h, "train_loss": [0.1, 0.2], "test_loss": [0.3, 0.2]} for h in (1, 4)],
    },
    "bound": {
        "curves": {n: [1, 2] for n in ("step", "loss", "mean_loss", "bound")},
        "ratio": 2.0,
        "violations": 0,
    },
    "examples": {"sizes": [10, 20], "gaps": [[0.2], [0.1]], "slope": -1.0, "draws": 1, "steps": 5},
    "attention": {"rows": [{"steps": 1, "share": [0.1], "largest_head": [0.2]}] * 2, "uniform_share": 0.1},
    "unattained": {
        "starts": {"zero": [0.3, 0.4]},
        "looking": {"0": [0.4, 0.4], "2": [0.9, 1.0]},
        "limit": 2.2,
        "uniform": 0.4,
        "draws": 2,
    },
    "heads": {
        "target": 0.1,
        "steps": 100,
        "rows": [
            {
                "heads": h,
                "common": {"steps_to_target": [5], "gap": [0.1]},
                "sqrt": {"steps_to_target": [-1], "gap": [-0.1]},
                "bound_over_measured": 2.0,
            }
            for h in (1, 2)
        ],
    },
    "starts": {"draws": 3, "margin_bound": 0.1, "starts": {"zero": {"gamma": [0, 0, 0.2, 0, 0]}}},
    "wall": {
        "points": [
            {
                "family": "parity",
                "learner": "spectral",
                "heads": 2,
                "rate": 0.5,
                "interval": [0.1, 0.9],
                "seconds": 2.0,
            }
        ]
    },
    "statistical": {"points": [{"tolerance": 0.1, "members": 8, "queries": 9, "bound": 4}]},
    "elimination": {"by_rate": {"0.0": {"rate": 1.0}, "0.1": {"rate": 0.0}}, "chosen_queries": {"rate": 1.0}},
    "dial": {"hardness": [0.0, 1.0], "curves": {"spectral": [0.0, 0.9]}},
    "learning": {
        "points": [
            {
                "dim": 6,
                "tokens": 3,
                "heads": 1,
                "widths_across": [0.5, 0.1],
                "seconds": 3.0,
                "spectral": {"seconds": 1.0},
            }
        ]
    },
}


@pytest.mark.parametrize("name", PARTS)
def test_every_claim_has_a_picture(name: str, tmp_path) -> None:
    document = {
        "schema": "attnlearn/reproduce",
        "version": 1,
        "claim": "x",
        "figures": {name: {"text": "t", **PARTS[name]}},
    }
    (section,) = reproduce_page(document).sections
    assert section.displays
    assert all(ET.fromstring(display.svg()) is not None for display in section.displays)
    assert report(document, tmp_path / "report.html").is_file()
    pytest.importorskip("matplotlib", reason="figures need the extra `report`")
    reproduce.plot({name: PARTS[name]}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_page_names_claims_and_keeps_the_columns_of_a_table(tmp_path) -> None:
    table = "  d  error\n  8  0.1"
    figures = {"learning": {"text": table, **PARTS["learning"]}}
    document = {"schema": "attnlearn/reproduce", "version": 1, "claim": "learning", "figures": figures}
    text = report(document, tmp_path / "report.html").read_text("utf-8")
    assert f'<pre class="columns">{table}</pre>' in text
    assert "One claim was measured" in text
    assert CLAIMS["learning"] in text


def test_intervals_are_drawn_where_they_are_known() -> None:
    (shares, cost) = claim_displays("wall", PARTS["wall"])
    assert shares.series[0].whiskers(log=False) == [(2, 0.1, 0.9)]
    assert shares.svg().count('<line class="curve c0"') == 1
    assert not cost.series[0].whiskers(log=True)


def test_no_claim_is_forgotten() -> None:
    from attnlearn.reproduce import _hardness, _optimization

    measured = {*_optimization.CLAIMS, *_hardness.CLAIMS, "learning"}
    assert measured <= set(_DISPLAYS) == set(PARTS) == set(CLAIMS)
    assert reproduce.optimization.__doc__
