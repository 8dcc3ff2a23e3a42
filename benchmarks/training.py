"""Training: time of a step against the rivals, tangent kernel, sweeps, memory, bounds and their coverage.

Times are taken alternately, ours and each rival in turn, many rounds in one process; the ratios are of medians
and of minima over the rounds. `gemm` is the time the machine's own matrix product (NumPy's, 1024 x 1024) needs for the
4 n T H d^2 + 8 n H T^2 d operations of the step as the rivals compute it; ours needs (T-1)/T of them. Every figure is
float32.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

STEP_SHAPES = ((500, 10, 50, 64), (200, 32, 64, 16), (100, 10, 50, 8))
WANTED = {
    (500, 10, 50, 64): {"torch": 5.0, "jax": 3.0},
    (200, 32, 64, 16): {"torch": 2.7, "jax": 2.5},
    (100, 10, 50, 8): {"torch": 2.7, "jax": 2.5},
}


def cases(tier: str) -> list[dict[str, Any]]:
    """Cases of a tier; quick has the small ones only."""
    rounds = {"quick": 5, "bench": 15, "full": 40}[tier]
    shapes = STEP_SHAPES[1:] if tier == "quick" else STEP_SHAPES
    found: list[dict[str, Any]] = [
        {"what": "step", "shape": list(shape), "rounds": rounds} for shape in shapes
    ]
    found.append({"what": "mixture", "seed": 0, "small": tier == "quick"})
    if tier == "quick":
        return found
    found.append({"what": "tangent", "num": 500, "heads": 16})
    found.append({"what": "kernel memory", "num": 500, "heads": 16})
    found.append({"what": "seeds", "runs": 1000, "steps": 50})
    found.append({"what": "memory", "num": 20_000, "tokens": 32, "dim": 64, "heads": 16})
    draws = 30 if tier == "bench" else 300
    found.append({"what": "coverage", "draws": draws, "seed": 0})
    if tier == "full":
        counts = (16, 64, 256, 1024, 4096)
        found += [{"what": "coverage", "draws": 20, "seed": 1000, "heads": heads} for heads in counts]
        found += [{"what": "mixture", "seed": seed, "small": False} for seed in range(1, 10)]
    return found


def run(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of one case."""
    return _RUNS[case["what"]](case)


def alternate(calls: dict[str, Callable[[], Any]], rounds: int, inner: int) -> dict[str, dict[str, float]]:
    """Seconds of one call, each function in turn, `inner` calls a turn: first call, median, minimum."""
    first, times = {}, {name: [] for name in calls}
    for name, call in calls.items():
        started = time.perf_counter()
        call()
        first[name] = time.perf_counter() - started
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - started) / inner)
    return {
        name: {"first": first[name], "median": float(np.median(t)), "min": min(t)}
        for name, t in times.items()
    }


def _problem(num: int, tokens: int, dim: int, heads: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((num, tokens, dim)) / np.sqrt(dim)).astype(np.float32)
    y = np.where(rng.random(num) < 0.5, -1, 1).astype(np.float32)
    u = (0.1 * rng.standard_normal((heads, tokens, dim))).astype(np.float32)
    return u, rng.standard_normal((heads, dim, dim)).astype(np.float32) / np.float32(dim**0.5), x, y


def _ours(u: np.ndarray, w: np.ndarray, x: np.ndarray, y: np.ndarray, step: float, steps: int) -> Callable:
    """`steps` steps of the compiled loop, with everything that a certified run records."""
    import jax
    import jax.numpy as jnp

    from attnlearn.training._compare import to_device
    from attnlearn.training._descent import Rates, advance, start
    from attnlearn.training._loss import cut
    from attnlearn.training._model import AttentionModel, Weights, equal_scales

    chunks, scales = to_device(cut(x, y, len(u))), equal_scales(len(u), x.dtype)
    weights = Weights(jnp.asarray(u), jnp.asarray(w))
    rates = Rates(*(jnp.asarray(value, x.dtype) for value in (step, 2.0, len(u))))
    state = [start("gd", weights, jnp.zeros(chunks.y.shape, x.dtype))]
    count = jnp.asarray(steps)

    def call() -> None:
        state[0], _ = jax.block_until_ready(
            advance(AttentionModel(), "gd", True, state[0], chunks, scales, weights, rates, count)
        )

    return call


def _step(case: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.rivals.training import jax_step, torch_step

    num, tokens, dim, heads = shape = tuple(case["shape"])
    arrays = _problem(*shape)
    flops = 4 * num * tokens * heads * dim**2 + 8 * num * heads * tokens**2 * dim
    inner = max(5, int(2e9 / flops))
    square = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    repeats = flops / (2 * 1024**3)
    ours = _ours(*arrays, step=0.1, steps=inner)
    rivals = {"torch": torch_step(*arrays, 0.1), "jax": jax_step(*arrays, 0.1)}
    calls: dict[str, Callable[[], Any]] = {"ours": ours, "gemm": lambda: square @ square}
    calls |= {name: _repeat(call, inner) for name, call in rivals.items()}
    times = alternate(calls, case["rounds"], 1)
    for name in ("ours", "torch", "jax"):
        times[name] = {key: value / inner for key, value in times[name].items()}
    times["gemm"] = {key: value * repeats for key, value in times["gemm"].items()}
    ratios = {name: _ratio(times, name) for name in ("torch", "jax")}
    met = all(ratios[name]["median"] >= wanted for name, wanted in WANTED[shape].items())
    over_gemm = times["ours"]["median"] / times["gemm"]["median"]
    return {
        "seconds": times,
        "times_faster": ratios,
        "wanted": WANTED[shape],
        "met": met,
        "over_gemm": over_gemm,
    }


def _repeat(call: Callable[[], Any], count: int) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(count):
            call()

    return repeated


def _ratio(times: dict[str, dict[str, float]], rival: str, ours: str = "ours") -> dict[str, float]:
    return {key: times[rival][key] / times[ours][key] for key in ("median", "min")}


def _our_kernel(u: np.ndarray, w: np.ndarray, x: np.ndarray) -> Callable[[], np.ndarray]:
    import jax.numpy as jnp

    from attnlearn.training._model import AttentionModel, Weights, equal_scales
    from attnlearn.training._tangent import tangent_kernel

    weights, scales = Weights(jnp.asarray(u), jnp.asarray(w)), equal_scales(len(u), x.dtype)
    tokens = jnp.asarray(x)
    return lambda: np.asarray(tangent_kernel(AttentionModel(), weights, scales, tokens))


def _tangent(case: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.rivals.training import jacrev_kernel

    u, w, x, _ = _problem(case["num"], 10, 50, case["heads"])
    ours, rival = _our_kernel(u, w, x), jacrev_kernel(u, w, x)
    mine, theirs = ours(), rival()
    error = float(np.abs(mine - theirs).max() / np.abs(theirs).max())
    if error > 1e-4:
        raise AssertionError(f"the kernels differ by {error:.2g}")
    # One turn of three calls: the rival needs many seconds each, and the first of ours after it pays for memory it gave back.
    times = alternate({"ours": ours, "jacrev": rival}, 1, 3)
    ratio = _ratio(times, "jacrev")
    return {
        "seconds": times,
        "times_faster": ratio,
        "wanted": 10,
        "met": ratio["median"] >= 10,
        "difference": error,
    }


def _seeds(case: dict[str, Any]) -> dict[str, Any]:
    from attnlearn.data import TokenizedMixture
    from attnlearn.training import fit_many

    x, y = TokenizedMixture(tokens=4, dim=8, dtype=np.float32).sample(30, seed=0)
    settings = {"num_heads": 4, "init": "gaussian", "step": 0.5, "max_steps": case["steps"]}
    seeds = range(case["runs"])
    one = _compiled_run(x, y, settings)
    last = {}

    def together() -> None:
        last["together"] = fit_many(x, y, seeds=seeds, **settings).losses[:, -1]

    def loop() -> None:
        last["loop"] = np.array([one(seed) for seed in seeds])

    times = alternate({"together": together, "loop": loop}, 5, 1)
    difference = float(np.abs(last["together"] - last["loop"]).max())
    if difference > 1e-4:
        raise AssertionError(f"the runs differ by {difference:.2g}")
    ratio = _ratio(times, "loop", "together")
    return {"seconds": times, "times_faster": ratio, "wanted": 5, "met": ratio["median"] >= 5}


def _compiled_run(x: np.ndarray, y: np.ndarray, settings: dict[str, Any]) -> Callable[[int], float]:
    """One run through a compiled loop, by its seed, as a function that returns the last loss."""
    import jax.numpy as jnp

    from attnlearn.training._compare import to_device
    from attnlearn.training._descent import Rates, advance, start
    from attnlearn.training._loss import cut
    from attnlearn.training._model import AttentionModel, Weights, equal_scales
    from attnlearn.training._problem import make_problem
    from attnlearn.training._sweep import _start

    problem = make_problem(x, y, **settings)
    chunks, scales = to_device(cut(x, y, problem.num_heads)), equal_scales(problem.num_heads, x.dtype)
    rates = Rates(*(jnp.asarray(v, x.dtype) for v in (settings["step"], 1.0, problem.num_heads)))
    count = jnp.asarray(problem.max_steps)

    def one(seed: int) -> float:
        weights = Weights(*map(jnp.asarray, _start(problem, seed)))
        state = start("gd", weights, jnp.zeros((), x.dtype))
        _, trace = advance(AttentionModel(), "gd", False, state, chunks, scales, weights, rates, count)
        return float(trace.loss[problem.max_steps - 1])

    return one


_PEAK = """
import resource, sys
from benchmarks.training import _our_kernel, _ours, _problem
shape = tuple(map(int, sys.argv[2:]))
eval(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def _peak(expression: str, shape: tuple[int, ...]) -> float:
    """GiB at most resident in a process of its own that evaluates `expression` of the `shape`."""
    command = [sys.executable, "-c", _PEAK, expression, *map(str, shape)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def _memory(case: dict[str, Any]) -> dict[str, Any]:
    shape = tuple(case[name] for name in ("num", "tokens", "dim", "heads"))
    peak = _peak("_ours(*_problem(*shape), step=0.1, steps=2)()", shape)
    return {"peak_gib": peak, "wanted": 2.0, "met": peak <= 2.0}


def _kernel_memory(case: dict[str, Any]) -> dict[str, Any]:
    peak = _peak("_our_kernel(*_problem(*shape)[:3])()", (case["num"], 10, 50, case["heads"]))
    return {"peak_gib": peak, "wanted": 1.0, "met": peak <= 1.0}


def _mixture(case: dict[str, Any]) -> dict[str, Any]:
    from attnlearn.data import TokenizedMixture
    from attnlearn.training import TrainConfig, fit

    num, heads, steps = (60, 8, 300) if case["small"] else (300, 32, 2000)
    x, y = TokenizedMixture(tokens=10, dim=32, dtype=np.float32).sample(num, seed=case["seed"])
    started = time.perf_counter()
    solution = fit(
        x,
        y,
        num_heads=heads,
        max_steps=steps,
        seed=case["seed"],
        config=TrainConfig(replays=0),
        raise_on_failure=False,
    )
    figures = solution.stats["tiers"]["run-verified"]
    keys = ("bound", "measured", "ratio", "violations")
    met = bool(figures["violations"] == 0 and figures["ratio"] <= 8)
    seconds = time.perf_counter() - started
    return {key: figures[key] for key in keys} | {"wanted": 8, "met": met, "fit_seconds": seconds}


def _coverage(case: dict[str, Any]) -> dict[str, Any]:
    """How often the draw of the stability bound covers the measured gap, and the recursion the distances."""
    from attnlearn.data import TokenizedMixture
    from attnlearn.training import TrainConfig, fit

    mixture = TokenizedMixture(tokens=3, dim=4, signal=0.6, noise=0.05)
    held_out = mixture.sample(2000, seed=99_999 + case["seed"])
    config = TrainConfig(replays=2, init_scale=0.5, radius=mixture.radius)
    finite = covered = distances = below = 0
    ratios, slack = [], []
    for draw in range(case["draws"]):
        x, y = mixture.sample(20, seed=case["seed"] + draw)
        settings = {"num_heads": case.get("heads", 256), "step": 0.05, "max_steps": 60, "config": config}
        solution = fit(x, y, test=held_out, seed=draw, raise_on_failure=False, **settings)
        general, replay = solution.stats["generalization"], solution.phase("replay").evidence
        for true, bound in zip(replay["leave_one_out_distance"], replay["distance_bound"]):
            if bound is not None:
                distances += 1
                below += true > bound
                slack.append(bound / true)
        if np.isfinite(general["draw"]):
            gap = solution.stats["tiers"]["measured"]["gap"]
            finite += 1
            covered += general["draw"] >= gap
            ratios.append(general["draw"] / max(gap, 1e-12))
    share = covered / finite if finite else None
    return {
        "draws": case["draws"],
        "finite": finite,
        "covered": share,
        "distances": distances,
        "below_truth": below,
        "median_ratio": float(np.median(ratios)) if ratios else None,
        "median_distance_ratio": float(np.median(slack)) if slack else None,
        "met": bool((share is None or share >= 0.99) and below == 0),
    }


_RUNS = {
    "step": _step,
    "tangent": _tangent,
    "seeds": _seeds,
    "memory": _memory,
    "kernel memory": _kernel_memory,
    "mixture": _mixture,
    "coverage": _coverage,
}


def summary(lines: list[dict[str, Any]]) -> str:
    """One line a case, with what was wanted."""
    rows = []
    for line in lines:
        result = line["result"]
        verdict = "met" if result.get("met") else "NOT MET"
        figures = {
            k: v
            for k, v in result.items()
            if k in ("times_faster", "over_gemm", "ratio", "peak_gib", "covered")
        }
        rows.append(f"{verdict:<8} {line['case']} {figures}")
    return "\n".join(rows)
