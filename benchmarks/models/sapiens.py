"""The antibody encoder sapiens (heavy chains, d = 128, four layers of eight heads), on sequences that it samples itself."""

from __future__ import annotations

from typing import Any

from benchmarks.models.fetch import unpacked, weights

LAYERS, LETTERS, MASKED, ROUNDS = 4, slice(4, 24), 24, 12
BEGIN, END = 0, 2


def model() -> Any:
    """The encoder as a torch module; its attention modules are `layers.0.self_attn` and so on."""
    from torch import arange, cat, nn

    stored = weights(unpacked("sapiens==1.0.5") / "sapiens/models/v1/checkpoint_vh.pt")["model"]
    inner, head = "decoder.sentence_encoder.", "decoder.lm_head."

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.norm = (
                nn.Embedding(25, 128),
                nn.Embedding(146, 128),
                nn.LayerNorm(128),
            )
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(128, 8, 256, activation="gelu", batch_first=True)
                for _ in range(LAYERS)
            )
            self.dense, self.after, self.out = nn.Linear(128, 128), nn.LayerNorm(128), nn.Linear(128, 25)

        def forward(self, ids):
            x = self.norm(self.words(ids) + self.places(arange(ids.shape[1]) + 2))
            for layer in self.layers:
                x = layer(x)
            return self.out(self.after(nn.functional.gelu(self.dense(x))))

    found = {
        "words.weight": stored[f"{inner}embed_tokens.weight"],
        "places.weight": stored[f"{inner}embed_positions.weight"],
    }
    for kind in ("weight", "bias"):
        found |= {
            f"norm.{kind}": stored[f"{inner}emb_layer_norm.{kind}"],
            f"dense.{kind}": stored[f"{head}dense.{kind}"],
            f"after.{kind}": stored[f"{head}layer_norm.{kind}"],
            f"out.{kind}": stored[f"{head}{kind}"],
        }
        for number in range(LAYERS):
            theirs, ours = f"{inner}layers.{number}.", f"layers.{number}."
            attention = [stored[f"{theirs}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            found |= {
                f"{ours}self_attn.in_proj_{kind}": cat(attention),
                f"{ours}self_attn.out_proj.{kind}": stored[f"{theirs}self_attn.out_proj.{kind}"],
                f"{ours}norm1.{kind}": stored[f"{theirs}self_attn_layer_norm.{kind}"],
                f"{ours}norm2.{kind}": stored[f"{theirs}final_layer_norm.{kind}"],
                f"{ours}linear1.{kind}": stored[f"{theirs}fc1.{kind}"],
                f"{ours}linear2.{kind}": stored[f"{theirs}fc2.{kind}"],
            }
    encoder = Encoder()
    encoder.load_state_dict(found)
    return encoder.eval()


def sequences(encoder: Any, number: int, length: int, seed: int) -> Any:
    """Sequences by Gibbs sampling from random starts: in every round a third of the letters is masked and drawn again."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(LETTERS.start, LETTERS.stop, (number, length), generator=generator)
    ids[:, 0], ids[:, -1] = BEGIN, END
    with torch.no_grad():
        for _ in range(ROUNDS):
            hidden = torch.rand(ids.shape, generator=generator) < 1 / 3
            hidden[:, [0, -1]] = False
            for part, some in zip(ids.split(256), hidden.split(256), strict=True):
                logits = encoder(part.masked_fill(some, MASKED))[..., LETTERS]
                chances = logits.softmax(-1).reshape(-1, logits.shape[-1])
                drawn = torch.multinomial(chances, 1, generator=generator).reshape(part.shape)
                part.copy_(torch.where(some, drawn + LETTERS.start, part))
    return ids
