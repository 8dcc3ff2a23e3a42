"""Shapes that annotations promise are enforced: a wrong one fails here as it would in any test."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import Float, TypeCheckError, jaxtyped

pytest.importorskip("beartype")

from tests.shapes import checked


@jaxtyped(typechecker=checked)
def product(
    a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "d o"], twice: float = 1.0
) -> Float[np.ndarray, "n o"]:
    return twice * (a @ b)


@jaxtyped(typechecker=checked)
def promised_too_much(a: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "d n"], int] | None:
    return a, 1


def test_arrays_that_fit_pass_and_plain_numbers_are_not_looked_at() -> None:
    assert product(np.ones((2, 3)), np.ones((3, 4)), np.float32(2)).shape == (2, 4)


@pytest.mark.parametrize("b", [np.ones((2, 4)), np.ones(3), np.ones((3, 4), int)])
def test_a_wrong_argument_is_refused(b: np.ndarray) -> None:
    with pytest.raises(TypeCheckError, match="parameter 'b'"):
        product(np.ones((2, 3)), b)


def test_a_wrong_result_is_refused() -> None:
    with pytest.raises(TypeCheckError, match="return value"):
        promised_too_much(np.ones((2, 3)))


def test_the_hook_is_on() -> None:
    """`ATTNLEARN_SHAPES` names the packages; sculpting is one of them unless it says otherwise."""
    from attnlearn.recovery.sculpt._rows import with_one
    from attnlearn.recovery.sculpt._slabs import outer
    from tests.conftest import CHECKED

    if "attnlearn.recovery" not in CHECKED:
        pytest.skip("switched off")
    assert outer(with_one(np.ones((2, 3))), np.ones((2, 3))).shape == (2, 12)
    with pytest.raises(TypeCheckError, match="apart"):
        outer(np.ones((2, 3)), np.ones((5, 3)))
