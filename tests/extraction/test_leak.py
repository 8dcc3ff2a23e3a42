"""`leak` with a cache: nothing is asked twice, the figures stay the attacker's, and what is finished is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, OracleError
from attnlearn.cli.__main__ import main
from attnlearn.extraction import leak
from attnlearn.extraction._leak import Defended
from attnlearn.oracle import Oracle

LAYER = AttentionLayer.random(num_heads=2, dim=4, bias=True, seed=1)
SETTINGS = {"decimals": (None, 3), "progress": False}


class Counted:
    """A layer that counts its sequences, and dies after `lives` calls."""

    def __init__(self, lives: float = np.inf, noise: float = 0.0) -> None:
        self.lives, self.calls, self.sequences = lives, 0, 0
        self.noise, self.rng = noise, np.random.default_rng(3)

    def __call__(self, x):
        self.calls += 1
        if self.calls > self.lives:
            raise RuntimeError("the oracle is no more")
        self.sequences += len(x)
        return LAYER(x) + self.noise * self.rng.standard_normal(x.shape)


def asked(counted: Counted, folder: Path | None = None, **options):
    return leak(Oracle.wrap(counted, name="teacher", retries=0), 4, **SETTINGS, cache=folder, **options).rows


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run with a cache that nothing interrupts: its oracle, its rows, its folder."""
    counted, folder = Counted(), tmp_path_factory.mktemp("cache")
    return counted, asked(counted, folder), folder


def test_a_second_run_asks_the_fixed_queries_only(straight) -> None:
    plain, second = Counted(), Counted()
    _, rows, folder = straight
    assert asked(plain) == rows
    assert asked(second, folder) == rows
    assert second.sequences < plain.sequences / 2
    assert sum(row["sequences"] for row in rows if row["phase"] == "polish") < plain.sequences


@pytest.mark.parametrize("share", [0.4, 0.9])
def test_an_oracle_that_dies_costs_nothing(share, straight, tmp_path) -> None:
    counted, rows, _ = straight
    with pytest.raises(OracleError, match="the oracle is no more") as caught:
        asked(Counted(lives=round(share * counted.calls)), tmp_path)
    finished = caught.value.leak.rows
    assert finished == rows[: len(finished)]
    assert bool(finished) == (share == 0.9)
    assert asked(Counted(), tmp_path) == rows


def test_a_cache_hides_no_noise(tmp_path) -> None:
    for _ in range(2):  # the second time every first answer is kept already
        with Oracle.wrap(Counted(noise=1e-3), name="teacher", cache=tmp_path) as inner:
            assert 3e-4 < Oracle.wrap(Defended(inner, None, 0.0, 0)).noise(4).sigma < 3e-3


def test_the_command_keeps_answers_and_finished_settings(tmp_path, capsys) -> None:
    LAYER.save(tmp_path / "layer.safetensors")
    mortal = tmp_path / "mortal.py"
    mortal.write_text(
        "import os, sys\n"
        "from attnlearn.oracle import _serve, serve_process\n"
        "answer, lives = _serve.Hidden.reply, [int(sys.argv.pop())]\n"
        "def reply(hidden, header, x):\n"
        "    lives[0] -= 1\n"
        "    return answer(hidden, header, x) if lives[0] >= 0 else os._exit(3)\n"
        "_serve.Hidden.reply = reply\n"
        "sys.exit(serve_process.main())\n"
    )
    result = tmp_path / "leak.json"

    def run(lives: int) -> int:
        served = f"process:{sys.executable} {mortal} {tmp_path / 'layer.safetensors'} {lives}"
        words = ["leak", "--oracle", served, "--dim", "4", "--decimals", "3", "--retries", "0"]
        return main([*words, "--cache", str(tmp_path / "cache"), "--json", str(result)])

    assert run(60) == 4
    shown = capsys.readouterr()
    assert "exit code 3" in shown.err
    assert "polish" in shown.out
    finished = json.loads(result.read_text())["rows"]
    assert {row["decimals"] for row in finished} == {None}
    assert run(1_000_000) == 0
    assert json.loads(result.read_text())["rows"][: len(finished)] == finished
