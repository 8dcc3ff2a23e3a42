"""Functions that tests run in other processes, importable there by path."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnlearn.engine import Checkpoint, Engine, Tools, run_phases


def heavy_block(seed: int) -> dict[str, np.ndarray]:
    """XLA reductions, a product and LAPACK: what the number of threads can change."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200_000,)).astype(np.float32)
    a = rng.standard_normal((60, 40)).astype(np.float32)
    total = jax.jit(lambda x: jnp.sum(jnp.sin(x) ** 2))(x)
    return {
        "total": np.asarray(total),
        "gram": np.asarray(jax.jit(lambda a: a.T @ a)(a)),
        "u": np.linalg.svd(a)[0],
    }


def add(total: dict[str, np.ndarray], value: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: total[name] + value[name] for name in total}


def threads_seen(_: int) -> tuple[int, list[int], str | None, int]:
    """The process, BLAS threads and the announcement for XLA."""
    from threadpoolctl import threadpool_info

    np.linalg.svd(np.eye(2))
    blas = [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]
    return os.getpid(), blas, os.environ.get("PJRT_NPROC"), Engine.parse(2).map(abs, [-1])[0]


def slow_square(value: int) -> int:
    time.sleep(0.3)
    return value * value


def die_once(folder: str, item: np.ndarray) -> int:
    """Kill the worker that runs it, the first time it sees a 3."""
    value = int(item[0])
    marker = Path(folder) / f"died-{value}"
    if value == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)
    time.sleep(0.05)
    return value * value


def die(_: int) -> None:
    """Kill the worker that runs it, every time."""
    os.kill(os.getpid(), 9)


def announce(value: int) -> int:
    """Say which process computes, on the standard output that it shares with its parent."""
    os.write(
        1, f"{os.getpid()}\n".encode()
    )  # in one piece: with PYTHONUNBUFFERED `print` writes the end of a line by itself
    return slow_square(value)


def alive(process: int) -> bool:
    """Whether a process runs, by its entry in /proc; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class State:
    x: np.ndarray
    step: int = 0
    note: str | None = None


def descend(problem: dict, state: State, tools: Tools) -> tuple[State, dict]:
    """Many small steps with an inner checkpoint after each."""
    inner = tools.resume_inner("steps") or {"x": state.x, "step": 0}
    x, start = inner["x"], inner["step"]
    for step in range(start, problem["steps"]):
        noise = tools.rng(f"{tools.phase} {step}").standard_normal(x.shape)
        x = np.tanh(problem["matrix"] @ x + 0.1 * noise)
        tools.checkpoint_inner("steps", {"x": x, "step": step + 1})
        time.sleep(problem["pause"])
    return State(x, state.step + problem["steps"], tools.phase), {"norm": float(np.linalg.norm(x))}


def main(folder: str, steps: int, pause: float) -> None:
    matrix = np.random.default_rng(7).standard_normal((20, 20))
    problem = {"matrix": matrix, "steps": steps, "pause": pause}
    phases = [(name, descend) for name in ("one", "two", "three")]
    with Checkpoint(folder, {"steps": steps}, resume=True) as checkpoint:
        print("ready", flush=True)
        run = run_phases(phases, problem, State(np.ones(20)), Tools(seed=5), checkpoint)
    if run.interrupted:
        sys.exit(130)
    evidence = [(record.name, record.evidence["norm"].hex()) for record in run.records]
    print(run.state.x.tobytes().hex(), run.state.step, run.state.note, evidence, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))


def slowly(value):
    """The value, after a moment in which its successors wait."""
    time.sleep(0.02)
    return value


def deaf(number):
    return number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
