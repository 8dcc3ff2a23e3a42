"""Compression of layers with positions, windows, norms, caps or sinks: heads dropped, shared and fitted, for any member of `scores`.

| phase | what it does |
|---|---|
| one for each shape | heads dropped one by one, the cheapest first with W refitted (`solve/_drop`); those left put into groups, taken apart (`_members`), W refitted |
| fit the shape | quasi-Newton steps on the factors with O and b eliminated (`_descend`), judged on select examples |

Rotary heads keep their width, which is the number of their frequencies, so their shapes differ in heads and in keys and values alone. Tables,
gains, caps and sinks stay those of each head; what sinks put out is fitted with O and b. Cost: as for plain layers.
What can fail: descents end in local optima; keys of normalised heads are shared by their mean first.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._maps import INPUTS, SampleInputs
from attnlearn.compression import _calibration as calibration
from attnlearn.compression._closed import scores
from attnlearn.compression._descend import descend
from attnlearn.compression._factored import Factored
from attnlearn.compression._members import (
    core,
    factored,
    groups_of,
    has_biases,
    put_together,
    width_of,
    without_biases,
)
from attnlearn.compression._projection import Projection
from attnlearn.compression._shape import Shape, Wanted
from attnlearn.compression._shaping import trial_side
from attnlearn.compression._sides import Sides
from attnlearn.compression._state import select_error
from attnlearn.engine import Tools, array_hash
from attnlearn.engine._pipeline import Phases
from attnlearn.scores import Relative, build, describe
from attnlearn.solve._batch import Batch
from attnlearn.solve._drop import WhitenedRegression, drop_order
from attnlearn.solve._rank import largest_rank
from attnlearn.solve._white import whitening

Evidence = dict[str, Any]


@dataclass(frozen=True)
class PlacedProblem:
    """What is compressed, on what, into which shapes, and in how many steps."""

    layer: AttentionLayer
    sides: Sides
    shapes: tuple[Shape, ...]
    shape_steps: int


@dataclass(frozen=True)
class PlacedState:
    """The arrays of the best layer so far with its shape and error, and the errors of all shapes."""

    arrays: Any = None
    description: Any = None
    error: float = np.inf
    shape: Shape | None = None
    shapes: tuple[Shape, ...] = ()
    errors: tuple[float, ...] = ()
    fitted: bool = False

    def layer(self, source: AttentionLayer) -> AttentionLayer | None:
        """The best layer so far."""
        if self.arrays is None:
            return None
        form = build(self.description, self.arrays)
        return AttentionLayer.from_scores(
            form, self.arrays["w"], self.arrays["output_bias"], causal=source.visible
        )

    def answered(self, layer: AttentionLayer, error: float, shape: Shape) -> PlacedState:
        """The state with this answer."""
        kept = {name: np.array(array) for name, array in layer.arrays().items()}
        description = describe(layer.form)
        return dataclasses.replace(
            self, arrays=kept, description=description, error=float(error), shape=shape
        )


def placed_shapes(layer: AttentionLayer, wanted: Wanted) -> tuple[Shape, ...]:
    """The shapes that meet what is wanted of a layer with positions; what has no meaning there is refused."""
    fixed, heads = width_of(layer.form), wanted.heads(layer.num_heads)
    rule = "must be left out for a layer with positions, a window or a prefix"
    require(wanted.latent is None, "latent", rule, wanted.latent)
    if fixed is None:
        width = own_width(layer)
        return tuple(shape for shape in wanted.shapes(heads, width) if shape.latent is None)
    rule = f"must be {fixed} or left out: the width of rotary heads is that of their frequencies"
    require(wanted.head_dim in (None, fixed), "head_dim", rule, wanted.head_dim)
    if wanted.kv_floats is None:
        return (Shape(heads, fixed, wanted.kv_heads or heads),)
    fitting = [kv for kv in range(heads, 0, -1) if heads % kv == 0 and 2 * kv * fixed <= wanted.kv_floats]
    rule = f"must be at least {2 * fixed}, one key and one value of width {fixed}"
    require(bool(fitting), "kv_floats", rule, wanted.kv_floats)
    return (Shape(heads, fixed, fitting[0]),)


def own_width(layer: AttentionLayer) -> int:
    """The width that every head of the layer fits into."""
    fixed = width_of(layer.form)
    if fixed is not None:
        return fixed
    inside = core(layer.form)
    base = inside.base if isinstance(inside, Relative) else inside
    plain = Parameters(base.theta(), layer.w, base.c, layer.output_bias)
    return max(1, largest_rank(scores(plain)), largest_rank(plain.w))


def placed_phases(problem: PlacedProblem) -> Phases:
    """The phases for every shape, and the last fit."""
    return (
        *((shape.words(), _trial(shape, len(problem.shapes) > 1)) for shape in problem.shapes),
        ("fit the shape", _fit),
    )


def _trial(shape: Shape, several: bool) -> Any:
    def trial(problem: PlacedProblem, state: PlacedState, tools: Tools) -> tuple[PlacedState, Evidence]:
        work = Work(problem, trial_side(problem.sides.fit, shape))
        form, w = work.inside(problem.layer)
        kept = cheapest(problem, shape.num_heads)
        groups = groups_of(_of(form, kept), w[kept], shape)
        order = kept[np.concatenate(groups)]
        form, factors = work.factored(_of(form, order), w[order], shape)
        layer = work.layer(form, factors)
        error = select_error(layer, problem.sides.select)
        evidence: Evidence = {"heads": order.tolist(), "closed form": error}
        if several and error > calibration.EXACT[layer.dtype.name]:
            fitted, more = work.descended(form, factors, calibration.TRIAL_STEPS, tools, None)
            after = select_error(fitted, problem.sides.select)
            layer, error, evidence = (fitted if after < error else layer), min(error, after), evidence | more
        state = dataclasses.replace(
            state, shapes=(*state.shapes, shape), errors=(*state.errors, float(error))
        )
        better = state.shape is None or error < state.error
        return (state.answered(layer, error, shape) if better else state), evidence | {"error": error}

    return trial


def _fit(problem: PlacedProblem, state: PlacedState, tools: Tools) -> tuple[PlacedState, Evidence]:
    """The chosen shape, fitted to the end."""
    layer, shape, error = state.layer(problem.layer), state.shape, state.error
    assert layer is not None, "a shape was tried before"
    assert shape is not None, "a shape was tried before"
    evidence: Evidence = {"shape": shape.words()}
    if error > calibration.EXACT[layer.dtype.name]:
        work = Work(problem, problem.sides.fit)
        form, factors = work.factored(*work.inside(layer), shape)
        fitted, more = work.descended(form, factors, problem.shape_steps, tools, tools.deadline)
        after = select_error(fitted, problem.sides.select)
        layer, error = (fitted, after) if after < error else (layer, error)
        evidence |= more | {"fitted": after}
    errors = tuple(error if one == shape else old for one, old in zip(state.shapes, state.errors))
    state = dataclasses.replace(state, errors=errors, fitted=True)
    return state.answered(layer, error, shape), evidence | {"error": error}


class Work:
    """Fit examples in white coordinates, and layers from factors there; a layer without biases stays without."""

    def __init__(self, problem: PlacedProblem, fit: Batch) -> None:
        self.source = problem.layer
        self.biases = has_biases(self.source.form) or bool(self.source.output_bias.any())
        self.ground = WhitenedRegression(fit, self.source.visible, centred=self.biases)

    def inside(self, layer: AttentionLayer) -> tuple[Any, np.ndarray]:
        """Scores and W of a layer in white coordinates."""
        white = self.ground.white
        form = white.inside(layer.form.astype(np.float64))
        return form, white.enter_linear(layer.w, layer.output_bias)[0]

    def factored(self, form: Any, w: np.ndarray, shape: Shape) -> tuple[Any, Factored]:
        """Scores and factors of heads in the order of their groups."""
        form, factors = factored(form, w, shape)
        return form, factors if self.biases else without_biases(factors, form.dim)

    def descended(
        self, form: Any, factors: Factored, steps: int, tools: Tools, deadline: float | None
    ) -> tuple[AttentionLayer, Evidence]:
        """The layer after so many steps on the factors, in float32, its O and b in the precision of the data."""
        ground = self.ground
        chunks = ground.chunks.astype(np.float32)
        single = Projection(chunks, ground.causal, ground.total, form, self.biases)
        found = descend(
            single,
            factors,
            steps=steps,
            deadline=deadline,
            on_step=lambda error: tools.progress.update(error=error),
        )
        return self.layer(form, found.factors), {"errors": found.errors, "stop": found.stop}

    def layer(self, form: Any, factors: Factored) -> AttentionLayer:
        """The layer of these factors, with the best O, b and values of sinks."""
        white, m = self.ground.white, factors.heads
        ground = self.ground
        linear = Projection(ground.chunks, ground.causal, ground.total, form, self.biases).linear(factors)
        width = m * factors.value.shape[-1]
        w = white.inverse.T @ factors.projections(linear[:width])
        bias = linear[-1] - white.mean @ w.sum(axis=0) if self.biases else np.zeros(w.shape[2])
        made = white.outside(put_together(form, factors))
        if made.sink_value is not None:  # the mean of the tokens counts for them and not for the sink
            value = linear[width : width + m] + white.mean @ w
            made = build(describe(made), {**made.arrays(), "sink_value": value})
        dtype = self.ground.dtype
        return AttentionLayer.from_scores(
            made.astype(dtype), w.astype(dtype), bias.astype(dtype), causal=self.source.visible
        )


def cheapest(problem: PlacedProblem, heads: int) -> np.ndarray:
    """The heads that are left when those whose drop costs least are dropped one by one."""
    kept = np.arange(problem.layer.num_heads)
    if heads < len(kept):
        kept = next(left for left, _ in drop_order(problem.layer, problem.sides.fit) if len(left) == heads)
    return kept


def _of(form: Any, heads: np.ndarray) -> Any:
    """The scores of some heads."""
    return build(describe(form), {name: array[heads] for name, array in form.arrays().items()})


def placed_identity(problem: PlacedProblem) -> dict[str, Any]:
    """What a checkpoint must agree on of the layer and the data."""
    layer = problem.layer
    return {
        "layer": array_hash(*layer.arrays().values(), np.array(repr((describe(layer.form), layer.visible)))),
        "data": problem.sides.fit.fingerprint(),
        "shape": repr(problem.shapes),
    }


def placed_stats(problem: PlacedProblem, state: PlacedState) -> dict[str, Any]:
    """The curve, the sizes of the data, and a few inputs."""
    layer, sides = problem.layer, problem.sides
    sizes = layer.dim, layer.out_dim
    whole = Shape(layer.num_heads, own_width(layer), layer.num_heads).row(*sizes, 0.0)
    rows = [shape.row(*sizes, error) for shape, error in zip(state.shapes, state.errors)]
    shown = None if sides.select.mask is None else sides.select.mask[:INPUTS]
    stats: dict[str, Any] = {
        "curve": [whole, *sorted(rows, key=lambda row: -row["kv_floats"])],
        "source_heads": layer.num_heads,
        "distinct_heads": layer.canonical().num_heads,
        "examples": sum(side.num for side in (sides.fit, sides.select, sides.certify)),
        "sequence_length": sides.fit.x.shape[1],
        "split": {"fit": sides.fit.num, "select": sides.select.num, "certify": sides.certify.num},
        "sample_inputs": SampleInputs(sides.select.x[:INPUTS], shown),
        "support": whitening(sides.fit.x, sides.fit.mask).support,
    }
    if state.shape is not None:
        stats["shape"] = state.shape.row(*sizes, state.error)
    return stats
