"""Frequencies of rotary positions: the base, and the ways in which models stretch it to longer texts.

Without scaling w_j = base^(-2j/r) for the r rotated coordinates of a head. `linear` divides every w_j by a factor. `llama3`
divides those whose wave is longer than the old context, leaves the short ones, and goes smoothly between. `yarn` does the same by the
index j and multiplies the turned queries and keys by a number, which here goes into the scores. Everything is computed in
float64; models keep float32, which moves an angle by 1e-7 of itself.
Can fail: frequencies that depend on the length of the text (dynamic, longrope) are refused, because no layer is one function then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require
from attnlearn.scores._rotation import Rotation

KINDS = ("default", "linear", "llama3", "yarn")


class Frequencies(NamedTuple):
    """The rotation of a head, and the factor on the scores of its rotated coordinates (1 except for YaRN)."""

    rotation: Rotation
    factor: float = 1.0


def frequencies(
    width: int,
    *,
    base: float = 10_000.0,
    rotated: int | None = None,
    scaling: Mapping[str, Any] | None = None,
) -> Frequencies:
    """The rotation of heads of that width whose first `rotated` coordinates turn (all by default).

    `scaling` is a model's `rope_scaling` or `rope_parameters`: its `rope_type` and that type's own entries.

    >>> frequencies(8, base=10_000.0, rotated=4).rotation
    Rotation(frequencies=(1.0, 0.01), still=4)
    """
    rotated = width if rotated is None else rotated
    require(
        0 <= rotated <= width and rotated % 2 == 0, "rotated", f"must be even and at most {width}", rotated
    )
    require(math.isfinite(base) and base > 0, "base", "must be a finite number above 0", base)
    given = dict(scaling or {})
    kind = given.get("rope_type", given.get("type", "default")) or "default"
    require(kind in KINDS, "scaling", f"must be one of {', '.join(KINDS)}", kind)
    plain = base ** -(np.arange(0, rotated, 2) / max(rotated, 1))
    if kind == "default" or not rotated:
        found, factor = plain, 1.0
    elif kind == "linear":
        found, factor = plain / _entry(given, "factor"), 1.0
    elif kind == "llama3":
        found, factor = _llama3(plain, given), 1.0
    else:
        found, factor = _yarn(plain, base, given)
    return Frequencies(Rotation(tuple(found.tolist()), width - rotated), factor**2)


def frequencies_of(config: Mapping[str, Any], layer_type: str | None = None) -> Frequencies:
    """The rotation that a Hugging Face configuration (as a mapping) describes; `layer_type` where layers differ.

    >>> config = {"hidden_size": 32, "num_attention_heads": 4, "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    >>> frequencies_of(config).rotation
    Rotation(frequencies=(1.0, 0.01), still=4)
    """
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if layer_type is not None and isinstance(given.get(layer_type), Mapping):
        given = dict(given[layer_type])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    first = (given.get("rope_theta"), config.get("rope_theta"), config.get("rotary_emb_base"))
    base = next((float(number) for number in first if number is not None), 10_000.0)
    share = (
        given.get("partial_rotary_factor"),
        config.get("partial_rotary_factor"),
        config.get("rotary_pct"),
    )
    share = next((float(number) for number in share if number is not None), 1.0)
    rotated = config.get("rotary_dim") or int(width * share)
    if given.get("original_max_position_embeddings") is None and config.get("max_position_embeddings"):
        given["original_max_position_embeddings"] = config["max_position_embeddings"]
    if given.get("factor") is None and given.get("original_max_position_embeddings"):
        longest = config.get("max_position_embeddings") or given["original_max_position_embeddings"]
        given["factor"] = longest / given["original_max_position_embeddings"]
    return frequencies(int(width), base=base, rotated=rotated, scaling=given)


def _entry(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    good = isinstance(value, (int, float)) and math.isfinite(value) and value > 0
    require(good, "scaling", f"must have a number {name} above 0", value)
    return float(value)  # type: ignore[arg-type]


def _llama3(plain: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, context = (_entry(scaling, name) for name in names)
    waves = context * plain / (2 * math.pi)  # in one old context
    smooth = np.clip((waves - low) / (high - low), 0, 1)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(plain: np.ndarray, base: float, scaling: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    factor, context = _entry(scaling, "factor"), _entry(scaling, "original_max_position_embeddings")
    rotated, truncate = 2 * len(plain), scaling.get("truncate", True)

    def index(turns: float) -> float:
        return rotated * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = index(scaling.get("beta_fast") or 32), index(scaling.get("beta_slow") or 1)
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low or 1e-3), 0, 1)
    return ramp * plain / factor + (1 - ramp) * plain, _yarn_factor(factor, scaling)


def _yarn_factor(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return _entry(scaling, "attention_factor")

    def grown(share: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0

    over, under = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return grown(over) / grown(under) if over and under else grown(1.0)
