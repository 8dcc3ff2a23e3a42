"""`leak`: how much of a layer is given away after how many queries, under given rounding and noise.

The owner of an oracle asks: if answers are rounded to so many decimals, or so much noise is added, how far does an
extraction get with how many sequences, tokens and scalars? Every setting runs `extract`'s phases against the
defended oracle; after each phase the best layer so far is judged on random sequences that the undefended oracle
answers. Those are the owner's measurement, not the attacker's, and are not counted.

Errors: ‖F_hat - F‖ over the spread of F about its mean (1: nothing is known), and, when the true layer is given, the
worst head's parameter error. Cost: one extraction per setting.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnlearn._distance import distance
from attnlearn._errors import OracleError, require
from attnlearn._layer import AttentionLayer
from attnlearn._types import Outputs, Tokens
from attnlearn.engine import PhaseFailed, Progress, Tools, run_phases
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._extract import LEARNED, token_dimension
from attnlearn.extraction._polish import layer_of
from attnlearn.extraction._state import ExtractConfig, Problem, State, counts
from attnlearn.oracle import Oracle
from attnlearn.oracle._cache import sequence_key


@dataclass(frozen=True)
class Leak:
    """Rows of figures: one per setting and phase, with what was spent and the error reached.

    >>> Leak([{"decimals": 3, "noise": 0.0, "phase": "measure", "sequences": 9, "error": 0.5}]).rows[0]["error"]
    0.5
    """

    rows: list[dict[str, Any]] = field(default_factory=list)

    def frame(self):
        """The rows as a pandas data frame (needs the extra `report`)."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def plot(self, ax: Any = None) -> Any:
        """Error against sequences, one line per setting (needs the extra `report`); returns the axes."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        for label, rows in self._settings().items():
            points = [(max(row["sequences"], 1), row["error"]) for row in rows if row["error"] is not None]
            ax.loglog(*zip(*points), marker="o", label=label)
        ax.set_xlabel("sequences asked")
        ax.set_ylabel("error of the outputs (1: nothing known)")
        ax.legend()
        return ax

    def __str__(self) -> str:
        head = f"{'setting':<24}{'phase':<10}{'sequences':>10}{'tokens':>10}{'scalars':>12}{'error':>11}"
        lines = [head]
        for label, rows in self._settings().items():
            for row in rows:
                error = "-" if row["error"] is None else f"{row['error']:.2e}"
                spent = f"{row['sequences']:>10}{row['tokens']:>10}{row['scalars']:>12}"
                lines.append(f"{label:<24}{row['phase']:<10}{spent}{error:>11}")
        return "\n".join(lines)

    def _settings(self) -> dict[str, list[dict[str, Any]]]:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            digits = "not rounded" if row["decimals"] is None else f"{row['decimals']} decimals"
            noise = "" if not row["noise"] else f", noise {row['noise']:g}"
            groups.setdefault(digits + noise, []).append(row)
        return groups


class Defended:
    """A source that rounds the answers of another oracle and adds Gaussian noise to them.

    A sequence that is asked again is asked past the cache of the oracle behind: the spread of its answers would otherwise be none.
    """

    def __init__(self, inner: Oracle, decimals: int | None, noise: float, seed: int) -> None:
        self._inner, self._decimals, self._noise = inner, decimals, noise
        self._rng = np.random.default_rng([seed, 0xDEF])
        self.label = f"{inner.label}, decimals {decimals}, noise {noise:g}"
        self.identity = self.label
        self.out_dim = None
        self._asked: set[bytes] = set()

    @property
    def dim(self) -> int | None:
        """Token dimension of the oracle behind."""
        return self._inner.dim

    def open(self) -> None:
        """Nothing to open: the oracle behind opens itself."""

    def close(self) -> None:
        """The oracle behind stays open for the next setting."""

    def limit_time(self, seconds: float) -> bool:
        """The oracle behind has its own limit."""
        return True

    def accepted(self, x: Tokens) -> Tokens:
        """What the oracle behind accepts."""
        return self._inner.accepted(x)

    def ask(self, x: Tokens) -> Outputs:
        """Answers after noise and rounding."""
        keys = {sequence_key(sequence) for sequence in x}
        y = self._inner.fresh(x) if keys & self._asked else self._inner(x)
        self._asked |= keys
        if self._noise:
            y = y + self._noise * self._rng.standard_normal(y.shape).astype(y.dtype)
        return y if self._decimals is None else np.round(y, self._decimals)


def leak(
    oracle: Any,
    dim: int | None = None,
    *,
    decimals: Sequence[int | None] = (None,),
    noise: Sequence[float] = (0.0,),
    budget: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    truth: AttentionLayer | None = None,
    config: ExtractConfig | None = None,
    seed: int = 0,
    progress: Progress | bool | str | None = None,
) -> Leak:
    """Error reached against sequences, tokens and scalars spent, for every rounding and every noise.

    `decimals` are digits after the point to which answers are rounded (None: not at all), `noise` standard
    deviations added before. With `truth` the parameter error is shown too. With `cache`, a folder, no undefended answer is
    asked twice, by this run or a later one; the counts are the attacker's and stay the same. An oracle that fails, and Ctrl-C, end
    in an exception whose `.leak` holds the settings that are finished.

    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=1)
    >>> curve = leak(layer, dim=4, truth=layer, progress=False)
    >>> [row["phase"] for row in curve.rows]
    ['start', 'measure', 'match', 'complete', 'polish']
    >>> curve.rows[-1]["error"] < 1e-9
    True
    """
    for name, given in (("decimals", decimals), ("noise", noise)):
        require(len(given) > 0, name, "must not be empty", given)
    inner = Oracle.wrap(oracle, cache=cache)
    dim = token_dimension(inner, dim)
    tools = Tools(progress=Progress.make(progress), seed=seed)
    config = ExtractConfig() if config is None else config
    rows: list[dict[str, Any]] = []
    for places in decimals:
        for sigma in noise:
            defended = Oracle.wrap(Defended(inner, places, sigma, seed), budget=budget)
            problem = Problem(defended, dim, None, config)
            try:
                with tools.progress.phase(_setting(places, sigma)):
                    found = _curve(problem, inner, tools, truth)
            except (KeyboardInterrupt, OracleError) as ending:
                ending.leak = Leak(rows)  # type: ignore[union-attr]
                raise
            rows += [{"decimals": places, "noise": sigma, **row} for row in found]
    return Leak(rows)


def _setting(places: int | None, sigma: float) -> str:
    """A defence in words.

    >>> _setting(None, 0.0), _setting(2, 0.1)
    ('answers as they are', '2 decimals, noise 0.1')
    """
    rounded = "all digits" if places is None else f"{places} decimals"
    noisy = f", noise {sigma:g}" if sigma else ""
    return "answers as they are" if places is None and not sigma else rounded + noisy


def _curve(
    problem: Problem, inner: Oracle, tools: Tools, truth: AttentionLayer | None
) -> list[dict[str, Any]]:
    points: list[tuple[str, dict[str, int], AttentionLayer | None]] = [
        ("start", {"sequences": 0, "tokens": 0, "scalars": 0}, None)
    ]

    def watched(name, phase):
        def run(problem, state, tools):
            state, info = phase(problem, state, tools)
            if name in ("measure", "match", "complete", "polish"):
                points.append((name, counts(problem.oracle), best_layer(state)))
            return state, info

        return name, run

    try:
        ended = run_phases([watched(*phase) for phase in LEARNED], problem, State(), tools)
        if ended.interrupted:
            raise KeyboardInterrupt
        if ended.stopped is not None and ended.stopped.outcome_name == "ORACLE_FAILED":
            raise OracleError(str(ended.stopped.evidence.get("error", "the oracle failed")))
        outcome = "POLISHED" if ended.stopped is None else ended.stopped.outcome_name
        scale = ended.state.scale or 1.0
    except PhaseFailed:
        outcome, scale = "NUMERICAL_FAILURE", 1.0
    if outcome != "POLISHED":
        points.append((f"{outcome}", counts(problem.oracle), points[-1][2]))
    shape = (calibration.LEAK_SEQUENCES, calibration.CERTIFY_TOKENS, problem.dim)
    x = inner.accepted(scale * tools.rng("leak").standard_normal(shape))
    y = inner(x).astype(np.float64)
    return [_judged(*point, x, y, truth) for point in points]


def best_layer(state: State) -> AttentionLayer:
    """What a state knows: uniform attention with S, then the W_i and c_i, then everything."""
    if state.theta is not None:
        return layer_of(state)
    d = len(state.total)
    if state.w is None:
        one = replace(state, w=state.total[None], query_bias=np.zeros((1, d)), theta=np.zeros((1, d, d)))
        return layer_of(one)
    return layer_of(replace(state, theta=np.zeros((len(state.w), d, d))))


def _judged(name, spent, layer, x, y, truth) -> dict[str, Any]:
    if layer is None:
        return {"phase": name, **spent, "error": 1.0, "parameter_error": None}
    spread = max(np.linalg.norm(y - y.mean((0, 1))), np.finfo(float).tiny)
    error = float(np.linalg.norm(layer(x) - y) / spread)
    known = None if truth is None else float(distance(layer, truth.astype(layer.dtype)).max)
    return {"phase": name, **spent, "error": error, "parameter_error": known}
