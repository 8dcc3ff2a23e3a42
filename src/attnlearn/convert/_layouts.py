"""The table of layouts, and finding one among the names of a state.

A layout names its tensors relative to a prefix ("encoder.layer.3.attention."). Recognition is by names alone,
so nothing is read until one block is chosen; an incomplete block is an error that says what is missing, and
several blocks are listed for the caller to choose from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attnlearn._errors import one_line
from attnlearn.convert._refusals import refuse_names


class Layout(NamedTuple):
    """One way to name and store the tensors of an attention block."""

    name: str
    tensors: Mapping[str, tuple[str, ...]]  # role -> the names it may have after the prefix
    required: tuple[str, ...]
    ignored: str = r"^$"  # names in the block that are not part of attention (norms, masks)
    stored: str = "(out, in)"


class Found(NamedTuple):
    """A complete attention block in a state."""

    layout: Layout
    prefix: str
    names: dict[str, str]  # role -> full name

    def __str__(self) -> str:
        return f"{self.prefix.rstrip('.') or '(top level)'} ({self.layout.name})"


CORES = {"bert": "self", "vit": "attention"}
"""Where a block keeps the module that sees tokens and mask and computes the scores, when that is not the block itself."""

_WEIGHTS = tuple(f"{part}.weight" for part in ("query", "key", "value", "output"))
_BIASED = (*_WEIGHTS, "query.bias", "value.bias", "output.bias")


def _linear(query: str, key: str, value: str, *outputs: str) -> dict[str, tuple[str, ...]]:
    modules = {"query": (query,), "key": (key,), "value": (value,), "output": outputs}
    return {
        f"{part}.{kind}": tuple(f"{name}.{kind}" for name in names)
        for part, names in modules.items()
        for kind in ("weight", "bias")
    }


_NORM = r"(^|\.)LayerNorm\.(weight|bias)$"
_LENS = {
    "query.weight": ("W_Q",),
    "key.weight": ("W_K", "_W_K"),
    "value.weight": ("W_V", "_W_V"),
    "output.weight": ("W_O",),
    "query.bias": ("b_Q",),
    "key.bias": ("b_K", "_b_K"),
    "value.bias": ("b_V", "_b_V"),
    "output.bias": ("b_O",),
}
_PLAIN = {
    f"{part}.{kind}": (f"{kind[0]}{part[0]}",)
    for part in ("query", "key", "value", "output")
    for kind in ("weight", "bias")
}
_FUSED = ("in.weight", "output.weight")

LAYOUTS = (
    Layout("bert", _linear("self.query", "self.key", "self.value", "output.dense"), _BIASED, _NORM),
    Layout("vit", _linear("attention.query", "attention.key", "attention.value", "output.dense"), _WEIGHTS),
    Layout("albert", _linear("query", "key", "value", "dense"), _BIASED, _NORM),
    Layout("qkv_proj", _linear("q_proj", "k_proj", "v_proj", "o_proj", "out_proj"), _WEIGHTS),
    Layout("distilbert", _linear("q_lin", "k_lin", "v_lin", "out_lin"), _WEIGHTS),
    Layout(
        "gpt2",
        {
            "in.weight": ("c_attn.weight",),
            "in.bias": ("c_attn.bias",),
            "output.weight": ("c_proj.weight",),
            "output.bias": ("c_proj.bias",),
        },
        (*_FUSED, "in.bias", "output.bias"),
        r"^(bias|masked_bias)$",
        "(in, 3 out), q then k then v",
    ),
    Layout(
        "torch",
        {
            "in.weight": ("in_proj_weight",),
            "in.bias": ("in_proj_bias",),
            "output.weight": ("out_proj.weight",),
            "output.bias": ("out_proj.bias",),
        },
        _FUSED,
        stored="(3 out, in), q then k then v",
    ),
    Layout("transformer_lens", _LENS, _BIASED, r"^(mask|IGNORE)$", "(head, in, out)"),
    Layout("qkvo", _PLAIN, _WEIGHTS, stored="(head, in, out)"),
)


def find_blocks(names: Iterable[str]) -> tuple[list[Found], list[str]]:
    """Every complete attention block among `names`, and one line for each incomplete one."""
    known = set(names)
    complete: list[Found] = []
    broken: dict[str, str] = {}
    for layout in LAYOUTS:
        for anchor in sorted(known):
            prefix = _prefix(anchor, layout.tensors[layout.required[0]])
            if prefix is None:
                continue
            roles = {role: _first(known, prefix, options) for role, options in layout.tensors.items()}
            missing = [role for role in layout.required if roles[role] is None]
            if not missing:
                complete.append(
                    Found(layout, prefix, {role: name for role, name in roles.items() if name is not None})
                )
            else:
                absent = " or ".join(layout.tensors[missing[0]])
                broken.setdefault(
                    anchor, f"{layout.name} block {prefix.rstrip('.') or '(top level)'} without {absent}"
                )
    claimed = {name for found in complete for name in found.names.values()}
    return complete, [text for anchor, text in broken.items() if anchor not in claimed]


def choose_block(names: Sequence[str], prefix: str | None, parameter: str) -> Found:
    """The one attention block among `names` (below `prefix`, when given); otherwise a list of what is there."""
    complete, broken = find_blocks(names)
    if prefix is not None:
        stem = prefix.rstrip(".")
        inside = [
            b for b in complete if b.prefix == f"{stem}." or b.prefix.startswith(f"{stem}.") or not stem
        ]
        if not inside and complete:
            raise ValueError(f"prefix: must name one of {_listing(complete)}, got {prefix!r}")
        complete = inside
    if len(complete) == 1:
        _refuse_strangers(complete[0], names, parameter)
        return complete[0]
    if complete:
        what = f"choose with prefix= one of {_listing(complete)}"
        raise ValueError(
            f"{parameter}: must hold one attention block, got {len(complete)} ({what})"
            if prefix is None
            else f"prefix: must name one attention block, got {prefix!r}, which matches {_listing(complete)}"
        )
    if broken:
        raise ValueError(
            f"{parameter}: must hold every tensor of a block, got {one_line('; '.join(broken[:3]))}"
        )
    refuse_names(parameter, [], names)
    kinds = ", ".join(layout.name for layout in LAYOUTS)
    found = ", ".join(sorted(names)[:6]) + (", ..." if len(names) > 6 else "")
    raise ValueError(
        f"{parameter}: must hold an attention block in a known layout ({kinds}), got {one_line(found) or 'nothing'}"
    )


def _refuse_strangers(found: Found, names: Sequence[str], parameter: str) -> None:
    """Refuse tensors in the block that the layout does not know: they may change what the block computes."""
    inside = [name for name in names if name.startswith(found.prefix)]
    own = set(found.names.values())
    refuse_names(parameter, inside, [name for name in names if name not in own])
    for name in inside:
        if name not in own and not re.search(found.layout.ignored, name[len(found.prefix) :]):
            raise ValueError(
                f"{parameter}: must hold only the tensors of a {found.layout.name} block, got the unknown {one_line(name, 200)}"
            )


def _prefix(name: str, options: tuple[str, ...]) -> str | None:
    for option in options:
        if name == option or name.endswith(f".{option}"):
            return name[: len(name) - len(option)]
    return None


def _first(known: set[str], prefix: str, options: tuple[str, ...]) -> str | None:
    return next((prefix + option for option in options if prefix + option in known), None)


def _listing(blocks: Sequence[Found], limit: int = 12) -> str:
    text = one_line(", ".join(str(block) for block in blocks[:limit]), 1000)
    return text if len(blocks) <= limit else f"{text}, ... ({len(blocks)} in all)"
