"""torch checkpoints: read by torch's restricted unpickler, which builds tensors and nothing else.

A checkpoint is a zip archive, or an older stream, and may lie: a member may be deflated a thousandfold, a tensor may have
strides that repeat one number a billion times, or claim a storage that the file does not hold. The archive is measured
before torch reads it, and every tensor before it is used; a checkpoint never grows beyond the size of its file.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from attnlearn._errors import require
from attnlearn._memory import require_room


def is_pickle(path: Path) -> bool:
    """Whether a file is a torch checkpoint by its name or its first bytes."""
    with path.open("rb") as handle:
        start = handle.read(9)
    # A safetensors header of 128, 384, ... bytes also begins with the byte 0x80; its ninth byte opens the JSON.
    header = start[8:] == b"{" and 8 + int.from_bytes(start[:8], "little") <= path.stat().st_size
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl") or start[:4] == b"PK\3\4":
        return True
    return start[:1] == b"\x80" and not header


def read_pickle(path: Path) -> dict[str, Any]:
    """The tensors of a torch checkpoint by name."""
    if path.suffix == ".npz":  # a zip archive too
        raise ValueError(f"path: must be a file with weights, got {path}, which holds arrays of NumPy")
    way = "save it with safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')"
    try:
        import torch
    except ImportError:
        raise ValueError(f"path: must be safetensors, got the pickle {path} ({way})") from None
    size = path.stat().st_size
    require_room(size, "path", "its tensors grow")
    _require_plain(path, size)
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds, and each of them means the same here
        raise ValueError(
            f"path: must be safetensors, got the pickle {path}, which torch refuses to read with weights_only=True"
        ) from error
    for wrapper in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    valid = isinstance(state, dict) and all(isinstance(key, str) for key in state)
    require(valid, "path", "must hold a state dict of tensors", type(state).__name__)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        _require_dense(name, tensor, size)
    return tensors


def _require_plain(path: Path, size: int) -> None:
    """Refuse an archive whose members are packed or overlap: torch writes neither."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile raises many kinds, and each of them means the same here
        raise ValueError(f"path: must be a whole torch checkpoint, got {path}") from error
    packed = [info.filename for info in members if info.compress_type != zipfile.ZIP_STORED]
    require(not packed, "path", "must be a torch checkpoint with members that are not compressed", packed[:1])
    claimed = sum(info.file_size for info in members)
    require(claimed <= size, "path", f"must not claim more than the {size} bytes it has", claimed)


def _require_dense(name: str, tensor: Any, size: int) -> None:
    """Refuse a tensor that is not plain numbers, or that shows one number of its file in several places."""
    import torch

    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    require(plain, name, "must be a plain tensor on the CPU", f"{tensor.layout}, {tensor.device}")
    held = tensor.numel() * tensor.element_size()
    require(held <= size, name, f"must not hold more bytes than its file ({size})", held)
    reach = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape)):
        if length > 1:
            require(stride > reach, name, "must not have strides that overlap", tuple(tensor.stride()))
            reach += (length - 1) * stride
