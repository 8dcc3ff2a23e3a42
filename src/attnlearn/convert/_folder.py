"""A saved Hugging Face model: a folder with config.json and its tensors, in one safetensors file or in several with an index.

Tensors are read one block at a time. Where the configuration says positions, what the block computes is not in its tensors: its module is made by
transformers, without memory for the rest of the model, filled with the tensors of the block, and read as any module is (`_positions`),
with the comparison with its own forward. Code that comes with a model is never run.
Can fail: transformers is not installed or does not know the model; tensors that it would rename while loading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import one_line, require
from attnlearn._files import existing_file, read_json, read_tensor_shapes, read_tensors
from attnlearn._layer import AttentionLayer
from attnlearn.convert._layouts import Found
from attnlearn.convert._pickles import is_pickle, read_pickle
from attnlearn.convert._refusals import refuse_config

CONFIG_LIMIT, INDEX_LIMIT = 2**20, 2**26
"""Bytes of a configuration, a page of JSON, and of an index, one line for each tensor of a model."""
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Source(NamedTuple):
    """Tensors by name, read when asked for; the metadata of their file and the configuration beside it."""

    path: Path
    names: list[str]
    read: Callable[[Sequence[str]], Mapping[str, Any]]
    metadata: dict[str, str]
    config: dict[str, Any]

    @property
    def positional(self) -> bool:
        """Whether the configuration says something that plain attention has not, positions first of all."""
        try:
            refuse_config("path", self.config)
        except ValueError:
            return True
        return False


def open_source(path: Any) -> Source:
    """A file of tensors, or the folder of a saved model."""
    target = Path(path)
    if target.is_dir() and (target / "config.json").is_file():
        if (target / INDEX).is_file():
            return _sharded(target)
        target = next((target / name for name in WEIGHTS if (target / name).is_file()), target)
    target = existing_file(target)
    config = _config_beside(target)
    if is_pickle(target):
        tensors = read_pickle(target)
        return Source(target, list(tensors), lambda names: {n: tensors[n] for n in names}, {}, config)
    shapes, metadata = read_tensor_shapes(target)
    return Source(target, list(shapes), lambda names: read_tensors(target, names)[0], metadata, config)


def _sharded(folder: Path) -> Source:
    """A model whose index says in which file each tensor is; only files of the folder itself are read."""
    index = read_json(folder / INDEX, INDEX_LIMIT)
    where = index.get("weight_map") if isinstance(index, dict) else None
    good = isinstance(where, dict) and all(
        isinstance(name, str) and isinstance(file, str) and Path(file).name == file
        for name, file in where.items()
    )
    require(
        good,
        "path",
        "must have an index that names a file of the folder for each tensor",
        str(folder / INDEX),
    )
    places: dict[str, str] = dict(where)  # type: ignore[arg-type]

    def read(names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in sorted({places[name] for name in names}):
            own = [name for name in names if places[name] == file]
            found |= read_tensors(folder / file, own)[0]
        return found

    return Source(folder, list(places), read, {}, _config_beside(folder / "model.safetensors"))


def _config_beside(path: Path) -> dict[str, Any]:
    """Hugging Face's config.json beside `model*.safetensors` or `pytorch_model*.bin`; other files have none."""
    beside = path.parent / "config.json"
    if not path.name.startswith(("model", "pytorch_model")) or not beside.is_file():
        return {}
    try:
        config = read_json(beside, CONFIG_LIMIT)
    except ValueError as error:
        raise ValueError(f"path: must have a valid config.json beside it, got {beside} ({error})") from error
    require(isinstance(config, dict), "path", "must have a config.json that is an object", str(beside))
    return config


def layer_with_positions(
    source: Source, prefix: str | None, floats: Callable[[Sequence[str]], Mapping[str, np.ndarray]]
) -> AttentionLayer:
    """The layer of one block of a model whose configuration says positions; `floats` reads tensors as numbers."""
    from attnlearn.convert._huggingface import block_with_positions, from_huggingface
    from attnlearn.convert._positions import positional_blocks, table_owner

    model = _empty_model(source)
    blocks = positional_blocks(model, prefix)
    if not blocks:
        every = positional_blocks(model, None)
        if not every:  # what its positions are is said by name
            refuse_config("path", source.config)
        shown = one_line(", ".join(list(every)[:12]), 1000)
        kind = type(model).__name__
        raise ValueError(
            f"prefix: must name an attention block with positions of {kind} ({shown}), got {prefix!r}"
        )
    name = block_with_positions(blocks, prefix)
    owner = table_owner(model, name)  # T5 keeps one table of positions, in its first block
    places = {name} if owner is None else {name, owner}
    wanted = [
        f"{place}.{part}" for place in sorted(places) for part in model.get_submodule(place).state_dict()
    ]
    _fill(model, {part: _stored(part, source, model.base_model_prefix) for part in wanted}, floats)
    return from_huggingface(model, prefix=name)


def _empty_model(source: Source) -> Any:
    """The model of a configuration, made by transformers without memory for its weights."""
    folder = source.path if source.path.is_dir() else source.path.parent
    try:
        import torch
        import transformers
    except ImportError as error:
        said = source.config.get("model_type")
        raise ValueError(
            "path: must be read with torch and transformers installed, which know the positions of its model, got "
            f"model_type {said!r}"
        ) from error
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        named = (getattr(transformers, str(name), None) for name in source.config.get("architectures") or [])
        kind = next((one for one in named if one is not None), None)
        with torch.device("meta"):
            return kind(config) if kind is not None else transformers.AutoModel.from_config(config)
    except Exception as error:  # whatever a configuration that it does not know ends in
        raise ValueError(
            f"path: must have a config.json that transformers knows, got {folder} ({one_line(str(error), 200)})"
        ) from error


def _stored(name: str, source: Source, base: str) -> str:
    """The name in the file of a tensor of the model: models with a head have a base prefix that others have not."""
    there = set(source.names)
    options = (name, f"{base}.{name}", name.removeprefix(f"{base}."))
    found = next((option for option in options if option in there), None)
    require(found is not None, "path", f"must hold the tensor {name}", str(source.path))
    return str(found)


def _fill(model: Any, wanted: Mapping[str, str], floats: Callable[..., Mapping[str, np.ndarray]]) -> None:
    """Put tensors of the file into the modules that want them."""
    import torch

    arrays = floats(list(wanted.values()))
    for name, stored in wanted.items():
        place, _, own = name.rpartition(".")
        tensor = torch.from_numpy(np.array(arrays[stored]))
        expected = model.get_submodule(place).get_parameter(own).shape
        rule = f"must hold {name} of shape {tuple(expected)}"
        require(tuple(expected) == tuple(tensor.shape), "path", rule, tuple(tensor.shape))
        model.get_submodule(place).load_state_dict({own: tensor}, assign=True, strict=False)


def refuse_bare(source: Source, found: Found) -> None:
    """Refuse a q_proj block out of a whole model about which no configuration says whether its heads have positions."""
    silent = source.metadata.get("format", "pt") == "pt" and "model_type" not in source.config
    rotary = found.layout.name == "qkv_proj" and found.names["output.weight"].endswith("o_proj.weight")
    if rotary and silent and not all(name.startswith(found.prefix) for name in source.names):
        rule = (
            "must lie beside its config.json, which says the positions of q_proj models (or give the folder)"
        )
        raise ValueError(f"path: {rule}, got {source.path} alone")
