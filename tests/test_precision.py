"""The dtype policy, in fresh processes, with and without the caller's x64 mode."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from attnlearn._precision import common_dtype, to_numpy

SCRIPT = """
import os, sys
import jax
if sys.argv[1] == "on":
    jax.config.update("jax_enable_x64", True)
before = dict(jax.config.values)
import numpy as np
import attnlearn
layer = attnlearn.AttentionLayer.random(2, 6, seed=3)
x = np.random.default_rng(0).standard_normal((4, 5, 6))
double = layer(x)
single = layer.astype(np.float32)(x.astype(np.float32))
assert double.dtype == np.float64 and single.dtype == np.float32, (double.dtype, single.dtype)
scores = x[0] @ layer.theta @ x[0].T
weights = np.exp(scores); weights /= weights.sum(-1, keepdims=True)
exact = (weights @ x[0] @ layer.w).sum(0)
assert np.abs(double[0] - exact).max() < 1e-13
assert 1e-9 < np.abs(single[0] - exact).max() < 1e-4
assert layer(jax.numpy.asarray(x, dtype=jax.numpy.float64)).dtype == np.float64 if sys.argv[1] == "on" else True
assert dict(jax.config.values) == before
"""


@pytest.mark.parametrize("x64", ["on", "off"])
def test_float64_is_float64_whatever_the_caller_configured(x64: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, x64], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_arrays_of_other_libraries() -> None:
    jnp = pytest.importorskip("jax.numpy")
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    assert to_numpy(jnp.ones(2, jnp.float32), "x").dtype == np.float32
    assert to_numpy(torch.ones(2, dtype=torch.float64, requires_grad=True), "x").dtype == np.float64
    with pytest.raises(ValueError, match="x: must be float32 or float64, got torch bfloat16"):
        to_numpy(torch.ones(2, dtype=torch.bfloat16), "x")

    class OnlyDlpack:
        def __dlpack__(self, **kwargs):
            return np.ones(3).__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return np.ones(3).__dlpack_device__()

    assert to_numpy(OnlyDlpack(), "x").shape == (3,)


def test_mixed_dtypes_are_named() -> None:
    with pytest.raises(ValueError, match=r"y: must have the dtype of x \(float64\), got float32"):
        common_dtype({"x": np.ones(1), "y": np.ones(1, np.float32)})
