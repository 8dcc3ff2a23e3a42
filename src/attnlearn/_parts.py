"""The arrays of a layer: checked against each other, frozen, and taken apart and put together for JAX."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._errors import require
from attnlearn._precision import common_dtype, require_finite, to_numpy
from attnlearn.scores import Visible, build, describe, words
from attnlearn.scores._kinds import array_names

if TYPE_CHECKING:
    from attnlearn._base import Layer


def frozen(form: Any, w: Any, output_bias: Any | None) -> tuple[Any, np.ndarray, np.ndarray]:
    """Scores, W and b as read-only copies of one dtype; an output bias that is left out is zero."""
    arrays = {name: to_numpy(array, name) for name, array in form.arrays().items()}
    first, m, d = next(iter(arrays)), form.heads, form.dim
    w = to_numpy(w, "w")
    rule = f"must have shape ({m}, {d}, d_out) to go with {first}"
    require(w.ndim == 3 and w.shape[:2] == (m, d) and w.shape[2] >= 1, "w", rule, w)
    o = w.shape[2]
    rule = f"must have shape ({m}, {o}) to go with w"
    require(form.sink_value is None or form.sink_value.shape == (m, o), "sink_value", rule, form.sink_value)
    none = np.zeros(o, arrays[first].dtype)
    output_bias = none if output_bias is None else to_numpy(output_bias, "output_bias")
    require(output_bias.shape == (o,), "output_bias", f"must have shape ({o},)", output_bias)
    given = {**arrays, "w": w, "output_bias": output_bias}
    dtype = common_dtype(given)
    for name, array in given.items():
        require_finite(array, name)
        given[name] = np.array(array, dtype, order="C")
        given[name].flags.writeable = False
    own, bias = given.pop("w"), given.pop("output_bias")
    return build(describe(form), given), own, bias


def taken_apart(layer: Layer) -> tuple[tuple[Any, ...], tuple[Visible, str]]:
    """Leaves and a hashable static part. Leaves may be tracers later, so putting them together does not check them."""
    leaves = layer.parameters if layer.plain_scores else tuple(layer.arrays().values())
    return leaves, (layer.visible, json.dumps(describe(layer.form)))


def put_together(static: tuple[Visible, str], leaves: Any) -> tuple[Any, Any, Any, Visible]:
    """Scores, W, b and mask: the inverse of `taken_apart`."""
    visible, description = static[0], json.loads(static[1])
    kind = description["kind"]
    names = Parameters._fields if kind == "bilinear" else (*array_names(description), "w", "output_bias")
    named = dict(zip(names, leaves, strict=True))
    w, output_bias = named.pop("w"), named.pop("output_bias")
    return build(description, named), w, output_bias, visible


def is_plain(layer: Layer) -> bool:
    """Whether a layer has no positions, window or prefix."""
    return layer.plain_scores and layer.visible == Visible(layer.causal)


def require_plain(layer: Layer, name: str) -> None:
    """Refuse a layer with positions, a window or a prefix where only plain attention is understood."""
    rule = "must have no positions, window or prefix here"
    require(layer.plain_scores, name, rule, words(layer.form))
    require(layer.visible == Visible(layer.causal), name, rule, f"{layer.visible}")
