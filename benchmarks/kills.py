"""Kill the command line at random moments, resume it, and compare with a run that nobody killed.

Each round starts a command with a checkpoint, ends it by SIGKILL or SIGTERM after a random time, resumes it, and so on;
then it is left to finish. The times of a round add up to less than a run, so that few runs end before they are killed. Wanted: the tensors (and the bytes of the file) of the run that nobody killed, no output that is
half-written or temporary, and no process that outlives the command. Processes are recognised by a variable of
their environment, so that those of an oracle or of a worker are found wherever they went. Linux only (/proc).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

VERBS = ("recover", "extract", "train")
MARK = "ATTNLEARN_KILLS"
GONE_SECONDS = 10.0
"""For what a command started to notice that it is gone: workers look twice a second, oracles at once."""

SLOW_ORACLE = """
import sys, time
from attnlearn.oracle import _serve, serve_process

answer = _serve.Hidden.reply

def slowly(hidden, header, x):
    time.sleep(0.35)
    return answer(hidden, header, x)

_serve.Hidden.reply = slowly
sys.exit(serve_process.main())
"""
"""An oracle as slow as a distant one, so that the kills fall into every phase that asks and not only into the certificate."""


def cases(tier: str) -> list[dict[str, Any]]:
    """A hundred kills and a quarter of that by SIGTERM in the full tier; a handful in the middle one."""
    if tier == "quick":
        return []
    rounds = {"SIGKILL": 12, "SIGTERM": 3} if tier == "full" else {"SIGKILL": 1, "SIGTERM": 1}
    return [
        {"verb": verb, "signal": name, "kills": 3, "round": number}
        for name, count in rounds.items()
        for number in range(count)
        for verb in VERBS
    ]


def run(case: dict[str, Any]) -> dict[str, Any]:
    """One round: its kills, and what they left."""
    straight = uninterrupted(case["verb"])
    # The seed of the moments is the case, so that a failure can be looked at again.
    rng = np.random.default_rng(
        [case["round"], VERBS.index(case["verb"]), int(getattr(signal, case["signal"]))]
    )
    found: dict[str, Any] = {"straight_seconds": straight["seconds"], "moments": [], "finished_early": 0}
    left, half = 0, 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        moments = np.diff(np.sort(rng.uniform(0.1, straight["seconds"], case["kills"])), prepend=0.0).tolist()
        while moments:
            moment = moments.pop(0)
            code, orphans = attempt(case["verb"], folder, moment, getattr(signal, case["signal"]))
            left += orphans
            half += len(remains(folder)) + (output(folder).exists() and not same(folder, straight))
            if code < 0:
                found["moments"].append(round(moment, 2))
            else:  # it was faster than the straight run, beside other work: begin anew, and kill it earlier
                found["finished_early"] += 1
                shutil.rmtree(folder)
                folder.mkdir()
                moments.insert(0, moment / 2)
        code, orphans = attempt(case["verb"], folder)
        return found | {
            "exit_code": code,
            "same_tensors": output(folder).exists() and same(folder, straight),
            "same_file": output(folder).exists() and output(folder).read_bytes() == straight["bytes"],
            "half_written": half + len(remains(folder)),
            "processes_left": left + orphans,
        }


def same(folder: Path, straight: dict[str, Any]) -> bool:
    """Whether the output has the tensors of the run that nobody killed."""
    return tensors(folder) == straight["tensors"]


@cache
def uninterrupted(verb: str) -> dict[str, Any]:
    """What the command gives when nobody kills it, and how long it takes."""
    with tempfile.TemporaryDirectory() as place:
        folder, started = Path(place), time.monotonic()
        code, orphans = attempt(verb, folder)
        if code not in (0, 3) or orphans:
            raise RuntimeError(f"{verb} ended with {code} and left {orphans} processes")
        seconds = time.monotonic() - started
        return {"tensors": tensors(folder), "bytes": output(folder).read_bytes(), "seconds": seconds}


def attempt(
    verb: str, folder: Path, moment: float | None = None, end: int = signal.SIGKILL
) -> tuple[int, int]:
    """Run or resume the command, kill it after `moment` seconds; its exit code, and the processes it left."""
    mark = uuid.uuid4().hex
    words = [
        sys.executable,
        "-m",
        "attnlearn.cli",
        verb,
        *problem(verb),
        "--quiet",
        "-o",
        str(output(folder)),
    ]
    words += ["--checkpoint", str(folder / "checkpoint"), "--json", str(folder / "result.json")]
    words += ["--resume"] * (folder / "checkpoint").exists()
    words += ["--cache", str(folder / "cache")] * (verb == "extract")
    process = subprocess.Popen(words, env=os.environ | {MARK: mark}, stderr=subprocess.DEVNULL)
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        process.send_signal(end)
        process.wait()
    ends = time.monotonic() + GONE_SECONDS
    while marked(mark) and time.monotonic() < ends:
        time.sleep(0.1)
    return process.returncode, len(marked(mark))


@cache
def problem(verb: str) -> tuple[str, ...]:
    """Arguments of a problem of at least 20 seconds on two cores; its files stay until this process ends."""
    from attnlearn import AttentionLayer

    folder = Path(_kept().name)
    rng = np.random.default_rng(5)
    if verb == "recover":
        x = rng.standard_normal((40_000, 6, 64))
        np.savez(folder / "examples.npz", x=x, y=AttentionLayer.random(16, 64, seed=5)(x))
        return str(folder / "examples.npz"), "--engine", "2"
    if verb == "extract":
        AttentionLayer.random(6, 24, rank=6, seed=5).save(folder / "hidden.safetensors")
        (folder / "slow.py").write_text(SLOW_ORACLE, encoding="utf-8")
        served = f"{sys.executable} {folder / 'slow.py'} {folder / 'hidden.safetensors'}"
        return "--oracle", f"process:{served}", "--dim", "24"
    x = rng.standard_normal((1500, 8, 16))
    y = np.sign(x[:, :, 0].sum(1) + 0.1 * rng.standard_normal(1500))
    np.savez(folder / "labelled.npz", x=x, y=np.where(y == 0, 1.0, y))
    return str(folder / "labelled.npz"), "--heads", "16", "--max-steps", "200"


@cache
def _kept() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def output(folder: Path) -> Path:
    """Where the command writes what it learned."""
    return folder / "learned.safetensors"


def tensors(folder: Path) -> dict[str, bytes]:
    """The arrays of the output by name; unreadable ones are an error of the run."""
    from safetensors.numpy import load_file

    return {name: array.tobytes() for name, array in load_file(output(folder)).items()}


def remains(folder: Path) -> list[str]:
    """Temporary files beside the outputs: a name that begins with a dot, or ends in .tmp."""
    return [path.name for path in folder.glob("*") if path.name.startswith(".") or path.suffix == ".tmp"]


def marked(mark: str) -> list[int]:
    """Processes that carry the mark in their environment, zombies aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def summary(lines: list[dict[str, Any]]) -> str:
    """Kills, and how many rounds ended as if there had been none."""
    results = [line["result"] for line in lines]
    kills = sum(len(result["moments"]) for result in results)
    same = sum(result["same_tensors"] for result in results)
    files = sum(result["same_file"] for result in results)
    half, left = (sum(result[name] for result in results) for name in ("half_written", "processes_left"))
    text = f"{kills} kills in {len(results)} rounds: {same} with the same tensors, {files} with the same file"
    return f"{text}; {half} half-written or temporary files, {left} processes left"
