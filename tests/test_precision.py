"""The dtype policy, in fresh processes, with and without the caller's x64 mode."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from attnlearn import AttentionLayer, LinearAttentionLayer, data, distance, recover
from attnlearn._precision import common_dtype, promoted, to_numpy

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


SINGLE, DOUBLE = np.float32, np.float64


@pytest.mark.parametrize("first", [np.int64, np.int8, SINGLE, DOUBLE])
@pytest.mark.parametrize("second", [np.int32, SINGLE, DOUBLE])
def test_dtypes_are_promoted_and_never_narrowed(first, second) -> None:
    x, y = (to_numpy(np.ones(3, dtype), "x") for dtype in (first, second))
    a, b = promoted(x, y)
    assert a.dtype == b.dtype == common_dtype({"x": x, "y": y, "mask": None})
    assert a.dtype == (SINGLE if (first, second) == (SINGLE, SINGLE) else DOUBLE)
    assert promoted(a, b)[0] is a


@pytest.mark.parametrize("dtype", [bool, np.float16, complex])
def test_what_has_no_precision_of_ours_is_refused(dtype) -> None:
    with pytest.raises(ValueError, match=r"^x: must be float32 or float64"):
        to_numpy(np.ones(3, dtype), "x")


@pytest.mark.parametrize(("weights", "tokens"), [(SINGLE, DOUBLE), (DOUBLE, SINGLE), (DOUBLE, np.int64)])
def test_a_layer_and_tokens_of_two_dtypes_give_what_both_give_in_the_wider(weights, tokens) -> None:
    layer = AttentionLayer.random(2, 6, bias=True, seed=3).astype(weights)
    x = (3 * np.random.default_rng(0).standard_normal((4, 5, 6))).astype(tokens)
    wide = layer.astype(DOUBLE)
    assert layer(x).tobytes() == wide(x.astype(DOUBLE)).tobytes()
    assert layer.patterns(x).tobytes() == wide.patterns(x.astype(DOUBLE)).tobytes()
    assert AttentionLayer(layer.theta, wide.w).dtype == DOUBLE
    linear = LinearAttentionLayer(*layer.parameters)
    assert linear(x).tobytes() == linear.astype(DOUBLE)(x.astype(DOUBLE)).tobytes()


def test_examples_of_two_dtypes_are_recovered_in_the_wider(seed) -> None:
    truth = AttentionLayer.random(2, 6, seed=seed)
    x = data.Gaussian(4, 6).sample(3000, seed=seed).astype(SINGLE)
    found = recover(x, truth(x.astype(DOUBLE)))
    assert found.layer.dtype == DOUBLE
    assert distance(found.layer, truth).max < 1e-8
    signs = data.Boolean(5, 6).sample(3000, seed=seed).astype(np.int8)
    found = recover(signs, truth(signs), raise_on_failure=False)
    assert found.layer.dtype == DOUBLE
