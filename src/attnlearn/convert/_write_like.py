"""A layer as the tensors of a module that it came from: the module's own names, pairing, scale, norms and biases.

Keys and values are written as shared as the layer has them, which may be fewer than the module has: `repeated` writes them for
as many, and whoever owns the configuration may take the fewer ones instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn.convert._around import norm_of, norms_of
from attnlearn.convert._families import family_of
from attnlearn.convert._positions import conventions_of
from attnlearn.convert._write_positions import to_huggingface


def write_like(
    root: Any, name: str, layer: AttentionLayer, config: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The tensors of the block `name` of `root`, by their names in the block, so that it computes what the layer does.

    What the block has and the layer does not need is zero (biases) or left out (tables). Refused are layers that the block has no place for.
    """
    module = root.get_submodule(name)
    family = family_of(module)
    require(family is not None, "module", "must be a known attention module with positions", name)
    assert family is not None
    options: dict[str, Any] = {}
    if family.positions == "position_embeddings":
        options = conventions_of(root, name, config)
        options["output_bias"] = getattr(getattr(module, family.output), "bias", None) is not None
        options |= _norms(module)
    written = to_huggingface(layer, family.name, **options)
    written.pop("relative_attention_bias.weight", None)  # tables are no unknowns of a smaller layer
    own = {
        key: value for key, value in module.state_dict().items() if key != "relative_attention_bias.weight"
    }
    strange = sorted(set(written) - set(own))
    require(not strange, "layer", f"must have a place in {type(module).__name__}", ", ".join(strange))
    for key in sorted(set(own) - set(written)):
        require(key.endswith(".bias"), "layer", f"must say {key} of {type(module).__name__}", "nothing")
        written[key] = np.zeros(tuple(own[key].shape), layer.dtype)
    return written


def _norms(module: Any) -> dict[str, float]:
    """How the norms of queries and keys store their gains, and their eps."""
    names = norms_of(module)
    if names is None:
        return {}
    norm, weight = (
        norm_of(module, names[0], getattr(module, names[0]).weight.shape[-1]),
        getattr(module, names[0]).weight,
    )
    offset = float(np.median(norm.gain[0] - weight.detach().cpu().double().numpy()))
    return {"norm_offset": round(offset), "norm_eps": norm.eps}


def repeated(
    written: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], width: int
) -> dict[str, np.ndarray]:
    """Keys and values repeated for as many heads as a module of these shapes has; refused where these are not a multiple.

    >>> repeated({"k_proj.weight": np.arange(2.0)[:, None]}, {"k_proj.weight": (4, 1)}, 1)["k_proj.weight"].ravel().tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    found = {}
    for name, part in written.items():
        wanted = shapes[name]
        times, rest = divmod(wanted[0], max(len(part), 1))
        if name.startswith(("k_proj", "v_proj")) and times > 1 and not rest:
            heads = part.reshape(len(part) // width, width, *part.shape[1:])
            part = np.repeat(heads, times, axis=0).reshape(wanted)
        require(part.shape == tuple(wanted), "layer", f"must fit {name} of shape {tuple(wanted)}", part)
        found[name] = part
    return found
