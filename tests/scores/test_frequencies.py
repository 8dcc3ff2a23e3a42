"""Frequencies against those of transformers."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.scores import frequencies, frequencies_of

transformers = pytest.importorskip("transformers")

LONG = {"original_max_position_embeddings": 64}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LONG},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **LONG},
    "yarn, other turns": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "beta_slow": 2.0, **LONG},
    "yarn, given factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, **LONG},
    "yarn, scales": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, **LONG},
}


@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
def test_llama_embeddings_agree(scaling, base):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": base, **scaling},
    )
    theirs = LlamaRotaryEmbedding(config)
    ours = frequencies_of(config.to_dict())
    np.testing.assert_allclose(ours.rotation.frequencies, theirs.inv_freq.numpy(), rtol=2e-6)
    assert ours.factor == pytest.approx(theirs.attention_scaling**2)
    assert ours.rotation.still == 0


def test_part_of_the_coordinates_turns_in_neox():
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    config = transformers.GPTNeoXConfig(hidden_size=64, num_attention_heads=4, rotary_pct=0.25)
    ours = frequencies_of(config.to_dict())
    theirs = GPTNeoXRotaryEmbedding(config)
    np.testing.assert_allclose(ours.rotation.frequencies, theirs.inv_freq.numpy(), rtol=2e-6)
    assert (ours.rotation.pairs, ours.rotation.still) == (2, 12)


def test_old_configurations_are_understood():
    old = {"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 5e5}
    scaled = frequencies_of({**old, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert scaled == frequencies(16, base=5e5, scaling={"rope_type": "linear", "factor": 2.0})


def test_frequencies_that_follow_the_length_are_refused():
    with pytest.raises(
        ValueError, match="scaling: must be one of default, linear, llama3, yarn, got 'dynamic'"
    ):
        frequencies(16, scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(ValueError, match="scaling: must have a number factor above 0"):
        frequencies(16, scaling={"rope_type": "linear"})
    with pytest.raises(ValueError, match="rotated: must be even"):
        frequencies(16, rotated=3)
