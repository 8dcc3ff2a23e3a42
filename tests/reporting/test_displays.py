"""Every picture gives its numbers, and draws nothing that is not there."""

from __future__ import annotations

import base64
import io
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from attnlearn._numbers import cell, pretty
from attnlearn.reporting import Bars, Heatmap, Lines, Series, head_panels, phase_figures
from attnlearn.reporting._axes import Scale
from attnlearn.reporting._heads import overview
from attnlearn.reporting._png import data_uri

DISPLAYS = [
    Lines(
        "curve", series=(Series("a", [1, 2, 4], [1.0, None, 1e-9]), Series("b", [1], [math.inf])), log_y=True
    ),
    Lines("levels", series=(Series("a", [0, 1], [0.0, 5.0]),), levels=(("floor", 2.0),)),
    Lines("empty", series=(Series("a", [], []),), log_x=True, log_y=True),
    Bars("bars", labels=("1", "2"), values=(1.0, None), floor=0.5, chosen=1),
    Bars("one", labels=("1",), values=(1e-12,), log=True),
    Bars("none", labels=(), values=()),
    Heatmap("map", matrix=np.array([[1.0, -2.0, 0.0]])),
    Heatmap("zero", matrix=np.zeros((3, 2)), signed=False),
]


@pytest.mark.parametrize("display", DISPLAYS, ids=lambda display: display.title)
def test_every_display_gives_all_views(display) -> None:
    pytest.importorskip("pandas", reason="the extra [report] is not installed")
    tree = ET.fromstring(display.svg())
    assert tree.get("aria-label") == display.title
    columns, rows = display.table()
    assert all(len(row) == len(columns) for row in rows)
    assert list(display.frame().columns) == columns
    assert len(display.frame()) == len(rows)
    assert "nan" not in display.svg().lower().replace("data:image/png;base64", "").split("href")[0]


@pytest.mark.parametrize(
    "display", [DISPLAYS[0], DISPLAYS[3], DISPLAYS[6]], ids=lambda display: display.title
)
def test_every_display_draws_itself_in_matplotlib(display) -> None:
    pytest.importorskip("matplotlib", reason="the extra [report] is not installed")
    assert display.plot().get_title() == display.title


def test_points_lie_where_the_scale_says() -> None:
    display = Lines("c", series=(Series("a", [1, 2], [1.0, 100.0]),), log_y=True)
    circles = [e for e in ET.fromstring(display.svg()).iter() if e.tag.endswith("circle")]
    heights = [float(circle.get("cy", "nan")) for circle in circles]
    assert heights[0] > heights[1]  # larger values are higher on the page
    assert [circle.get("data-tip") for circle in circles] == ["a: 1 at 1", "a: 100 at 2"]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("low", "high"), [(1e-16, 1.0), (4.8e-13, 1.1e-12), (0.2, 0.7), (3.0, 3.0), (1.0, 1e6)]
)
def test_scales_keep_values_and_ticks_inside(low: float, high: float, log: bool) -> None:
    scale = Scale.fit([low, high], 0.0, 100.0, log=log)
    assert 0 <= scale(low) <= scale(high) <= 100
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    assert all(-1e-6 <= scale(tick) <= 100 + 1e-6 for tick in ticks)
    assert len({scale.label(tick) for tick in ticks}) == len(ticks)
    assert all(len(scale.label(tick)) <= 9 for tick in ticks)


def test_maps_are_pngs_of_the_matrix() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, which comes with matplotlib, is not installed")
    matrix = np.array([[1.0, -1.0, 0.0], [0.5, 0.0, -0.25]])
    raw = base64.b64decode(data_uri(matrix).split(",")[1])
    pixels = np.asarray(image.open(io.BytesIO(raw)).convert("RGBA")).astype(int)
    assert pixels.shape == (2, 3, 4)
    assert (pixels[..., 3] == 0).tolist() == (matrix == 0).tolist()  # zero is transparent
    warm = pixels[..., 0] > pixels[..., 2]
    assert warm[matrix > 0].all()
    assert not warm[matrix < 0].any()
    assert pixels[0, 0, 3] > pixels[1, 0, 3]


def test_the_figures_of_real_runs(results) -> None:
    drawn = {
        (name, display.title)
        for name, document in results.items()
        for phase in document.get("phases", ())
        for display in phase_figures(document, phase)
        if ET.fromstring(display.svg()) is not None
    }
    wanted = {
        ("recovered", "Heads above the noise"),
        ("recovered", "Choosing 2 heads"),
        ("recovered", "Refinement"),
        ("extracted", "Choosing the size of the tokens"),
        ("extracted", "Residual by phase"),
        ("extracted", "Queries by phase"),
        ("trained", "Training loss against its bound"),
        ("trained", "Leaving one example out"),
    }
    assert wanted <= drawn


def test_the_heads_of_real_runs(results) -> None:
    panels = head_panels(results["recovered"])
    assert [panel.name for panel in panels] == ["Head 0", "Head 1"]
    assert len(panels[0].attention) == 4
    assert results["recovered"]["layer"]["summary"]["attention"]["source"] == "inputs it was learned from"
    rows = np.array(results["recovered"]["layer"]["summary"]["attention"]["heads"][0]["samples"][0])
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-3)
    titles = [display.title for display in overview(results["recovered"])]
    assert titles == ["Similarity of heads", "Error of every head, at most", "How widely heads look"]
    assert len(head_panels(results["trained"])) == 4


def test_figures_survive_evidence_of_another_shape() -> None:
    for name in (
        "moment",
        "suggested count",
        "wide search",
        "fit",
        "count",
        "unmix",
        "refine",
        "carve",
        "span",
        "search",
        "probe",
        "polish",
        "descend",
    ):
        for evidence in ({}, {"steps": 3}, {"singular_values": None}, {"rounds": [{}]}, {"starts": [{}]}):
            document = {"stats": {}, "phases": [{"name": name, "evidence": evidence}]}
            assert isinstance(phase_figures(document, {"name": name, "evidence": evidence}), list)


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300, -2.5, 12345678, 10**15, None, True, float("nan")])
def test_numbers_are_short(value) -> None:
    assert 0 < len(pretty(value)) <= 16
    assert 0 < len(cell(value)) <= 16
    assert not re.search(r"nan|inf", pretty(value))
