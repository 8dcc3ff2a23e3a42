"""The reaction encoder of rxnmapper (ALBERT, d = 256, one layer of eight heads that is passed twelve times), on its own samples."""

from __future__ import annotations

from typing import Any

from benchmarks.models.fetch import unpacked, weights

FOLDER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
FIRST_WORD, BEGIN, END, MASKED, ROUNDS = 15, 12, 13, 14, 12


def model() -> Any:
    """The masked language model."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    folder = unpacked("rxnmapper==0.4.3") / FOLDER
    encoder = AlbertForMaskedLM(AlbertConfig.from_json_file(str(folder / "config.json")))
    encoder.load_state_dict(weights(folder / "pytorch_model.bin"), strict=False)
    encoder.tie_weights()
    return encoder.eval()


def one_pass(encoder: Any, number: int) -> Any:
    """A module that runs the shared layer once, on what it receives in the given pass; its block is `layer.attention`."""
    import copy

    from torch import nn, no_grad

    class Pass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = copy.deepcopy(encoder.albert.encoder.albert_layer_groups[0].albert_layers[0])
            self.config = encoder.config

        def forward(self, ids):
            with no_grad():
                states = encoder.albert(ids, output_hidden_states=True).hidden_states
            return self.layer(states[number - 1])

    return Pass().eval()


def sequences(encoder: Any, number: int, length: int, seed: int) -> Any:
    """Strings by Gibbs sampling from random starts: in every round a third of the words is masked and drawn again."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST_WORD, FIRST_WORD + 60, (number, length), generator=generator)
    ids[:, 0], ids[:, -1] = BEGIN, END
    with torch.no_grad():
        for _ in range(ROUNDS):
            hidden = torch.rand(ids.shape, generator=generator) < 1 / 3
            hidden[:, [0, -1]] = False
            for part, some in zip(ids.split(128), hidden.split(128), strict=True):
                logits = encoder(part.masked_fill(some, MASKED)).logits[..., FIRST_WORD:]
                chances = logits.softmax(-1).reshape(-1, logits.shape[-1])
                drawn = torch.multinomial(chances, 1, generator=generator).reshape(part.shape)
                part.copy_(torch.where(some, drawn + FIRST_WORD, part))
    return ids
