"""Devices: the kernel uses the array API standard alone, and torch tensors give what NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, data, recover, train
from attnlearn._arrays import Device, by_head, exponential, hide, namespace
from attnlearn.engine._pieces import computed_on
from attnlearn.scores import Bilinear, Offsets
from attnlearn.solve._chunks import Chunk, cut, on_threads
from attnlearn.solve._linearize import forward_derivative, linearize, local_arrays, normal_product
from attnlearn.solve._precondition import _coupling, precondition
from attnlearn.solve._regress import columns, eliminate
from attnlearn.solve.certification._point import kernels, output_product, prepare
from attnlearn.solve.certification._spectrum import score_product
from attnlearn.solve.refinement import refine

CASES = [(None, False, False), (2, True, True)]


def example(rng, rank, causal, padded):
    layer = AttentionLayer.random(2, 5, rank=rank, bias=True, seed=0).replace(causal=causal)
    x = rng.standard_normal((40, 4, 5))
    mask = rng.random((40, 4)) < 0.8 if padded else None
    if mask is not None:
        mask[:, 0] = True
    return layer, x, mask


def strict(value):
    """Arrays of a library that has the standard and nothing else."""
    xp = pytest.importorskip("array_api_strict")
    if isinstance(value, np.ndarray):
        return xp.asarray(value)
    if isinstance(value, Bilinear | Chunk):
        return type(value)(*map(strict, value))
    return value


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_the_kernel_uses_nothing_beyond_the_standard(rng, rank, causal, padded):
    layer, x, mask = example(rng, rank, causal, padded)
    scores = layer.form.of_rank(rank)
    (chunk,) = cut(x, layer(x, mask), mask)
    linear = rng.standard_normal((11, 5))
    tangent = scores.shaped(rng.standard_normal(scores.flat().size))
    found = []
    for to in (lambda value: value, strict):
        local = local_arrays(to(chunk), to(scores), to(linear), causal)
        u = forward_derivative(to(tangent), local)
        pulled = [part for part in local.scores.vjp(local.alpha * 1.0, local.kept) if part is not None]
        found.append([columns(to(chunk), to(scores), causal), u, _coupling(local), *pulled])
    for one, other in zip(*found):
        np.testing.assert_allclose(np.asarray(other), one, atol=1e-12)


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_products_on_torch_are_those_of_numpy(rng, rank, causal, padded):
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    layer, x, mask = example(rng, rank, causal, padded)
    scores = layer.form.of_rank(rank)
    tangent = scores.shaped(rng.standard_normal(scores.flat().size))
    found = []
    for device in (None, Device("cpu")):
        with on_threads(), computed_on(device):
            chunks = cut(x, layer(x, mask) + 0.1 * x, mask)
            fit = eliminate(scores, chunks, causal)
            at = linearize(scores, fit.linear, fit.factor, chunks, causal)
            product, follow = normal_product(at, tangent)
            by = precondition(at)
            found.append([product.flat(), follow, np.array(fit.cost), by.c, np.concatenate(list(fit.rest))])
    for one, other in zip(*found):
        assert type(other) is np.ndarray
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize(("rank", "causal", "padded"), CASES)
def test_products_of_certify_on_torch_are_those_of_numpy(rng, rank, causal, padded):
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    layer, x, mask = example(rng, rank, causal, padded)
    found = []
    for device in (None, Device("cpu")):
        with on_threads(), computed_on(device):
            point = prepare(layer, x, mask, rank, joint=False, dtype=np.float64)
            t = np.random.default_rng(1).standard_normal(point.at.scores.flat().size)
            found.append([score_product(point, t), output_product(point, kernels(point), t)])
    for one, other in zip(*found):
        np.testing.assert_allclose(other, one, atol=1e-5 * np.abs(one).max())


def test_refining_on_torch_ends_at_the_same_layer(rng):
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    layer, x, _ = example(rng, None, False, False)
    with computed_on(Device.parse("cpu:torch")):
        found = refine(layer.replace(theta=1.1 * layer.theta), x, layer(x))
    assert found.stop == "floor"
    np.testing.assert_allclose(found.layer.theta, layer.theta, atol=1e-10)


@pytest.mark.slow
def test_recover_on_torch_certifies_the_same_layer():
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    layer = AttentionLayer.random(2, 6, seed=1)
    x = data.Gaussian(4, 6).sample(4000)
    here, there = (recover(x, layer(x), device=device) for device in (None, "cpu:torch"))
    assert here.certified
    assert there.certified
    np.testing.assert_allclose(there.layer.theta, here.layer.theta, atol=1e-9)


def test_helpers_agree_with_the_standard(rng):
    xp = pytest.importorskip("array_api_strict")
    a, b = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 5, 6))
    assert namespace(xp.asarray(a)).__name__ == xp.__name__
    np.testing.assert_allclose(np.asarray(by_head(xp.asarray(a), xp.asarray(b))), by_head(a, b))
    hidden = a > 0
    np.testing.assert_array_equal(np.asarray(hide(xp.asarray(a), hidden)), hide(a.copy(), hidden))
    np.testing.assert_allclose(np.asarray(exponential(xp.asarray(a))), exponential(a.copy()))


@pytest.mark.parametrize("device", ["cuda:77", "tpu", "", 3])
def test_a_device_that_is_not_there_is_one_line(device):
    with pytest.raises(ValueError, match=r"^device: must be None or [^\n]*$"):
        recover(np.ones((4, 3, 2)), np.ones((4, 3, 2)), device=device)


def test_what_does_not_run_on_a_device_says_so():
    with pytest.raises(ValueError, match=r"device: .* positions"):
        recover(np.ones((4, 3, 2)), np.ones((4, 3, 2)), positions=Offsets("slope"), device="cpu:torch")
    with pytest.raises(ValueError, match=r"device: .* JAX"):
        train.fit(np.ones((4, 3, 2)), np.ones(4), num_heads=2, device="cpu:torch")
