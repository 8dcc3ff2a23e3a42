"""Compression: exact where heads are redundant, never worse than pruning, honest about the rest."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, CompressConfig, NotEstablished, Outcome, compress, data
from attnlearn.compression._state import select_error
from attnlearn.solve._batch import Batch
from attnlearn.solve._regress import regress

TOKENS, DIM = 5, 6
MODEL = data.Gaussian(TOKENS, DIM)


def source(seed: int, heads: int = 4) -> AttentionLayer:
    return AttentionLayer.random(heads, DIM, rank=3, bias=True, seed=seed)


def redundant(kind: str, seed: int) -> AttentionLayer:
    """Four heads that two can replace."""
    layer = source(seed)
    theta, w, c = layer.theta.copy(), layer.w.copy(), layer.query_bias.copy()
    if kind == "duplicates":
        theta[2:], c[2:] = theta[:2], c[:2]
    elif kind == "zero heads":
        w[2:] = 0
    else:  # a constant added to all scores of a row cannot be seen, though the matrices differ
        theta[2:], c[2:] = theta[:2], c[:2]
        theta[2:, :, 0] += 1.0
    return layer.replace(theta=theta, w=w, query_bias=c)


@pytest.fixture(scope="module")
def halved():
    layer = source(0)
    return layer, compress(layer, MODEL, num_heads=2)


@pytest.mark.parametrize("kind", ["duplicates", "zero heads"])
def test_redundant_heads_cost_nothing(kind: str, seed: int) -> None:
    layer = redundant(kind, seed)
    solution = compress(layer, MODEL, num_heads=2, config=CompressConfig(down_to=2))
    assert solution.certified
    assert solution.stats["exact"]
    assert solution.layer.num_heads == 2
    x = MODEL.sample(200, seed=99)
    np.testing.assert_allclose(solution.layer(x), layer(x), atol=1e-10)


def test_heads_that_differ_only_where_no_token_goes(seed: int) -> None:
    layer = redundant("unseen", seed)
    x = MODEL.sample(4000, seed=1)
    x[..., 0] = 0.5  # constant: what Theta does with this key coordinate adds the same to every score
    solution = compress(layer, x, num_heads=2, config=CompressConfig(down_to=2))
    assert solution.stats["distinct_heads"] == 4
    assert solution.stats["exact"]


def test_the_curve_falls_with_every_head(halved) -> None:
    _, solution = halved
    rows = solution.stats["curve"]
    assert [row["heads"] for row in rows] == [4, 3, 2, 1]
    errors = [row["error"] for row in rows]
    assert errors[0] < 1e-12
    assert np.all(np.diff(errors) >= 0)
    assert 0.05 < errors[2] < 1


def test_better_than_the_best_drop_with_refit(halved) -> None:
    layer, solution = halved
    x, fresh = MODEL.sample(3000, seed=0), MODEL.sample(2000, seed=5)
    held = Batch(fresh, layer(fresh))
    pruned = []
    for kept in [(i, j) for i in range(4) for j in range(i)]:
        theta, c = layer.theta[list(kept)], layer.query_bias[list(kept)]
        w, b, _ = regress(theta, c, x, layer(x))
        pruned.append(select_error(AttentionLayer(theta, w, c, b), held))
    assert select_error(solution.layer, held) < 0.97 * min(pruned)


def test_claim_c1_holds_on_fresh_examples(halved) -> None:
    layer, solution = halved
    assert solution.outcome is Outcome.COMPRESSED
    claim = solution.certificate.claim("C1")
    assert [c.code for c in solution.certificate.claims] == ["C1"]
    fresh = MODEL.sample(20_000, seed=7)
    error = np.linalg.norm(solution.layer(fresh) - layer(fresh), axis=(1, 2))
    size = np.maximum(np.linalg.norm(layer(fresh), axis=(1, 2)), claim.value["floor"])
    assert claim.value["fraction"] == 0.9
    assert np.mean(error <= claim.value["error"] * size) >= claim.value["fraction"]


def test_a_missed_target_is_not_established(halved) -> None:
    layer, _ = halved
    with pytest.raises(NotEstablished) as caught:
        compress(layer, MODEL, num_heads=2, target=1e-3)
    assert caught.value.solution.outcome is Outcome.NOT_ESTABLISHED
    assert caught.value.solution.layer.num_heads == 2


def test_same_seed_same_bytes_and_resume(halved, tmp_path) -> None:
    layer, solution = halved
    again = compress(layer, MODEL, num_heads=2, checkpoint=tmp_path / "saved")
    np.testing.assert_array_equal(again.layer.theta, solution.layer.theta)
    resumed = compress(layer, MODEL, num_heads=2, checkpoint=tmp_path / "saved")
    np.testing.assert_array_equal(resumed.layer.w, solution.layer.w)
    with pytest.raises(ValueError, match="num_heads was 2 and is 3"):
        compress(layer, MODEL, num_heads=3, checkpoint=tmp_path / "saved")


def test_narrow_heads_fit_the_torch_layout(seed: int) -> None:
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    import torch

    from attnlearn.convert import to_torch

    layer = source(seed)
    solution = compress(layer, MODEL, num_heads=2, head_dim=3)
    module = to_torch(solution.layer)
    x = MODEL.sample(20, seed=3)
    tokens = torch.from_numpy(x)
    with torch.no_grad():
        theirs = module(tokens, tokens, tokens, need_weights=False)[0].numpy()
    np.testing.assert_allclose(theirs, solution.layer(x), atol=1e-10)


def test_masks_and_causal_layers(seed: int) -> None:
    layer = source(seed).replace(causal=True)
    x = MODEL.sample(1500, seed=2)
    mask = np.arange(TOKENS) < np.random.default_rng(seed).integers(3, TOKENS + 1, (1500, 1))
    config = CompressConfig(down_to=3, steps=3)
    solution = compress(layer, x, mask=mask, num_heads=3, config=config)
    assert solution.layer.causal
    assert 0 < solution.stats["relative_error"] < 0.7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 0}, "num_heads: must be at least 1, got 0"),
        (
            {"num_heads": None},
            "num_heads: must be given, or head_dim, kv_heads, latent or kv_floats, got None",
        ),
        ({"kv_heads": 4}, "kv_heads: must divide the 2 heads, got 4"),
        ({"latent": 4, "kv_heads": 1}, "latent: must be given without kv_heads, got 4"),
        (
            {"kv_floats": 8, "head_dim": 2},
            "kv_floats: must be given without head_dim, kv_heads and latent, got 8",
        ),
        ({"kv_floats": 1}, "kv_floats: must be at least 2, a key and a value of width 1, got 1"),
        ({"num_heads": 5}, "num_heads: must lie between 1 and the layer's 4, got 5"),
        ({"target": -1.0}, "target: must be positive, got -1.0"),
        ({"tokens": np.ones((30, 4, 5))}, "tokens: must hold tokens of dimension 6"),
        ({"tokens": np.full((30, 4, 6), np.nan)}, "tokens: must be finite"),
        ({"tokens": np.ones((5, 4, 6))}, "tokens: must hold at least 20 different sequences, got 1"),
        ({"layer": 3}, "layer: must be an AttentionLayer, got 'int'"),
        ({"config": 3}, "config: must be a CompressConfig, got 3"),
    ],
)
def test_bad_input_is_one_line(change: dict, message: str) -> None:
    arguments = {"layer": source(0), "tokens": MODEL, "num_heads": 2} | change
    with pytest.raises(ValueError, match=message) as caught:
        compress(arguments.pop("layer"), arguments.pop("tokens"), **arguments)
    assert "\n" not in str(caught.value)


def test_a_time_limit_ends_the_run_and_can_be_resumed(seed: int, tmp_path) -> None:
    layer, settings = source(seed), {"num_heads": 2, "config": CompressConfig(steps=2), "seed": seed}
    x = MODEL.sample(1500, seed=2)
    whole = compress(layer, x, **settings)
    settings |= {"checkpoint": tmp_path / "run", "raise_on_failure": False}
    first = compress(layer, x, **settings, time_limit=1e-9)
    assert first.outcome is Outcome.BUDGET_SPENT
    assert first.layer is None
    assert "the time limit of 1e-09 s is up" in first.verdict
    found = first
    while found.outcome is Outcome.BUDGET_SPENT:
        found = compress(layer, x, **settings, time_limit=1e-9)
    assert found.certified == whole.certified
    assert len(found.stats["curve"]) < len(whole.stats["curve"])  # it ended when two heads were reached
    resumed = compress(layer, x, **settings)
    assert resumed.layer.theta.tobytes() == whole.layer.theta.tobytes()
    assert resumed.stats["curve"] == whole.stats["curve"]


@pytest.mark.parametrize(("weights", "tokens"), [(np.float32, np.float64), (np.float64, np.float32)])
def test_a_layer_and_tokens_of_two_dtypes_are_compressed_in_the_wider(weights, tokens) -> None:
    x = MODEL.sample(1500, seed=2).astype(tokens)
    config = CompressConfig(down_to=3, steps=2)
    assert compress(source(0).astype(weights), x, num_heads=3, config=config).layer.dtype == np.float64
