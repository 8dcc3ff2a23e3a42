"""Masks: padding and causality are told apart; anything else is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from attnlearn.data._masks import from_huggingface_mask, from_torch_masks, split_mask  # noqa: E402

REAL = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]]).bool()
EARLIER = torch.ones(4, 4).tril().bool()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["boolean", "additive", "most negative"])
def test_transformers_masks(causal, kind):
    allowed = REAL[:, None, :] & (EARLIER if causal else torch.ones(4, 4).bool())
    mask = allowed[:, None]
    if kind != "boolean":
        low = -torch.inf if kind == "additive" else torch.finfo(torch.float32).min
        mask = torch.zeros(mask.shape).masked_fill(~mask, low)
    real, possible = split_mask(from_huggingface_mask(mask, 3, 4))
    assert torch.equal(real, REAL)
    assert possible == {causal}


def test_a_mask_over_keys_alone_is_padding():
    real, possible = split_mask(from_huggingface_mask(REAL[:, None, None, :], 3, 4))
    assert torch.equal(real, REAL)
    assert possible == {False}


def test_no_mask_lets_everybody_see():
    real, possible = split_mask(from_huggingface_mask(None, 2, 3))
    assert real.all()
    assert possible == {False}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_torch_masks_mean_hidden(causal, additive, per_head):
    attention, padding = ~EARLIER if causal else None, ~REAL
    if additive:
        padding = torch.zeros(3, 4).masked_fill(padding, -torch.inf)
        attention = torch.zeros(4, 4).masked_fill(attention, -torch.inf) if causal else None
    if per_head and attention is not None:
        attention = attention.expand(6, 4, 4)
    real, possible = split_mask(from_torch_masks(attention, padding, 2, 3, 4))
    assert torch.equal(real, REAL)
    assert possible == {causal}


def test_rows_of_padded_queries_do_not_count():
    allowed = (REAL[:, None, :] & EARLIER).clone()
    allowed[2, :2] = True  # what some models do to rows that would see nothing
    assert split_mask(allowed)[1] == {True}


def test_one_real_token_cannot_tell():
    assert split_mask(torch.ones(2, 1, 1).bool())[1] == {False, True}
    only = torch.tensor([[1, 0, 0]]).bool()
    assert split_mask(only[:, None, :].expand(1, 3, 3))[1] == {False, True}


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (EARLIER & ~EARLIER.tril(-2), "must mask by padding and causality alone"),  # a window
        (
            torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).bool(),
            "must mask by padding and causality alone",
        ),
        (torch.zeros(4, 4).bool(), "must have a real token"),
        (torch.ones(2, 4).bool(), "must hold whole sequences, not steps of generation, got '2 of 4 tokens'"),
    ],
)
def test_other_masks_are_refused(allowed, message):
    with pytest.raises(ValueError, match=message):
        split_mask(allowed[None])


def test_the_last_token_of_a_causal_window_is_real():
    allowed = EARLIER & ~EARLIER.tril(-2)
    real, possible = split_mask(allowed[None], window=2)
    assert real.all()
    assert possible == {True}
    padded = allowed.clone()
    padded[:, -1] = False  # nobody sees the last token, whose query sees those in its window
    real, possible = split_mask(padded[None], window=2)
    assert real[0].tolist() == [True, True, True, False]
    assert possible == {True}


def test_biases_on_scores_are_refused():
    slopes = -torch.arange(4.0).expand(1, 1, 4, 4)
    with pytest.raises(ValueError, match="a bias on the scores is not representable"):
        from_huggingface_mask(slopes, 1, 4)
    per_head = torch.stack([EARLIER, torch.ones(4, 4).bool()])
    with pytest.raises(ValueError, match="must use one mask for all heads"):
        from_huggingface_mask(per_head[None], 1, 4)
    with pytest.raises(ValueError, match="must use one mask for all heads"):
        from_torch_masks(~per_head, None, 2, 1, 4)
