"""`attnlearn reproduce` as a user meets it: progress, Ctrl-C, going on, figures with their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnlearn import AttentionLayer
from attnlearn.cli.__main__ import main
from attnlearn.reproduce import _hardness


class MadeUp:
    """Learners that answer at once, and are interrupted at their sixth case."""

    def __init__(self) -> None:
        self.learned: list[str] = []
        self.patient = False

    def learn(self, layer: AttentionLayer, learner: str, **_: Any) -> dict[str, Any]:
        if len(self.learned) == 5 and not self.patient:
            raise KeyboardInterrupt
        self.learned.append(learner)
        error = 0.7 if learner == "Adam" else 1e-12
        return {"error": error, "outcome": "made up", "certified": False, "examples": 9, "seconds": 0.5}


def test_the_command_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra `report`")
    learners = MadeUp()
    monkeypatch.setattr(_hardness, "learn", learners.learn)
    monkeypatch.setattr(_hardness, "CLAIMS", {name: _hardness.CLAIMS[name] for name in ("wall", "dial")})
    kept, figure, numbers, page = (tmp_path / name for name in ("kept", "wall.svg", "wall.json", "wall.html"))
    words = ["reproduce", "hardness", "--short", "--checkpoint", str(kept), "--plot", str(figure)]
    words += ["--json", str(numbers), "--report", str(page)]
    assert main(words) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not figure.exists()
    learners.patient = True
    assert main(words) == 0
    said = capsys.readouterr().err
    assert "wall 5/32 (kept): " in said
    assert "wall 6/32: " in said
    assert len(learners.learned) == 32 + 4  # every case once
    points = json.loads(numbers.read_text())["figures"]["wall"]["points"]
    assert [point["runs"] for point in points] == 16 * [2]
    assert {(point["learner"] == "Adam", point["rate"]) for point in points} == {(True, 0.0), (False, 1.0)}
    assert figure.stat().st_size > 1000
    assert "Layers of the family parity" in page.read_text()


def test_a_figure_that_cannot_be_written_is_refused_before_hours_of_work(tmp_path: Path, capsys) -> None:
    assert main(["reproduce", "hardness", "--plot", str(tmp_path / "nowhere" / "wall.png")]) == 2
    said = capsys.readouterr().err
    assert "plot: cannot write " in said
    assert "Path(" not in said
    assert main(["reproduce", "learning", "--plot", str(tmp_path / "wall.jpeg")]) == 2
    assert "plot: must end in .png" in capsys.readouterr().err
