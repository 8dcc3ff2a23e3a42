"""Where chunks are computed: NumPy arrays here, or torch tensors on a device, through the array API standard.

The sums over chunks (`engine._pieces`) are written against the standard and ask each array for its functions (`namespace`).
NumPy follows the standard itself; array-api-compat makes torch follow it. What lies between the sums, small dense algebra in
float64 and the vectors of conjugate gradients and Lanczos, stays in NumPy.

Two things that the standard leaves out are worth their own functions, because NumPy is faster with them: writing into memory
that is there (`exponential`, `hide`), and products written straight into another order of the axes (`by_head`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from attnlearn._errors import require


def namespace(array: Any) -> Any:
    """The functions for this array: NumPy's own, or those of array-api-compat.

    >>> namespace(np.ones(2)) is np
    True
    """
    if type(array) is np.ndarray or isinstance(array, np.ndarray | np.generic):  # the first is quicker
        return np
    from array_api_compat import array_namespace

    return array_namespace(array)


def reshape(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape; NumPy's method takes a third of the time of its function, which counts for small layers."""
    if type(array) is np.ndarray:
        return array.reshape(shape)
    return namespace(array).reshape(array, shape)


def permute(array: Any, axes: tuple[int, ...]) -> Any:
    """The array with its axes in another order."""
    if type(array) is np.ndarray:
        return array.transpose(axes)
    return namespace(array).permute_dims(array, axes)


def exponential(array: Any) -> Any:
    """exp(array), which may take the memory of `array`."""
    xp = namespace(array)
    return np.exp(array, out=array) if xp is np else xp.exp(array)


def hide(logits: Any, hidden: Any) -> Any:
    """The scores with -inf where `hidden`, which may take their memory."""
    xp = namespace(logits)
    if xp is not np:
        return xp.where(xp.asarray(hidden, device=logits.device), -xp.inf, logits)
    np.copyto(logits, -np.inf, where=hidden)
    return logits


def by_head(a: Any, b: Any) -> Any:
    """a @ b for (n, m, q, r) and (n, m, r, k) as (n, q, m, k)."""
    xp = namespace(a)
    if xp is not np:
        return permute(a @ b, (0, 2, 1, 3))
    n, m, q, _ = a.shape
    found = np.empty((n, q, m, b.shape[-1]), a.dtype)
    np.matmul(a, b, out=found.transpose(0, 2, 1, 3))
    return found


@dataclass(frozen=True)
class Device:
    """A device on which torch computes.

    >>> Device.parse("cpu") is None
    True
    """

    name: str

    @classmethod
    def parse(cls, spec: str | None) -> Device | None:
        """None and "cpu" are NumPy; "cuda", "cuda:1" and so on are torch there, "cpu:torch" is torch on the processor."""
        if spec in (None, "cpu"):
            return None
        rule = 'must be None or a device such as "cpu", "cpu:torch" or "cuda"'
        require(isinstance(spec, str) and bool(spec), "device", rule, spec)
        found = cls("cpu" if spec == "cpu:torch" else str(spec))
        found.check(rule, spec)
        return found

    def check(self, rule: str, spec: Any) -> None:
        """Refuse, in one line, a device that is not there or has no float64."""
        try:
            import torch
        except ImportError:
            require(False, "device", "needs the extra: pip install 'attnlearn[torch]'", spec)
            raise
        try:
            torch.zeros(1, dtype=torch.float64, device=self.name)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            require(False, "device", f"{rule} that torch has, with float64 ({_first_line(error)})", spec)

    def to(self, value: Any) -> Any:
        """Arrays, and tuples of them, on the device; anything else as it is."""
        if isinstance(value, np.ndarray):
            return _torch().tensor(
                np.ascontiguousarray(value), device=self.name
            )  # a copy, which may be written to
        return _each(self.to, value)

    def back(self, value: Any) -> Any:
        """Tensors, and tuples of them, as NumPy arrays; anything else as it is."""
        if isinstance(value, _torch().Tensor):
            return value.cpu().numpy()
        return _each(self.back, value)


@cache
def _torch() -> Any:
    import torch

    return torch


def _each(function: Any, value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    parts = [function(part) for part in value]
    return value._make(parts) if hasattr(value, "_make") else tuple(parts)  # type: ignore[attr-defined]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200]
