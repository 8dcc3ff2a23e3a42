"""`certify`: what is close enough is certified, what is wrong by a little never is, whatever computes it."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn import AttentionLayer, NotEstablished, Outcome, certify, data, report
from attnlearn.convert import from_qkvo, to_qkvo

TOKENS, DIM, TARGET = 4, 5, 1e-3
MODEL = data.Gaussian(TOKENS, DIM)


def same(layer: AttentionLayer, rng: np.random.Generator) -> AttentionLayer:
    """Another form of the same function: heads in another order, other factors, or fewer digits."""
    order = rng.permutation(layer.num_heads)
    moved = layer.replace(theta=layer.theta[order], w=layer.w[order], query_bias=layer.query_bias[order])
    return [moved, from_qkvo(*to_qkvo(moved)), moved.astype(np.float32)][rng.integers(3)]


def nearly(layer: AttentionLayer, rng: np.random.Generator) -> AttentionLayer:
    """A layer that is wrong by a little more than the target: in one array, moved until its errors are there."""
    name = ["theta", "w", "query_bias", "output_bias"][rng.integers(4)]
    array = getattr(layer, name)
    along = rng.standard_normal(array.shape)
    x, size = MODEL.sample(2000, seed=int(rng.integers(1 << 30))), 1e-6
    while True:
        moved = layer.replace(**{name: array + size * along})
        if np.quantile(errors(moved, layer, x), 0.9) > 1.5 * TARGET:
            return moved
        size *= 1.2


def errors(one: AttentionLayer, other: AttentionLayer, x: np.ndarray) -> np.ndarray:
    truth = other(x)
    return np.linalg.norm(one(x) - truth, axis=(1, 2)) / np.linalg.norm(truth, axis=(1, 2))


@pytest.mark.parametrize("pair", range(20))
def test_pairs_half_of_them_wrong_by_a_little(pair: int, seed: int) -> None:
    rng = np.random.default_rng([seed, pair])
    layer = AttentionLayer.random(int(rng.integers(1, 4)), DIM, bias=True, seed=pair)
    candidate = nearly(layer, rng) if pair % 2 else same(layer, rng)
    x = MODEL.sample(300, seed=pair + 100)
    found = certify(candidate, layer, x, target=TARGET, seed=seed, raise_on_failure=False)
    assert found.certified == (pair % 2 == 0)
    assert found.outcome is (Outcome.NOT_ESTABLISHED if pair % 2 else Outcome.CERTIFIED)
    assert found.verdict.startswith("The candidate was compared")  # nothing was fitted


def test_an_error_on_few_inputs_is_seen(seed: int) -> None:
    layer, x = AttentionLayer.random(2, DIM, seed=seed), MODEL.sample(2000, seed=seed)

    def candidate(tokens: np.ndarray) -> np.ndarray:
        rare = tokens[:, 0, 0] > 2.0  # 2 % of the inputs
        return layer(tokens) * np.where(rare, 1.01, 1.0)[:, None, None]

    found = certify(candidate, layer, x, target=TARGET, raise_on_failure=False)
    assert not found.certified
    assert found.layer is None
    assert "not certified" in found.verdict
    # On nine inputs of ten it is right, and that is what is claimed when it is asked for.
    assert (
        certify(candidate, layer, x, target=TARGET, fraction=0.9).certificate.claim("C1").value["fraction"]
        == 0.9
    )


def test_the_claim_holds_on_fresh_inputs_and_says_what_it_assumes(seed: int, tmp_path) -> None:
    layer = AttentionLayer.random(2, DIM, bias=True, seed=seed)
    candidate = layer.replace(theta=1.05 * layer.theta)
    found = certify(candidate, layer, MODEL)
    claim = found.certificate.claim("C1")
    assert (
        np.mean(errors(candidate, layer, MODEL.sample(20_000, seed=8)) <= claim.value["error"])
        >= claim.value["fraction"]
        > 0.99
    )
    assert "the candidate was not made from these inputs" in claim.assumes
    assert "The candidate was compared" in found.verdict
    page = report(found, tmp_path / "report.html").read_text("utf-8")
    assert "Attention layer beside its reference" in page


def test_torch_modules_and_recorded_outputs(seed: int, tmp_path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    from attnlearn.convert import to_torch

    layer = AttentionLayer.random(2, 6, rank=3, seed=seed)
    module = to_torch(layer)
    x = data.Gaussian(4, 6).sample(300, seed=1)
    assert certify(module, layer, x, target=1e-9).layer is None
    assert isinstance(module, torch.nn.Module)
    np.savez(tmp_path / "recorded.npz", x=x, y=layer(x))
    assert certify(layer.astype(np.float32), None, tmp_path / "recorded.npz", target=1e-4).certified


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reference": None}, "reference: must be given, unless data are recorded examples"),
        ({"candidate": 3}, "candidate: must be a layer, a torch module or a function, got 'int'"),
        ({"candidate": lambda x: x[..., :2]}, "candidate: must have outputs of shape"),
        ({"fraction": 1.5}, "fraction: must lie between 0 and 1, got 1.5"),
        ({"data": np.ones((30, 4, 3))}, "candidate: must take tokens of dimension 3"),
        ({"data": np.full((30, 4, DIM), np.nan)}, "data: must be finite"),
        ({"target": 0.0}, "target: must be positive"),
    ],
)
def test_bad_input_is_one_line(change: dict, message: str) -> None:
    layer = AttentionLayer.random(2, DIM)
    given = {"candidate": layer, "reference": layer, "data": MODEL} | change
    with pytest.raises(ValueError, match=message) as caught:
        certify(given.pop("candidate"), given.pop("reference"), given.pop("data"), **given)
    assert "\n" not in str(caught.value)


def test_a_candidate_that_is_far_off_raises() -> None:
    with pytest.raises(NotEstablished):
        certify(AttentionLayer.random(2, DIM, seed=1), AttentionLayer.random(2, DIM, seed=2), MODEL)


@pytest.mark.parametrize("kind", ["batch", "state", "chance"])
def test_answers_that_depend_on_more_than_the_input_count_with_what_they_change(
    kind: str, rng: np.random.Generator
) -> None:
    """Exact in a large batch, and at first; otherwise when asked alone, or again."""
    layer, x = AttentionLayer.random(2, DIM, seed=1), MODEL.sample(1000, seed=1)
    asked = [0]

    def candidate(tokens: np.ndarray) -> np.ndarray:
        asked[0] += 1
        if kind == "batch":
            return layer(tokens - (tokens.mean(axis=0) if len(tokens) < 10 else 0.0))
        if kind == "state":
            return layer(tokens) * (1.0 if asked[0] == 1 else 1.05)
        return layer(tokens) * (1 + 0.1 * (rng.random((len(tokens), 1, 1)) < 0.5))

    found = certify(candidate, layer, x, target=0.04, raise_on_failure=False)
    assert not found.certified
    assert found.stats["change_alone"] > 0.04
    turned = certify(layer, candidate, x, target=0.04, raise_on_failure=False)
    assert not turned.certified


def test_rounding_that_depends_on_the_batch_is_part_of_the_error(seed: int) -> None:
    layer, x = AttentionLayer.random(2, DIM, seed=seed), MODEL.sample(1000, seed=seed)

    def candidate(tokens: np.ndarray) -> np.ndarray:
        return layer(tokens) * (1 + 1e-5 * (len(tokens) > 1))

    found = certify(candidate, layer, x, target=TARGET)
    assert found.certified
    change = found.stats["change_alone"]
    assert 1e-5 <= change < found.certificate.claim("C1").value["error"] - 0.99e-5
