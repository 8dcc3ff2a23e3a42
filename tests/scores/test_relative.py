"""Tables by offset: T5's buckets, ALiBi's slopes, a free number for every offset."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.scores import Bilinear, Offsets, Relative, alibi_slopes


def make(rng, offsets, d=4):
    base = Bilinear.whole(rng.standard_normal((2, d, d)), rng.standard_normal((2, d)))
    return Relative(base, rng.standard_normal((2, offsets.numbers)), offsets)


@pytest.mark.parametrize("both", [True, False])
def test_buckets_are_those_of_t5(both):
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    away = np.arange(-300, 301)
    theirs = modeling.T5Attention._relative_position_bucket(torch.tensor(away), both, 32, 128).numpy()
    ours = Offsets("buckets", reach=128, number=32, both=both).design(away).argmax(axis=1)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("heads", [1, 4, 6, 12])
def test_slopes_are_those_of_bloom(heads):
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = modeling.build_alibi_tensor(torch.ones(1, 3), heads, torch.float64)
    np.testing.assert_allclose(alibi_slopes(heads), theirs[:, 0, 1].numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "offsets",
    [Offsets("table", reach=3), Offsets("buckets", reach=8, number=8), Offsets("slope")],
    ids=lambda offsets: offsets.kind,
)
@pytest.mark.parametrize("positions", [None, [[0, 1, 5, 6, 7], [3, 1, 4, 1, 5]]])
def test_scores_are_a_bilinear_form_and_a_number_by_offset(rng, offsets, positions):
    scores = make(rng, offsets)
    x = rng.standard_normal((2, 5, 4))
    turned = np.swapaxes(x, 1, 2).copy()
    found, kept = scores.logits(x, turned, None if positions is None else np.array(positions))
    plain, _ = scores.base.logits(x, turned)
    places = np.broadcast_to(np.arange(5) if positions is None else np.array(positions), (2, 5))
    for n in range(2):
        for a in range(5):
            for b in range(5):
                number = scores.bias_at(places[n, b] - places[n, a])[1]
                np.testing.assert_allclose(found[n, a, :, b] - plain[n, a, :, b], number, atol=1e-12)
    tangent = scores.shaped(rng.standard_normal(scores.flat().size))
    change = rng.standard_normal(found.shape)
    there = float(np.vdot(scores.jvp(tangent, kept), change))
    assert there == pytest.approx(float(tangent.flat() @ scores.vjp(change, kept).flat()), rel=1e-10)


def test_derivatives_are_those_of_autodiff(rng):
    torch = pytest.importorskip("torch")
    scores = make(rng, Offsets("table", reach=2))
    x, change = rng.standard_normal((3, 5, 4)), rng.standard_normal((3, 5, 2, 5))
    theta, c, table = (torch.tensor(array, requires_grad=True) for array in scores.arrays().values())
    places = torch.clamp(torch.arange(5)[None, :] - torch.arange(5)[:, None], -2, 2) + 2
    tokens = torch.tensor(x)
    out = (
        torch.einsum("nad,mde,nbe->namb", tokens, theta, tokens)
        + torch.einsum("md,nbd->nmb", c, tokens)[:, None]
    )
    out = out + table[:, places].permute(1, 0, 2)[None]
    found, kept = scores.logits(x, np.swapaxes(x, 1, 2).copy())
    np.testing.assert_allclose(found, out.detach().numpy(), atol=1e-10)
    out.backward(torch.tensor(change))
    back = scores.vjp(change, kept).arrays()
    for name, tensor in zip(("theta", "query_bias", "table"), (theta, c, table)):
        np.testing.assert_allclose(back[name], tensor.grad.numpy(), atol=1e-10)


def test_a_constant_is_invisible(rng):
    scores = make(rng, Offsets("buckets", reach=8, number=8))
    moved = Relative(scores.base, scores.table + 3.0, scores.offsets)
    np.testing.assert_allclose(moved.canonical().table, scores.canonical().table, atol=1e-12)
    assert not scores.canonical().table[:, 4].any()  # no offset takes it


def test_wrong_sizes_are_said_in_one_line(rng):
    with pytest.raises(ValueError, match="table: must have shape"):
        Relative(Bilinear.whole(np.zeros((2, 3, 3)), np.zeros((2, 3))), np.zeros((2, 2)), Offsets("slope"))
    with pytest.raises(ValueError, match="kind: must be one of"):
        Offsets("curve")
    with pytest.raises(ValueError, match="number: must be >= 4 buckets"):
        Offsets("buckets", reach=2, number=3)
