"""A given start in place of the search: refined, certified, and carried through command line, checkpoint and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, Outcome, data, distance, load, recover
from attnlearn.cli.__main__ import main

TRUTH = AttentionLayer.random(3, 8, rank=2, bias=True, seed=5)


def near(layer: AttentionLayer, size: float, rng: np.random.Generator) -> AttentionLayer:
    """Every Theta_i, W_i and c_i moved by `size` of its own norm."""

    def moved(part: np.ndarray) -> np.ndarray:
        axes = tuple(range(1, part.ndim))
        noise = rng.standard_normal(part.shape)
        length = np.sqrt(
            np.sum(part**2, axis=axes, keepdims=True) / np.sum(noise**2, axis=axes, keepdims=True)
        )
        return part + size * length * noise

    return AttentionLayer(moved(layer.theta), moved(layer.w), moved(layer.query_bias), layer.output_bias)


@pytest.fixture
def x(seed: int) -> np.ndarray:
    return data.Gaussian(5, 8).sample(4_000, seed=seed)


@pytest.mark.parametrize("size", [0.0, 0.2])
def test_a_near_start_is_moved_to_the_truth_and_certified(size: float, x, rng) -> None:
    found = recover(x, TRUTH(x), start=near(TRUTH, size, rng))
    ran = [phase.name for phase in found.phases if "skipped" not in phase.evidence]
    assert ran == ["signals", "start", "fit", "certify"]
    assert found.certified
    assert distance(found.layer, TRUTH).max < 1e-12


def test_a_start_of_another_layer_gets_no_false_certificate(x) -> None:
    wrong = AttentionLayer.random(2, 8, rank=2, bias=True, seed=6)
    found = recover(x[:1_000], TRUTH(x[:1_000]), start=wrong, raise_on_failure=False)
    assert not found.certified
    assert found.outcome is not Outcome.RECOVERED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "layer"}, "start: must be an AttentionLayer, got 'str'"),
        ({"start": AttentionLayer.random(3, 6)}, "start: must map 8 to 8 coordinates like the data"),
        ({"start": TRUTH, "num_heads": 4}, r"num_heads: must be that of start \(3\) or left out, got 4"),
        ({"start": TRUTH, "causal": True}, r"causal: must be that of start \(False\) or left out, got True"),
        ({"start": TRUTH, "config": 1}, "config: belongs to a search and cannot go with start, got 1"),
    ],
)
def test_a_start_that_does_not_belong_is_one_line(options, message: str, x) -> None:
    with pytest.raises(ValueError, match="^" + message):
        recover(x, TRUTH(x), **options)


@pytest.fixture
def command(tmp_path: Path, x, rng) -> list[str]:
    """`attnlearn recover DATA --start LAYER -o FOUND --checkpoint DIR`, all files in place."""
    np.savez(tmp_path / "data.npz", x=x, y=TRUTH(x))
    near(TRUTH, 0.2, rng).save(tmp_path / "start.safetensors")
    names = {"--start": "start.safetensors", "-o": "found.safetensors", "--checkpoint": "run"}
    files = [part for name, file in names.items() for part in (name, str(tmp_path / file))]
    return ["recover", str(tmp_path / "data.npz"), *files, "--resume", "--quiet"]


def test_the_command_line_from_start_to_certificate(command, tmp_path, capsys) -> None:
    assert main([*command, "--json", "-", "--engine", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["certified"]
    assert distance(load(tmp_path / "found.safetensors"), TRUTH).max < 1e-12
    near(TRUTH, 0.1, np.random.default_rng(1)).save(tmp_path / "start.safetensors")
    assert main(command) == 2  # the checkpoint belongs to another start
    assert "configuration" in capsys.readouterr().err


def killed_until_done(command: list[str], kills: int, rng: np.random.Generator) -> None:
    """Run the command again and again, killed at a random moment, then once to its end."""
    line = [sys.executable, "-m", "attnlearn.cli", *command]
    for _ in range(kills):
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.5, 8.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert subprocess.run(line, timeout=300, check=False).returncode == 0


@pytest.mark.slow
def test_fifty_kills_of_a_learner_end_in_the_same_bytes(command, tmp_path, rng) -> None:
    killed_until_done(command, 0, rng)
    whole = (tmp_path / "found.safetensors").read_bytes()
    for used in (tmp_path / "run").iterdir():
        used.unlink()
    (tmp_path / "found.safetensors").unlink()
    killed_until_done(command, 50, rng)
    assert (tmp_path / "found.safetensors").read_bytes() == whole
