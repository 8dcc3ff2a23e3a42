"""The plan: said before the work, refused above the memory that is granted, and near the truth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, data, recover
from attnlearn.cli.__main__ import main
from attnlearn.data import RecordedWriter, as_examples
from attnlearn.engine import Progress
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._plan import Size, make_plan, parse_memory, work


@pytest.mark.parametrize(
    ("memory", "bytes_"), [("1.5GB", 1_500_000_000), ("900 MiB", 900 * 2**20), (2**30, 2**30), (None, None)]
)
def test_memory_is_read(memory, bytes_) -> None:
    assert parse_memory(memory) == bytes_


@pytest.mark.parametrize("memory", ["much", "-1", 0, "5 parsecs", True, ""])
def test_memory_that_is_none(memory) -> None:
    with pytest.raises(ValueError, match="memory: must be a positive number of bytes"):
        parse_memory(memory)


def test_too_little_memory_is_refused_before_the_work(tmp_path, capsys) -> None:
    x = data.Gaussian(4, 6).sample(200)
    y = AttentionLayer.random(2, 6)(x)
    with pytest.raises(
        ValueError, match=r"memory: must be at least 0\.\d+ GB for this run \(give fewer"
    ) as caught:
        recover(x, y, memory="100MB")
    assert "\n" not in str(caught.value)
    with RecordedWriter(tmp_path / "data") as writer:
        writer.write(x, y)
    assert main(["recover", str(tmp_path / "data"), "--memory", "100MB", "-q"]) == 2
    assert "memory: must be at least" in capsys.readouterr().err


class Long:
    """Examples of which there are so many that nobody makes them."""

    tokens, dim, out_dim, dtype = 8, 64, 64, np.dtype(np.float64)

    def __init__(self, num: int) -> None:
        self.num = num


def test_memory_does_not_grow_with_examples_on_disk(monkeypatch) -> None:
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e9)
    plans = [make_plan(Long(num), num * 3 // 4, Size(8), False, None) for num in (10**6, 10**7, 10**8)]
    assert plans[0].memory_bytes == plans[1].memory_bytes == plans[2].memory_bytes
    assert plans[2].seconds >= plans[1].seconds
    assert plans[1].heads_supported > 1000


def test_more_heads_cost_more_and_a_low_rank_less(monkeypatch) -> None:
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e9)
    one, many, low = (work(Long(10**6), 750_000, size) for size in (Size(1), Size(8), Size(8, 2)))
    assert 0 < one.fit < many.fit
    assert one.propose < many.propose
    assert work(Long(10**6), 750_000, Size(8, proposed=True)) == many._replace(propose=0.0)
    assert low.fit < many.fit


def test_outputs_that_are_known_to_carry_errors_are_planned_for_on_every_example(monkeypatch) -> None:
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e9)
    plain, noisy = (
        make_plan(Long(10**4), 7_500, Size(8, errors=errors), False, None) for errors in (False, True)
    )
    assert noisy.seconds == noisy.seconds_with_errors == plain.seconds_with_errors > 10 * plain.seconds
    more = make_plan(Long(10**5), 75_000, Size(8), False, None)
    assert more.seconds_with_errors > 5 * plain.seconds_with_errors
    assert more.seconds < 2 * plain.seconds


def test_the_wide_search_takes_the_place_of_the_moment(monkeypatch) -> None:
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e9)
    moment, wide = (work(Long(10**6), 750_000, Size(8, wide=wide)) for wide in (False, True))
    assert (wide.fit, wide.certify) == (moment.fit, moment.certify)
    assert wide.propose == calibration.SHORT_STEPS * wide.fit
    assert wide.propose != moment.propose


class Heard(Progress):
    """Keeps every line of progress."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict] = []

    def update(self, **figures) -> None:
        self.told.append(figures)


def test_the_plan_that_is_told_is_that_of_the_signals(monkeypatch, seed) -> None:
    monkeypatch.setattr("attnlearn.recovery._plan._speed", lambda: 1e9)
    x = data.Gaussian(4, 6).sample(600)
    heard = Heard()
    solution = recover(x, AttentionLayer.random(2, 6, seed=seed)(x), progress=heard, raise_on_failure=False)
    plans = [told for told in heard.told if "memory" in told]
    assert plans[-1] == solution.stats["plan"].figures()
    whole = as_examples(x, x)
    fit = solution.stats["split"]["fit"]
    assert (
        plans[0]["memory"] == make_plan(whole, fit, Size(calibration.SPARE), False, None).figures()["memory"]
    )


def test_the_plan_is_part_of_the_result() -> None:
    x = data.Gaussian(4, 6).sample(600)
    solution = recover(x, AttentionLayer.random(2, 6)(x), memory="4GB", raise_on_failure=False)
    plan = json.loads(json.dumps(solution.to_json()))["stats"]["plan"]
    assert plan["examples"] == 600
    assert plan["memory_limit"] == 4_000_000_000
    assert as_examples(x, x).num == plan["examples"]


SCRIPT = """
import json, resource, sys
from attnlearn import recover
solution = recover(sys.argv[1], raise_on_failure=False)
print(json.dumps([solution.certified, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


@pytest.mark.slow
def test_peak_memory_does_not_depend_on_the_number_of_examples(tmp_path: Path) -> None:
    layer = AttentionLayer.random(2, 16, rank=4, seed=3)
    peaks = []
    for num in (100_000, 400_000):  # 200 and 800 MB
        with RecordedWriter(tmp_path / f"data-{num}") as writer:
            for x in data.Gaussian(8, 16).stream(num, 10_000):
                writer.write(x, layer(x))
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / f"data-{num}")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        certified, peak = json.loads(done.stdout.splitlines()[-1])
        assert certified
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 0.5 * 600e6
