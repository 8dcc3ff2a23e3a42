"""Sources: what an `Oracle` wraps. Here those of this process: a layer, a torch module, any callable.

A source answers a batch and says what it is: `label` for people, `identity` for the cache (neither with
secrets), `dim` and `out_dim` where known, and `accepted(x)`: the nearest tokens that reach the source without
being rounded on the way, so that the analysis and the oracle look at the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._types import Outputs, Tokens
from attnlearn.scores import describe


class Source(Protocol):
    """What every source offers."""

    label: str
    identity: str

    @property
    def dim(self) -> int | None:
        """Token dimension, None where the source does not say."""
        ...

    @property
    def out_dim(self) -> int | None:
        """Output dimension, None where the source does not say."""
        ...

    def open(self) -> None:
        """Make sure that the source is there and has said what it is."""
        ...

    def limit_time(self, seconds: float) -> bool:
        """Bound every call by `seconds`; False if the source cannot do that itself."""
        ...

    def accepted(self, x: Tokens) -> Tokens:
        """The nearest tokens the source can be asked, in the dtype of `x`."""
        ...

    def ask(self, x: Tokens) -> Outputs:
        """The answers to a batch, in the source's own dtype."""
        ...

    def close(self) -> None:
        """Release processes and connections."""
        ...

    # Optional: `secrets() -> tuple[str, ...]`, what no message may show.


def through(x: np.ndarray, dtype: Any) -> np.ndarray:
    """`x` rounded to `dtype`, in its own dtype.

    >>> through(np.array([0.1]), np.float32).tolist() == [float(np.float32(0.1))]
    True
    """
    return x.astype(dtype).astype(x.dtype)


class _Here:
    """A source of this process: there is nothing to open or to close."""

    dim: int | None = None
    out_dim: int | None = None

    def open(self) -> None:
        """Nothing to open."""

    def limit_time(self, seconds: float) -> bool:
        """A function cannot be stopped from inside its own thread."""
        return False

    def close(self) -> None:
        """Nothing to release."""


class CallableSource(_Here):
    """A function from tokens (n, k, d) to outputs (n, k, d_out); its attribute `dim`, if it has one, is d.

    >>> CallableSource(np.sin).ask(np.zeros((1, 2, 3))).shape
    (1, 2, 3)
    """

    def __init__(self, function: Callable[[Any], Any], name: str | None = None) -> None:
        self._function = function
        kind = function if hasattr(function, "__qualname__") else type(function)
        module = getattr(kind, "__module__", None) or "numpy"
        self.label = name or f"{module}.{getattr(kind, '__qualname__', type(function).__name__)}"
        self.identity = f"callable:{self.label}"
        known = getattr(function, "dim", None)
        self.dim = known if isinstance(known, int) else None

    def accepted(self, x: Tokens) -> Tokens:
        """Every float is accepted."""
        return x

    def ask(self, x: Tokens) -> Any:
        """Call the function on a copy, which it may change."""
        return self._function(x.copy())


class LayerSource(_Here):
    """An `AttentionLayer` as an oracle: only its outputs are used.

    >>> LayerSource(AttentionLayer.random(2, 4)).ask(np.zeros((1, 2, 4))).shape
    (1, 2, 4)
    """

    def __init__(self, layer: AttentionLayer, name: str | None = None) -> None:
        self._layer = layer
        digest = hashlib.sha256(str((layer.visible, layer.dtype, describe(layer.form))).encode())
        for array in layer.arrays().values():
            digest.update(np.asarray(array).tobytes())
        self.label = name or "layer"
        self.identity = f"layer:{digest.hexdigest()}"
        self.dim = layer.dim
        self.out_dim = layer.out_dim

    def accepted(self, x: Tokens) -> Tokens:
        """Tokens as the layer's dtype holds them."""
        return through(x, self._layer.dtype)

    def ask(self, x: Tokens) -> Outputs:
        """The layer's outputs in its own dtype."""
        return self._layer(x.astype(self._layer.dtype))


class TorchSource(_Here):
    """A torch module, asked in the dtype and on the device of its first parameter, as it is (no `.eval()`).

    `nn.MultiheadAttention` is asked for self-attention. Of several outputs the first is taken.
    """

    def __init__(self, module: Any, name: str | None = None) -> None:
        import torch

        self._module = module
        parameter = next(iter(module.parameters()), torch.zeros(0))
        self._like = {"dtype": parameter.dtype, "device": parameter.device}
        kind = type(module)
        self.label = name or f"{kind.__module__}.{kind.__qualname__}"
        self.identity = f"torch:{self.label}"
        if isinstance(module, torch.nn.MultiheadAttention):
            self.dim = self.out_dim = module.embed_dim

    def accepted(self, x: Tokens) -> Tokens:
        """Tokens as the module's dtype holds them."""
        import torch

        tensor = torch.from_numpy(np.ascontiguousarray(x))
        return tensor.to(self._like["dtype"]).to(tensor.dtype).numpy()

    def ask(self, x: Tokens) -> Outputs:
        """The module's outputs; bfloat16 and float16 widened to float32, which holds them exactly."""
        import torch

        with torch.no_grad():
            answer = self._forward(torch.from_numpy(np.ascontiguousarray(x)).to(**self._like))
            while isinstance(answer, tuple | list):
                answer = answer[0]
            answer = answer.detach().cpu()
            return (answer if answer.dtype == torch.float64 else answer.to(torch.float32)).numpy()

    def _forward(self, x: Any) -> Any:
        import torch

        if not isinstance(self._module, torch.nn.MultiheadAttention):
            return self._module(x)
        if self._module.batch_first:
            return self._module(x, x, x, need_weights=False)
        x = x.transpose(0, 1)
        return self._module(x, x, x, need_weights=False)[0].transpose(0, 1)


def is_torch_module(thing: Any) -> bool:
    """Whether `thing` is a torch module, without importing torch for anything else."""
    return any(base.__module__ == "torch.nn.modules.module" for base in type(thing).__mro__)


def as_source(thing: Any, name: str | None) -> Source:
    """The source that `thing` is, or one around it."""
    if isinstance(thing, AttentionLayer):
        return LayerSource(thing, name)
    if is_torch_module(thing):
        return TorchSource(thing, name)
    if hasattr(thing, "ask") and hasattr(thing, "accepted"):
        return thing
    require(callable(thing), "oracle", "must be a callable, a layer, a torch module or a source", thing)
    return CallableSource(thing, name)
