"""Synthesised speech-like audio: voiced syllables of gliding pitch with three formants, hisses, pauses and a little noise."""

from __future__ import annotations

import numpy as np

RATE = 16_000


def audio(number: int, samples: int, seed: int) -> np.ndarray:
    """Waveforms (number, samples) of size at most one, in float32."""
    rng = np.random.default_rng([seed, 0xA0D10])
    return np.stack([_one(samples, rng) for _ in range(number)]).astype(np.float32)


def _one(samples: int, rng: np.random.Generator) -> np.ndarray:
    wave, place = 10 ** rng.uniform(-4, -2) * rng.standard_normal(samples), 0
    voice = rng.uniform(80, 300)
    while place < samples:
        length = int(RATE * rng.uniform(0.05, 0.3))
        part = slice(place, min(place + length, samples))
        kind, time = rng.random(), np.arange(length) / RATE
        if kind < 0.65:
            sound = _voiced(time, voice * rng.uniform(0.8, 1.25), rng)
        elif kind < 0.85:
            sound = np.diff(rng.standard_normal(length + 1)) * rng.uniform(0.02, 0.2)
        else:
            sound = np.zeros(length)
        wave[part] += (sound * np.hanning(length))[: part.stop - part.start]
        place += length
    return wave / np.abs(wave).max()


def _voiced(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    """Harmonics of a gliding pitch, shaped by three formants."""
    phase = 2 * np.pi * pitch * (time + rng.uniform(-1, 1) * time**2)
    formants = np.array([rng.uniform(250, 900), rng.uniform(800, 2400), rng.uniform(2200, 3600)])
    harmonics = np.arange(1, int(4000 / pitch) + 1)
    near = ((harmonics[:, None] * pitch - formants) / np.array([90, 120, 200])) ** 2
    size = (np.array([1.0, 0.5, 0.25]) / (1 + near)).sum(axis=1)
    return rng.uniform(0.2, 1.0) * (size[:, None] * np.sin(harmonics[:, None] * phase)).sum(axis=0)
