"""What transformers' modules put around rotary scores: norms of queries and keys, a soft cap, sinks.

| feature | how it is read |
|---|---|
| QK-norm (Qwen3, Gemma 3, Cohere) | the module's own norm is run on two vectors: they show its gains, whichever way it stores them, and whether it centres |
| soft cap (Gemma 2) | the attribute `attn_logit_softcapping` |
| sinks (GPT-OSS) | the parameter `sinks`, one number for each head |

Can fail: norms over all heads at once (OLMo 2) and norms with a bias are refused by name; a norm after the rotation shows in the comparison
with the module's forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnlearn.convert._refusals import QK_NORM, SINKS, SOFT_CAP, refuse
from attnlearn.scores import Capped, Normalised, Rotary, Rotation, Sinks

NORMS = (("q_norm", "k_norm"), ("query_layernorm", "key_layernorm"))
"""Names under which modules keep the norms of queries and keys."""
LARGE = 2.0**24
"""Entries of the vectors on which a norm is run: no eps is seen beside their squares, and a power of two rounds nowhere in float32."""


class Norm(NamedTuple):
    """A norm of one side: gains (heads or 1, width), eps, and whether it subtracts the mean first."""

    gain: np.ndarray
    eps: float
    centred: bool


def norms_of(module: Any) -> tuple[str, str] | None:
    """The names of the norms that a module has.

    >>> norms_of(object()) is None
    True
    """
    return next(
        (pair for pair in NORMS if all(getattr(module, name, None) is not None for name in pair)), None
    )


def kinds_around(module: Any, inside: dict[str, Any]) -> dict[str, Any]:
    """The description of a module's scores around that of its rotary scores, without reading any weight."""
    _require_all_turned(module, inside["still"])
    if norms_of(module):
        inside = {"kind": Normalised.KIND, "base": inside}
    if getattr(module, "attn_logit_softcapping", None):
        inside = {"kind": Capped.KIND, "cap": float(module.attn_logit_softcapping), "base": inside}
    if getattr(module, "sinks", None) is not None:
        inside = {"kind": Sinks.KIND, "base": inside}
    return inside


def scores_around(
    module: Any,
    sides: Sequence[Any],
    value_bias: np.ndarray,
    rotation: Rotation,
    scale: np.ndarray,
    pairing: str,
) -> Any:
    """The scores of a module from its query, key and their biases; `scale` (width,) is in the order of `rotation`.

    `value_bias` (m, d_out) are the biases of the values through the output projection, which a sink has not.
    """
    query = sides[0]
    names = norms_of(module)
    cap, sinks = getattr(module, "attn_logit_softcapping", None), getattr(module, "sinks", None)
    _require_all_turned(module, rotation.still)
    if names is None:
        found: Any = _rotary(sides, rotation, pairing)
        found.a[:] *= scale
    else:
        one, other = (norm_of(module, name, query.shape[2]) for name in names)
        centred = (one.centred, other.centred) * 2
        base = _rotary([_centred(part, yes) for part, yes in zip(sides, centred)], rotation, pairing)
        order, m = rotation.order(pairing), len(query)
        gains = (np.repeat(norm.gain, m // len(norm.gain), axis=0)[:, order] for norm in (one, other))
        query_gain, key_gain = gains
        found = Normalised(base, query_gain * scale, key_gain, one.eps, other.eps)
    found = Capped(found, float(cap)) if cap else found
    return found if sinks is None else Sinks(found, sinks.detach().cpu().double().numpy(), -value_bias)


def _require_all_turned(module: Any, still: int) -> None:
    """Refuse modules with something around scores of which positions turn a part alone: their constants are seen, and no member has them."""
    features = {
        QK_NORM: norms_of(module) is not None,
        SOFT_CAP: bool(getattr(module, "attn_logit_softcapping", None)),
        SINKS: getattr(module, "sinks", None) is not None,
    }
    for feature, there in features.items():
        if there and still:
            refuse("module", feature, f"{type(module).__name__} turns a part of the coordinates alone")


def _rotary(sides: Sequence[Any], rotation: Rotation, pairing: str) -> Rotary:
    query, key, query_bias, key_bias = sides
    return Rotary.of_factors(query, key, rotation, query_bias=query_bias, key_bias=key_bias, pairing=pairing)


def _centred(part: np.ndarray | None, centred: bool) -> np.ndarray | None:
    """Coordinates (..., width) without their mean, as a LayerNorm sees them."""
    return part if part is None or not centred else part - part.mean(axis=-1, keepdims=True)


def norm_of(module: Any, name: str, width: int) -> Norm:
    """The norm `name` of a module, from what it makes of two vectors."""
    import torch

    from attnlearn.convert._torch import evaluation_copy

    norm, evidence = evaluation_copy(getattr(module, name)), f"{type(module).__name__}.{name}"
    weight = getattr(norm, "weight", None)
    rows = weight.shape[0] if weight is not None and weight.ndim > 1 else 1
    if weight is not None and weight.shape[-1] != width:
        refuse("module", QK_NORM, f"{evidence} is over all heads at once, so no head stands alone")
    signs = torch.ones(rows, width, dtype=torch.float64)
    signs[:, 1::2] = -1
    with torch.no_grad():
        gain, of_ones, of_zero = (
            norm(LARGE * part).double() for part in (signs, torch.ones_like(signs), torch.zeros_like(signs))
        )
    if bool(of_zero.abs().max() > 0):
        refuse("module", QK_NORM, f"{evidence} has a bias")
    eps = next(
        (float(getattr(norm, n)) for n in ("variance_epsilon", "eps", "epsilon") if hasattr(norm, n)), 0.0
    )
    centred = bool(of_ones.abs().max() < of_ones.new_tensor(0.5) * gain.abs().max())
    return Norm((gain * signs).numpy(), eps, centred)
