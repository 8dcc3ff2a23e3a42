"""Shapes of annotated arrays, enforced in the tests: the type checker that jaxtyping's import hook calls.

Only what jaxtyping annotates is checked (arrays, and unions and tuples of them): a plain `float` may be NumPy's, which the static
checker judges better.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

from beartype import beartype
from jaxtyping import AbstractArray


def checked(function: Callable) -> Callable:
    """`function` with the shapes of its arguments and of its result enforced."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # names that only a static checker knows
        return function
    function.__annotations__ = {name: hint for name, hint in hints.items() if _has_shape(hint)}
    return beartype(function) if function.__annotations__ else function


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    united = typing.get_origin(hint) in (tuple, typing.Union) or isinstance(hint, types.UnionType)
    return united and any(_has_shape(part) for part in typing.get_args(hint))
