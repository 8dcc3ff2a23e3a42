"""Signals: what is measured once on the data, before anything is proposed.

The signals say which proposers apply, they are shown first in the report, and `explain` and `conditions` read the same object.
Where tokens have heavy tails, single sequences dominate third-order statistics. There the signals, and with them the moment,
are those of the half of the sequences whose largest white coordinate is smallest.

Cost: two passes over some thousands of the fit examples, four where tails are heavy. What can fail: `measure` returns a need in
place of signals when fewer than two directions or keys vary, or when the linear fit leaves nothing of the outputs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from attnlearn._canonical import Support
from attnlearn._result import Outcome
from attnlearn.data import Examples
from attnlearn.engine import Tools, storable
from attnlearn.recovery import _calibration as calibration
from attnlearn.recovery._own_token import own_token
from attnlearn.recovery._problem import Need, Problem
from attnlearn.recovery._statistics import Rest, dependence, linear_rest, looks_causal, token_support
from attnlearn.solve._calibration import CAUSAL
from attnlearn.solve._tokens import repeated
from attnlearn.solve._unknowns import unknowns
from attnlearn.solve._white import Whitening
from attnlearn.solve.noise import in_half_precision

_CHUNK = 1024


@storable
@dataclass(frozen=True)
class Signals:
    """Measured on the fit side: support of the tokens, causality, dependence between positions, tails, repetition, linear fit.

    `fit` and `select` are the sequences that the moment reads: all of them, or those without outliers where tails are heavy.
    """

    fit: Int[np.ndarray, "f"]
    select: Int[np.ndarray, "s"]
    looked_at: int
    white: Whitening
    """White coordinates of the tokens."""
    condition_number: float
    position_mean: Float[np.ndarray, "k r"]
    position_correlation: Float[np.ndarray, "k k"]
    kurtosis: Float[np.ndarray, "r"]
    heavy_tails: bool
    skewness: Float[np.ndarray, "r"]
    repeated: bool
    causal: bool
    residual: bool
    """Whether the own token enters the outputs about as itself."""
    linear: Float[np.ndarray, "features o"]
    residual_covariance: Float[np.ndarray, "o o"]
    output_scale: float
    nonlinear_share: float
    rounded: bool
    """Whether the outputs have no more bits than half precision."""
    equations_per_unknown: float
    """Equations on the fit side for every unknown of eight heads of full rank."""

    @property
    def support(self) -> Support:
        """The affine span of the tokens."""
        return self.white.support

    @property
    def directions(self) -> int:
        """Directions in which the tokens vary."""
        return self.white.directions

    @property
    def many(self) -> bool:
        """Whether the directions are so many that the wide search begins with a stochastic descent."""
        return self.directions > calibration.WIDE_FIRST

    @property
    def dependent(self) -> bool:
        """Whether tokens depend on their positions or on each other."""
        k = len(self.position_correlation)
        return bool(np.any(self.position_correlation != np.eye(k)) or np.any(self.position_mean != 0))

    @property
    def skewed(self) -> bool:
        """Whether some coordinate leans so far to one side that the moment would be misled."""
        return bool(np.abs(self.skewness).max() > calibration.SKEWED)

    @property
    def modelled(self) -> bool:
        """Whether the moment models these tokens: independent, symmetric, and not the words of a list."""
        return not (self.dependent or self.skewed or self.repeated)

    @property
    def scarce(self) -> bool:
        """Whether examples are so few, or tails so heavy, that the moment may miss heads that are there."""
        return self.heavy_tails or self.equations_per_unknown <= calibration.SCARCE

    @property
    def misfit(self) -> float:
        """Relative error above which a fit leaves structure; what the linear fit leaves bounds it where attention is weak."""
        return calibration.MISFIT * min(1.0, calibration.CLEAR * self.nonlinear_share**0.5)

    @property
    def found(self) -> float:
        """Relative error at which a wide fit has found the layer; less where attention is weak."""
        return min(calibration.NEGLIGIBLE, calibration.ALIKE * self.nonlinear_share**0.5)

    def evidence(self) -> dict[str, Any]:
        """The figures for the report."""
        off = self.position_correlation - np.eye(len(self.position_correlation))
        return {
            "examples": self.looked_at,
            "tokens": len(off),
            "support_rank": self.directions,
            "condition_number": self.condition_number,
            "causal": self.causal,
            "position_correlation": float(np.abs(off).max()),
            "position_mean": float(np.linalg.norm(self.position_mean, axis=1).max()),
            "kurtosis": float(self.kurtosis.mean()),
            "skewness": float(np.abs(self.skewness).max()),
            "nonlinear_share": self.nonlinear_share,
            "repeated": self.repeated,
            "heavy_tails": self.heavy_tails,
            "own_token_enters": self.residual,
            "half_precision": self.rounded,
            "sequences_read": len(self.fit),
            "equations_per_unknown": self.equations_per_unknown,
        }


def measure(problem: Problem, tools: Tools) -> Signals | Need:
    """The signals of a problem; of its calmer sequences, if tails are heavy."""
    found = _measured(problem, problem.split.fit, problem.split.select, tools)
    if isinstance(found, Need) or found.repeated or found.kurtosis.mean() <= calibration.HEAVY_TAILS:
        return found
    calmer = _measured(problem, *without_outliers(problem, found), tools)
    if isinstance(calmer, Need) or calmer.directions < found.directions:
        return found
    return dataclasses.replace(calmer, heavy_tails=True)


def _measured(
    problem: Problem, fit: Int[np.ndarray, "f"], select: Int[np.ndarray, "s"], tools: Tools
) -> Signals | Need:
    """The signals of the sequences given."""
    examples = problem.examples
    some = fit[:: max(1, len(fit) // sequences_wanted(examples))]
    white = token_support(examples, some, tools.engine)
    r, out = white.directions, examples.out_dim
    seen = {"examples": len(some), "tokens": examples.tokens, "support_rank": r}
    if r <= 1 or examples.tokens <= 1:
        varied = "all tokens are equal" if r == 0 else "all tokens lie on one line"
        return Need(Outcome.TOKENS_DEGENERATE, evidence=seen | {"because": varied})
    causal = looks_causal(examples, some) if problem.causal is None else bool(problem.causal)
    found = dependence(examples, some, white, causal, tools.engine)
    rest = linear_rest(examples, some, white, causal, found.linear)
    signals = Signals(
        fit=fit,
        select=select,
        looked_at=len(some),
        causal=causal,
        white=white,
        condition_number=float(np.linalg.cond(white.basis) ** 2),
        **found._asdict(),
        residual_covariance=rest.covariance,
        output_scale=rest.output_scale,
        nonlinear_share=rest.share,
        repeated=_repeated(problem, found.kurtosis),
        heavy_tails=False,
        residual=own_token(problem, causal, white).residual,
        rounded=in_half_precision(examples.take(some[: calibration.SAMPLE]).y),
        equations_per_unknown=problem.equations / unknowns(calibration.WIDTHS[0], r, out),
    )
    between = np.abs(found.position_correlation[~np.eye(examples.tokens, dtype=bool)])
    if between.min() > 1 - CAUSAL:
        alike = {"because": "each token of a sequence is a copy of the others, or nearly so"}
        return Need(Outcome.TOKENS_DEGENERATE, evidence=signals.evidence() | alike)
    if rest.share < calibration.LINEAR_SHARE[examples.dtype.name]:
        return Need(Outcome.ATTENTION_TOO_WEAK, evidence=signals.evidence() | _invisible(rest))
    return signals


def _invisible(rest: Rest) -> dict[str, str]:
    """Why no attention shows in the outputs."""
    if rest.output_scale == 0:
        remedy = "check which outputs were taken, for those of a layer change with its tokens"
        return {"because": "the outputs are the same for every input", "remedy": remedy}
    left = f"all but {rest.share**0.5:.0e} of the outputs"
    return {"because": f"a linear function of the tokens explains {left}"}


def sequences_wanted(examples: Examples) -> int:
    """Sequences on which the statistics of tokens and outputs rest."""
    features = 4 * examples.dim  # of the linear fit, at most
    rows = calibration.PLENTY * features
    return max(calibration.LEAST_ROWS, -(-rows // examples.tokens))


def _repeated(problem: Problem, kurtosis: Float[np.ndarray, "r"]) -> bool:
    """Whether most tokens occur more than once, as the words of a vocabulary do; fair signs may, and are modelled."""
    looked = problem.split.fit[: calibration.LEAST_ROWS // (2 * problem.examples.tokens) + 1]
    x, _, mask = problem.examples.take(looked)
    tokens = x.reshape(-1, x.shape[-1]) if mask is None else x[mask]
    return repeated(tokens, bool(np.all(kurtosis < -1)))  # two values about equally often


def without_outliers(problem: Problem, signals: Signals) -> tuple[Int[np.ndarray, "f"], Int[np.ndarray, "s"]]:
    """The half of the fit sequences whose largest white coordinate is smallest, and the select sequences below the same bound."""
    fit, select = problem.split.fit, problem.split.select
    sizes = [largest_coordinates(problem, signals.white, side) for side in (fit, select)]
    bound = np.median(sizes[0])
    return fit[sizes[0] <= bound], select[sizes[1] <= bound]


def largest_coordinates(
    problem: Problem, white: Whitening, indices: Int[np.ndarray, "i"]
) -> Float[np.ndarray, "i"]:
    """The largest coordinate of each sequence's white tokens, in absolute value."""
    found = []
    for x, _, mask in problem.examples.chunks(_CHUNK, indices):
        z = np.abs(white.tokens(x, np.float32)).max(axis=2)
        found.append((z if mask is None else z * mask).max(axis=1))
    return np.concatenate(found)
