"""What compression works on, what it knows between its phases, and how an error is measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._layer import AttentionLayer
from attnlearn.compression._shape import Shape, Wanted
from attnlearn.compression._sides import Sides
from attnlearn.solve._batch import Batch
from attnlearn.solve._regress import total_squares


@dataclass(frozen=True)
class Problem:
    """What is compressed, on what, how far, and in how many steps."""

    layer: AttentionLayer
    """The source in canonical form: redundant heads are merged already."""
    sides: Sides
    num_heads: int
    wanted: Wanted
    steps: int
    steps_on_the_way: int
    shape_steps: int


@dataclass(frozen=True)
class State:
    """The layer reached last, the best one that is small enough, and the errors so far.

    `heads` and `errors` are those of the phases that remove heads, `shapes` and `shape_errors` those of the phases that fit a
    shape. `shape` is the answer's, None as long as the answer is not held to one. `fitted` says that its fit is finished.
    """

    theta: Any
    w: Any
    query_bias: Any
    output_bias: Any
    answer_theta: Any = None
    answer_w: Any = None
    answer_query_bias: Any = None
    answer_output_bias: Any = None
    answer_error: float = np.inf
    heads: tuple[int, ...] = ()
    errors: tuple[float, ...] = ()
    shapes: tuple[Shape, ...] = ()
    shape_errors: tuple[float, ...] = ()
    shape: Shape | None = None
    fitted: bool = False

    def layer(self, causal: bool) -> AttentionLayer:
        """The layer reached last."""
        return AttentionLayer(self.theta, self.w, self.query_bias, self.output_bias, causal=causal)

    def answer(self, causal: bool) -> AttentionLayer | None:
        """The best layer that is small enough, once there is one."""
        if self.answer_theta is None:
            return None
        return AttentionLayer(
            self.answer_theta,
            self.answer_w,
            self.answer_query_bias,
            self.answer_output_bias,
            causal=causal,
        )

    def answered(self, layer: AttentionLayer, error: float, shape: Shape | None = None) -> State:
        """The state with this answer."""
        kept = {f"answer_{name}": value for name, value in layer.parameters._asdict().items()}
        return dataclasses.replace(self, answer_error=float(error), shape=shape, **kept)


def select_error(layer: AttentionLayer, held: Batch) -> float:
    """‖F - y‖ over the spread of y about its mean, on these examples."""
    y = held.y if held.mask is None else held.y * held.mask[..., None]
    difference = (layer(held.x, held.mask) - y).astype(np.float64)
    return float(np.sqrt(np.sum(difference**2) / max(total_squares(held.y, held.mask), 1e-300)))


def padded(layer: AttentionLayer, num_heads: int) -> AttentionLayer:
    """The layer with heads that do nothing added, up to `num_heads`."""
    missing = num_heads - layer.num_heads
    if missing <= 0:
        return layer

    def widen(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    return layer.replace(theta=widen(layer.theta), w=widen(layer.w), query_bias=widen(layer.query_bias))
