"""The speech quality model DistillMOS (d = 200, seven layers of eight heads of 25) on synthesised audio, cropped to 64 frames."""

from __future__ import annotations

from typing import Any

from benchmarks.models.audio import audio
from benchmarks.models.fetch import unpacked, weights

LAYERS, FRAMES, HOP, WINDOW = 7, 64, 160, 320
CHANNELS = (2, 64, 64, 128, 256, 256, 256)


def model() -> Any:
    """The encoder as a torch module; its attention modules are `layers.0.self_attn` and so on."""
    from torch import nn

    stored = weights(unpacked("distillmos==0.9.1") / "distillmos/weights/distill_mos_v7.pt")["model"]
    inner = "transformer_pool_attn.transformer."
    places = stored[f"{inner}position_encoding.pe"]

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = []
            for number in range(6):
                stride = (2 if number else 1, 2 if number == 5 else 1)
                parts += [
                    nn.Conv2d(CHANNELS[number], CHANNELS[number + 1], (3, 3), stride=stride, padding=(0, 1)),
                    nn.LeakyReLU(0.1),
                ]
            self.cnn = nn.Sequential(*parts)
            self.before, self.norm = nn.BatchNorm1d(1024), nn.BatchNorm1d(1024)
            self.down = nn.Linear(1024, 200)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(200, 8, 400, batch_first=True) for _ in range(LAYERS)
            )

        def forward(self, wave, begin: int):
            x = self.cnn(_compressed(wave)).flatten(1, -2)
            x = self.down(self.norm(self.before(x)).transpose(1, 2))
            x = x + places[:, begin : begin + x.shape[1]]
            for layer in self.layers:
                x = layer(x)
            return x

    names = {"cnn.cnn.": "cnn.", "transformer_pool_attn.norm_input.": "before.", f"{inner}norm.": "norm."}
    names |= {f"{inner}linear_proj.": "down.", f"{inner}transformer_encoder.layers.": "layers."}
    found = {
        name.replace(theirs, ours, 1): value
        for theirs, ours in names.items()
        for name, value in stored.items()
        if name.startswith(theirs)
    }
    encoder = Encoder()
    encoder.load_state_dict(found)
    return encoder.eval()


def _compressed(wave: Any) -> Any:
    """Spectra (n, 2, frequency, time) with magnitudes raised to 0.3."""
    import torch

    ends = (WINDOW - HOP) // 2
    padded = torch.nn.functional.pad(wave, (ends, ends), mode="reflect")
    found = torch.stft(
        padded, WINDOW, HOP, window=torch.hann_window(WINDOW), center=False, return_complex=True
    )
    size = found.abs().clamp(min=1e-12)
    return torch.view_as_real(size**0.3 * found / size).permute(0, 3, 1, 2)


def batches(number: int, seed: int) -> list[tuple[Any, int]]:
    """Waveforms and the position at which their frames begin."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, number, 32):
        wave = torch.tensor(audio(min(32, number - start), 2 * FRAMES * HOP, seed * 1_000_003 + start))
        found.append((wave, int(torch.randint(0, 384 - FRAMES, (1,), generator=generator))))
    return found
