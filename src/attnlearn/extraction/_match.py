"""Phase 4: every head at d further displacements, matched by continuation; this gives all W_i and c_i.

The displacements delta + eta_j, eta_j short and orthogonal, keep delta's head order: Theta_i (delta + eta) and
(delta + eta) W_i are bilinear in eta and so stay close to the separated ones, which start the exact solve. Each
slice needs (m + q + 3)/2 sequences, since v_i and the q + 2 logit slopes are unknown but shared by all points.
The differences v_i(delta + eta_j) - v_i(delta) = eta_j W_i are then linear equations for W_i, and the logits at
x = 0 for c_i. That the answers are linear in eta is a check of the matching. As soon as the values show the few
directions to which every head writes, further displacements take one or two queries each (`_spans`).

Cost: about (m + 5) sequences of two tokens for each of d displacements, or for r + 3 of them and 1 to 3 for each of the
others where the W_i have rank r. What can fail: a slice that does not converge is asked again with a
third of its displacement; a head that was invisible at delta shows up outside the span and delta is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from attnlearn.engine import Stop, Tools
from attnlearn.extraction import _calibration as calibration
from attnlearn.extraction._joint import solve_joint, with_sum
from attnlearn.extraction._logits import Slice, free_slopes, slice_limit, solve_slices
from attnlearn.extraction._probe import features, respond
from attnlearn.extraction._separate import locate
from attnlearn.extraction._spans import Lean, lean_slices, queries_needed, value_spaces
from attnlearn.extraction._state import Inquiry, Problem, State, counts
from attnlearn.solve._heads import separation


def match(problem: Problem, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    """W_i and c_i from displaced slices; another delta if this one hides a head."""
    inquiry = Inquiry(problem, state)
    found = Slice(**{name: getattr(state, name) for name in Slice.__dataclass_fields__})
    history: list[dict[str, Any]] = []
    for attempt in range(calibration.ATTEMPTS):
        swept, evidence = sweep(inquiry, found, tools.rng(f"sweep {attempt}"))
        history.append(evidence)
        if swept is not None:
            scale = problem.config.token_scale or logit_scale(swept, state.scale)
            figures = {"num_heads": len(swept.w), "scale": scale, "sweeps": history, **counts(problem.oracle)}
            # Whole slices leave nothing to complete; Theta from a part of its rows would.
            theta = np.einsum("uq,mqd->mud", found.basis, swept.rows) if found.dependent else None
            known = inquiry.kept(w=swept.w, query_bias=swept.query_bias, theta=theta, scale=scale)
            return found.into(known), figures
        if attempt + 1 < calibration.ATTEMPTS:
            found, _ = locate(inquiry, problem, tools, calibration.ATTEMPTS * (attempt + 1))
    # Nearly equal heads amplify noise until only the longest displacements would stand out of it.
    longest = [entry["displacement"] >= calibration.DISPLACEMENT_MOST for entry in history]
    close = np.mean(longest) >= calibration.BLURRED_SHARE or separation(found.slopes) < calibration.APART
    name = "HEADS_INDISTINGUISHABLE" if close else "NOT_ATTENTION"
    raise Stop(name, {"sweeps": history, **counts(problem.oracle)}, inquiry.kept())


@dataclass(frozen=True)
class Swept:
    """What all displacements together give: W_i, c_i and the rows U^T Theta_i of an orthonormal basis U.

    c_i and the rows are known on `seen` of the directions, those of whole slices, and zero on the others.
    """

    w: Float[np.ndarray, "m d o"]
    query_bias: Float[np.ndarray, "m d"]
    rows: Float[np.ndarray, "m q d"]
    seen: float = 1.0


def logit_scale(swept: Swept, scale: float) -> float:
    """Token scale at which the strongest head has logits of standard deviation LOGIT_STD.

    The known q of d rows of Theta, in random directions, hold about q/d of its square, and so do `seen` directions.
    """
    _, q, d = swept.rows.shape
    if q == 0:
        return scale
    whole = 1 / np.sqrt(swept.seen)
    return scale_for(whole * swept.rows * np.sqrt(d / q), whole * swept.query_bias, scale)


def scale_for(rows: Float[np.ndarray, "m q d"], query_bias: Float[np.ndarray, "m d"], scale: float) -> float:
    """The token scale s for heads of these scores, within SCALE_CHANGE of `scale`.

    Tokens of covariance s^2 I have logits of variance s^4 ‖Theta‖_F^2 + s^2 ‖c‖^2.

    >>> round(scale_for(np.full((1, 2, 2), 0.55), np.zeros((1, 2)), 1.2), 6)
    1.0
    """
    theta, c = np.sum(rows**2, axis=(1, 2)), np.sum(query_bias**2, axis=1)
    wanted = calibration.LOGIT_STD**2
    squares = 2 * wanted / (c + np.sqrt(c**2 + 4 * theta * wanted) + 1e-300)
    change = calibration.SCALE_CHANGE
    return float(np.clip(np.sqrt(squares.min()), scale / change, scale * change))


def sweep(inquiry: Inquiry, found: Slice, rng: np.random.Generator) -> tuple[Swept | None, dict[str, Any]]:
    """Solve all displaced slices; None when some stay unsolved."""
    d = len(found.delta)
    length = _displacement(found, inquiry.state.noise)
    etas = np.linalg.qr(rng.standard_normal((d, d)))[0] * np.linalg.norm(found.delta)
    etas *= length * rng.choice([-1.0, 1.0], (d, 1))
    solved, lean, number = _first_slices(inquiry, found, etas)
    wanted, shorter = solved.etas.copy(), solved.etas.copy()
    rounds, todo = [len(wanted)], solved.unreliable()
    while len(todo) and len(rounds) < calibration.DISPLACED_AGAIN:
        shorter[todo] /= 3
        solved.replace(todo, _displaced(inquiry, found, shorter[todo]))
        rounds.append(len(todo))
        todo = np.intersect1d(todo, solved.unreliable())
    evidence = {"displacement": length, "slices": rounds, "worst_residual": float(solved.residual.max())}
    evidence |= {"lean_slices": len(lean.etas), "lean_sequences": number}
    if not solved.good.all():
        return None, evidence | {"unsolved": int(np.sum(~solved.good))}
    evidence["extended"] = _extend(inquiry, found, wanted, solved)
    return _gather(found, solved, lean, evidence), evidence


def _first_slices(inquiry: Inquiry, found: Slice, etas: np.ndarray) -> tuple[Displaced, Lean, int | None]:
    """Whole slices until the directions of the values show, lean ones from there on, with so many queries each."""
    d, step = len(etas), calibration.SPAN_SLICES
    solved = _displaced(inquiry, found, etas[: d if found.dependent else 2 * step])
    number, spaces = None, None
    while len(solved.etas) < d:
        sure = np.setdiff1d(np.arange(len(solved.etas)), solved.unreliable())
        spaces = value_spaces(found, solved.etas[sure], solved.values[sure]) if len(sure) else None
        number = None if spaces is None else queries_needed(found, spaces, inquiry.state.causal)
        if number is not None:
            break
        done = len(solved.etas)
        solved = solved.joined(_displaced(inquiry, found, etas[done : done + step if 2 * done < d else d]))
    rest = etas[len(solved.etas) :]
    if spaces is None or number is None or not len(rest):
        return solved, Lean(etas[:0], solved.values[:0], solved.good[:0]), None
    lean = lean_slices(inquiry, found, spaces, number, rest)
    if not lean.good.all():
        solved = solved.joined(_displaced(inquiry, found, rest[~lean.good]))
    return solved, lean.only_good(), number


def _gather(found: Slice, solved: Displaced, lean: Lean, evidence: dict[str, Any]) -> Swept:
    """W_i, c_i and rows of Theta_i from slices that are linear in the displacement."""
    d, heads = len(found.delta), len(found.slopes)
    deltas = found.delta + np.vstack([np.zeros(d), solved.etas, lean.etas])
    values = np.concatenate([found.values[None], solved.values, lean.values])
    w, miss = _linear_in_delta(deltas, values.reshape(d + 1, -1))
    scores = np.concatenate([found.slopes[None], solved.slopes])[:, :, :-1]
    whole = len(scores)
    scores, score_miss = _linear_in_delta(deltas[:whole], scores.reshape(whole, -1))
    scores = scores.reshape(d, heads, -1).transpose(1, 2, 0)
    evidence["bilinearity"] = max(miss, score_miss)
    w = w.reshape(d, heads, -1).transpose(1, 0, 2)
    return Swept(w, scores[:, -1], scores[:, :-1], min(1.0, whole / d))


def _displacement(found: Slice, noise: float) -> float:
    """Length of eta over that of delta: longer only if noise would spoil the differences."""
    size = np.linalg.norm(found.values, axis=1).min() / np.sqrt(found.values.shape[1])
    wanted = noise * found.amplification / (max(size, noise) * calibration.DISPLACED_ERROR)
    return float(np.clip(wanted, calibration.DISPLACEMENT, calibration.DISPLACEMENT_MOST))


@dataclass
class Displaced:
    """Slices at delta + eta: answers g, slopes, values, residual, and whether it is small enough."""

    etas: Float[np.ndarray, "b d"]
    g: Float[np.ndarray, "b r o"]
    slopes: Float[np.ndarray, "b m p"]
    values: Float[np.ndarray, "b m o"]
    residual: Float[np.ndarray, "b"]
    good: Bool[np.ndarray, "b"]

    def unreliable(self) -> Int[np.ndarray, "t"]:
        """Slices that are not solved, or so much worse than the others that they may have met another optimum."""
        usual = np.median(self.residual[self.good]) if self.good.any() else np.inf
        return np.flatnonzero(~(self.good & (self.residual <= calibration.DOUBTFUL * usual)))

    def joined(self, others: Displaced) -> Displaced:
        """These slices and others after them."""
        pairs = zip(vars(self).values(), vars(others).values())
        return Displaced(*(np.concatenate(pair) for pair in pairs))

    def only(self, which: np.ndarray) -> Displaced:
        """Some of the slices."""
        return Displaced(*(array[which] for array in vars(self).values()))

    def replace(self, which: np.ndarray, others: Displaced) -> None:
        """Put others in the places `which`; the answers there are kept."""
        for name in ("etas", "slopes", "values", "residual", "good"):
            getattr(self, name)[which] = getattr(others, name)


def _displaced(inquiry: Inquiry, found: Slice, etas: np.ndarray) -> Displaced:
    """Ask at delta + eta and solve every slice from the one at delta."""
    g = respond(inquiry, found.points @ found.basis.T, found.delta + etas)
    start = np.broadcast_to(found.slopes, (len(etas), *found.slopes.shape))
    return _solved(inquiry, found, etas, g, start, slice_limit(inquiry.state.noise, g))


def _extend(inquiry: Inquiry, found: Slice, etas: np.ndarray, solved: Displaced) -> int:
    """Where only a shorter displacement was solved, start the longer one from it: slices are linear in eta.

    Their answers are known already, and the same noise then spoils W_i less. How many were solved.
    """
    short = np.flatnonzero(np.any(solved.etas != etas, axis=1))
    if not len(short):
        return 0
    factor = np.linalg.norm(etas[short], axis=1) / np.linalg.norm(solved.etas[short], axis=1)
    start = found.slopes + factor[:, None, None] * (solved.slopes[short] - found.slopes)
    limit = slice_limit(inquiry.state.noise, solved.g)
    longer = _solved(inquiry, found, etas[short], solved.g[short], start, limit)
    solved.replace(short[longer.good], longer.only(longer.good))
    return int(longer.good.sum())


def _solved(
    inquiry: Inquiry, found: Slice, etas: np.ndarray, g: np.ndarray, start: np.ndarray, limit: float
) -> Displaced:
    state, deltas = inquiry.state, found.delta + etas
    x = features(found.points, state.causal)
    if found.dependent:
        slopes, values, residual = solve_joint(start, x, np.zeros(len(x)), with_sum(g, deltas, state.total))
    else:
        free = free_slopes(len(found.slopes), found.slopes.shape[1], found.constant_head)
        slopes, values, residual, outside = solve_slices(start, x, g, deltas @ state.total, free)
        residual = np.maximum(residual, outside)
    return Displaced(etas.copy(), g, slopes, values, residual, residual <= limit)


def _linear_in_delta(deltas: np.ndarray, stacked: np.ndarray) -> tuple[np.ndarray, float]:
    """Least-squares linear map from displacements, and how far the answers are from linear.

    >>> linear, miss = _linear_in_delta(np.array([[1.0, 0], [1, 1], [2, 1]]), np.array([[1.0], [3], [4]]))
    >>> linear.round(6).ravel().tolist(), miss < 1e-12
    ([1.0, 2.0], True)
    """
    linear, *_ = np.linalg.lstsq(deltas, stacked, rcond=None)
    size = np.linalg.norm(stacked)
    return linear, float(np.linalg.norm(deltas @ linear - stacked) / max(size, 1e-300))
