"""Layers with positions as tensors of transformers' modules, by the names of `_families`.

Keys and values are written as shared where they are: heads of a group have the same keys up to their gauge and values in one
space. The order of the heads may change, because models keep the heads of a group together; the function does not.
Can fail: W of a rank above the head width; biases that a family has no place for; coordinates that do not pair up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._calibration import export_tolerance
from attnlearn.scores import Capped, Normalised, Relative, Rotary, Sinks
from attnlearn.scores._grouped import key_groups, with_shared_keys

SEPARATE = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "phi": ("q_proj", "k_proj", "v_proj", "dense"),
    "t5": ("q", "k", "v", "o"),
}
FUSED = {
    "gpt_neox": ("query_key_value", "dense"),
    "modernbert": ("Wqkv", "Wo"),
    "bloom": ("query_key_value", "dense"),
}
KINDS = {"t5": ("relative", "buckets"), "bloom": ("relative", "slope")}


class Convention(NamedTuple):
    """How a module of a rotary family stores what a layer has; see `to_huggingface`."""

    pairing: str
    factor: float
    output_bias: bool
    scale: float
    norm_offset: float
    norm_eps: float


def to_huggingface(
    layer: AttentionLayer,
    family: str = "qkv_proj",
    *,
    pairing: str = "half-split",
    factor: float = 1.0,
    output_bias: bool = True,
    scale: float | None = None,
    norm_offset: float = 0.0,
    norm_eps: float = 1e-6,
    prefix: str = "",
    tolerance: float | None = None,
) -> dict[str, np.ndarray]:
    """State dict of a transformers attention module with positions: the inverse of `from_huggingface` for these families.

    `family` is one of qkv_proj (Llama, Mistral, Qwen2, ...), phi, gpt_neox, modernbert, t5, bloom. The module is to multiply its scores by
    `scale`, by default one over the square root of the head width (T5: it does not). Biases are written when any is not zero; `output_bias`
    False puts that of the output into those of the values, for modules that have no other place (Qwen2). `factor` is that of YaRN's
    `frequencies`. Of normalised queries and keys the gains are written as `q_norm.weight` and `k_norm.weight`, less `norm_offset` (Gemma: 1),
    for norms with `norm_eps`; sinks are written as `sinks`, and a soft cap is a number of the configuration.

    >>> from attnlearn.scores import Rotary, Rotation
    >>> scores = Rotary(*np.random.default_rng(0).standard_normal((2, 2, 7, 4)), Rotation((1.0, 0.1)))
    >>> layer = AttentionLayer.from_scores(scores, AttentionLayer.random(2, 6, rank=4).w, causal=True)
    >>> to_huggingface(layer)["q_proj.weight"].shape
    (8, 6)
    """
    names = [*SEPARATE, *FUSED]
    require(family in names, "family", f"must be one of {', '.join(names)}", family)
    tolerance = export_tolerance(layer.dtype) if tolerance is None else tolerance
    wide = layer.astype(np.float64)
    if family in KINDS:
        state = _relative(wide, family, tolerance)
    else:
        rule = f"must have rotary positions for family {family}"
        require(isinstance(rotary_of(layer.form), Rotary), "layer", rule, layer.form.words())
        width = rotary_of(layer.form).rotation.width
        times = float(width**-0.5) if scale is None else scale
        wanted = Convention(pairing, factor, output_bias, times, norm_offset, norm_eps)
        state = _rotary(wide, family, wanted, tolerance)
    return {f"{prefix}{name}": np.array(array, layer.dtype, order="C") for name, array in state.items()}


def rotary_of(form: Any) -> Any:
    """The rotary scores inside a soft cap, sinks and norms; other scores as they are."""
    form = keys_of(form)
    return form.base if isinstance(form, Normalised) else form


def keys_of(form: Any) -> Any:
    """The scores inside a soft cap and sinks, which change no key."""
    while isinstance(form, Capped | Sinks):
        form = form.base
    return form


def _rotary(
    layer: AttentionLayer, family: str, wanted: Convention, tolerance: float
) -> dict[str, np.ndarray]:
    groups = value_groups(layer, tolerance) if family in SEPARATE else tuple(range(layer.num_heads))
    order = sorted(range(layer.num_heads), key=lambda head: groups[head])
    layer, groups = layer.chosen(order), tuple(groups[head] for head in order)
    rotation = rotary_of(layer.form).rotation
    width, places = rotation.width, np.argsort(rotation.order(wanted.pairing))
    turned = np.arange(width) < 2 * rotation.pairs
    times = wanted.scale * np.where(turned, wanted.factor, 1.0)
    scores, state = _inside(layer.form, family, wanted, times, groups, tolerance)
    query, key = scores.a[..., places], scores.b[..., places]
    first = [groups.index(group) for group in range(max(groups) + 1)]
    value, output = _values(layer, groups, width, tolerance)
    arrays = [query[:, :-1], key[first, :-1], value]
    values, rest = np.zeros((len(first), width)), layer.output_bias
    if layer.form.sink_value is not None:
        values, rest = _behind_sinks(output, groups, layer, tolerance)
    elif not wanted.output_bias:
        values, rest = _in_values(output, groups, rest, tolerance), np.zeros_like(rest)
    biases = [query[:, -1], key[first, -1], values]
    return state | _named(family, arrays, biases, output, rest, wanted.output_bias)


def _inside(
    form: Any, family: str, wanted: Convention, times: np.ndarray, groups: tuple[int, ...], tolerance: float
) -> tuple[Rotary, dict[str, np.ndarray]]:
    """Factors with shared keys as a module projects them, which multiplies by `times`; and the tensors of what is around them."""
    state = {}
    if not isinstance(form, Rotary):
        require(
            family == "qkv_proj",
            "layer",
            f"must have nothing around its scores for family {family}",
            form.words(),
        )
    if isinstance(form, Sinks):
        state["sinks"] = form.own["sink"]
    form = keys_of(form)
    if not isinstance(form, Normalised):
        scores = with_shared_keys(form, groups)
        return Rotary(scores.a / times, scores.b, scores.rotation), state
    form = form.canonical()  # where heads of a group have equal keys
    places = np.argsort(form.base.rotation.order(wanted.pairing))
    gains = list(form.own.values())
    for name, gain in zip(("q_norm", "k_norm"), (gains[0] / times, gains[1])):
        apart = float(np.abs(gain - gain[0]).max())
        rule = f"must have the gains of one norm for all heads for family {family}"
        require(apart <= np.sqrt(tolerance) * np.abs(gain).max(), "layer", rule, f"{apart:.1e} apart")
        state[f"{name}.weight"] = gain[0][places] - wanted.norm_offset
    a, b = (
        factor * np.sqrt(np.divide(wanted.norm_eps, eps, out=np.ones_like(eps), where=eps > 0))[:, None, None]
        for factor, eps in zip((form.base.a, form.base.b), form.eps)
    )
    return Rotary(a, b, form.base.rotation), state


def _relative(layer: AttentionLayer, family: str, tolerance: float) -> dict[str, np.ndarray]:
    kind = layer.form.offsets.kind if isinstance(layer.form, Relative) else type(layer.form).__name__
    require(
        kind == KINDS[family][1], "layer", f"must have {KINDS[family][1]} by offset for family {family}", kind
    )
    plain = AttentionLayer(layer.form.base.theta(), layer.w, layer.form.base.c, layer.output_bias)
    factors = plain.factors(None, tolerance)
    width = factors.query.shape[2]
    if family == "bloom":
        require(
            layer.dim % layer.num_heads == 0, "layer", "must have heads that divide its dimension", layer.dim
        )
        wanted = layer.dim // layer.num_heads
        require(width <= wanted, "layer", f"must have heads of rank at most {wanted} for family bloom", width)
        factors, width = plain.factors(wanted, tolerance), wanted
    root = np.sqrt(width) if family == "bloom" else 1.0
    biases = [factors.query_bias * root, np.zeros_like(factors.query_bias), np.zeros_like(factors.query_bias)]
    state = _named(
        family, [factors.query * root, factors.key, factors.value], biases, factors.output, layer.output_bias
    )
    return state if family == "bloom" else {**state, "relative_attention_bias.weight": layer.form.table.T}


def _named(
    family: str,
    arrays: list[np.ndarray],
    biases: list[np.ndarray],
    output: np.ndarray,
    output_bias: np.ndarray,
    with_output_bias: bool = True,
) -> dict[str, np.ndarray]:
    """Tensors (out, in) under the names of a family; arrays are (heads, d, width), output (heads, width, o)."""
    flat = [array.transpose(0, 2, 1) for array in arrays]
    out = output.reshape(-1, output.shape[2]).T
    some = any(bias.any() for bias in (*biases, output_bias))
    require(not some or family != "t5", "layer", "must have no biases for family t5", "biases")
    if family in SEPARATE:
        names = SEPARATE[family]
        state = {f"{name}.weight": part.reshape(-1, part.shape[2]) for name, part in zip(names, flat)}
        state |= {f"{name}.bias": bias.ravel() for name, bias in zip(names, biases)} if some else {}
    else:
        names = FUSED[family]
        axis = 0 if family == "modernbert" else 1
        joined = np.stack(flat, axis=axis)  # (3, heads, width, d) or (heads, 3, width, d)
        state = {f"{names[0]}.weight": joined.reshape(-1, joined.shape[-1])}
        state |= (
            {f"{names[0]}.bias": np.stack(biases, axis=axis).ravel()} if some or family == "bloom" else {}
        )
    state[f"{names[-1]}.weight"] = out
    written = with_output_bias and (some or family == "bloom")
    return state | ({f"{names[-1]}.bias": output_bias} if written else {})


def _in_values(output: np.ndarray, groups: tuple[int, ...], bias: np.ndarray, tolerance: float) -> np.ndarray:
    """Value biases (groups, width) whose sum through the outputs is the bias."""
    number = max(groups) + 1
    maps = np.stack([output[[g == group for g in groups]].sum(axis=0) for group in range(number)])
    flat = maps.reshape(-1, maps.shape[2])
    found = np.linalg.lstsq(flat.T, bias, rcond=None)[0]
    lost = float(np.linalg.norm(flat.T @ found - bias))
    rule = "must have an output bias that value biases can make (or pass output_bias=True)"
    require(lost <= np.sqrt(tolerance) * float(np.linalg.norm(bias)), "layer", rule, f"{lost:.1e} left")
    return found.reshape(number, -1)


def _behind_sinks(
    output: np.ndarray, groups: tuple[int, ...], layer: AttentionLayer, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Value biases (groups, width) that the sinks take back, and what of the output bias is not theirs."""
    sinks, found = layer.form.sink_value, []
    for group in range(max(groups) + 1):
        members = [head for head, own in enumerate(groups) if own == group]
        maps = np.concatenate(output[members], axis=1)
        wanted = -np.concatenate(sinks[members])
        found.append(np.linalg.lstsq(maps.T, wanted, rcond=None)[0])
        lost = float(np.linalg.norm(found[-1] @ maps - wanted))
        rule = "must have sinks whose values are those of a value bias"
        require(lost <= np.sqrt(tolerance) * float(np.linalg.norm(wanted)), "layer", rule, f"{lost:.1e} left")
    return np.stack(found), layer.output_bias + sinks.sum(axis=0)


def value_groups(layer: AttentionLayer, tolerance: float) -> tuple[int, ...]:
    """The group of every head whose keys and values are shared; every head alone unless all groups are of one size.

    >>> from attnlearn.scores import Rotary, Rotation
    >>> scores = Rotary(*np.random.default_rng(0).standard_normal((2, 2, 7, 4)), Rotation((1.0, 0.1)))
    >>> value_groups(AttentionLayer.from_scores(scores, np.ones((2, 6, 6))), 1e-9)
    (0, 1)
    """
    groups = key_groups(keys_of(layer.form), np.sqrt(tolerance))
    alone = tuple(range(layer.num_heads))
    sizes = np.bincount(groups)
    if len(set(sizes.tolist())) > 1:
        return alone
    for group in range(len(sizes)):
        members = [head for head in alone if groups[head] == group]
        joined = np.concatenate(layer.w[members], axis=1)
        values = np.linalg.svd(joined, compute_uv=False)
        width = rotary_of(layer.form).rotation.width
        if len(values) > width and values[width] > np.sqrt(tolerance) * values[0]:
            return alone
    return groups


def _values(
    layer: AttentionLayer, groups: tuple[int, ...], width: int, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values (groups, d, width) and outputs (heads, width, o) with W_i = value output."""
    values, outputs = [], []
    for group in range(max(groups) + 1):
        members = [head for head, own in enumerate(groups) if own == group]
        joined = np.concatenate(layer.w[members], axis=1)
        u, s, vt = np.linalg.svd(joined, full_matrices=False)
        lost = float(np.linalg.norm(s[width:])) / max(float(np.linalg.norm(s)), np.finfo(float).tiny)
        limit = max(tolerance, np.sqrt(tolerance) if len(members) > 1 else 0.0)
        require(
            lost <= limit,
            "layer",
            f"must have W of rank at most the head width {width}",
            f"{lost:.1e} beyond",
        )
        missing = max(0, width - len(s))
        root = np.sqrt(s[:width])
        values.append(np.pad(u[:, :width] * root, ((0, 0), (0, missing))))
        out = np.pad(root[:, None] * vt[:width], ((0, missing), (0, 0)))
        outputs += np.split(out, len(members), axis=1)
    return np.stack(values), np.stack(outputs)
