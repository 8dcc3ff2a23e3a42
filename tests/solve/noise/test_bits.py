"""Bits in use: what numbers were rounded to shows, whatever dtype holds them."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.solve.noise._bits import bits_in_use, precision_of


def rounded(values: np.ndarray, bits: int) -> np.ndarray:
    """The values with so many bits of the significand, the leading one included."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent)


@pytest.mark.parametrize("bits", [8, 11, 24, 40, 53])
def test_bits_of_rounded_numbers(bits, rng):
    assert bits_in_use(rounded(rng.standard_normal((20, 5, 4)), bits)) == bits


def test_one_number_with_more_bits_counts_and_zeros_and_signs_do_not(rng):
    values = rounded(rng.standard_normal(50), 8)
    assert bits_in_use(-np.abs(values)) == 8
    values[::3] = 0
    assert bits_in_use(values) == 8
    values[7] = 1 + 2.0**-30
    assert bits_in_use(values) == 31


def test_any_layout_and_both_dtypes(rng):
    values = rng.standard_normal((30, 6)).astype(np.float32)
    assert bits_in_use(values.T[::2]) == 24
    assert bits_in_use(rounded(values.astype(np.float64), 11).astype(np.float32)) == 11


@pytest.mark.parametrize(("bits", "dtype"), [(8, "f8"), (11, "f8"), (13, "f4"), (24, "f4"), (25, "f8")])
def test_only_what_needs_single_precision_has_it(bits, dtype, rng):
    assert precision_of(rounded(rng.standard_normal(200), bits)) == np.dtype(dtype)
