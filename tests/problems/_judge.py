"""Whether a certificate is false: any claim broken by the true layer or by fresh examples."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer, Certificate, distance
from attnlearn._canonical import Support


def broken_claims(
    certificate: Certificate,
    layer: AttentionLayer,
    truth: AttentionLayer | None,
    fresh: tuple[np.ndarray, np.ndarray],
    support: Support | None = None,
) -> list[str]:
    """Codes of the established claims that are wrong. Without a true layer C2 and C3 are wrong when established."""
    established = {claim.code: claim for claim in certificate.claims if claim.established}
    broken = []
    if "C1" in established:
        x, y = fresh
        value = established["C1"].value
        error = np.linalg.norm(layer(x) - y, axis=(1, 2)) / np.linalg.norm(y, axis=(1, 2)).clip(1e-300)
        scale = np.sqrt(np.mean(np.sum(y**2, axis=(1, 2))))
        small = np.linalg.norm(y, axis=(1, 2)) < 1e-3 * scale
        error = np.where(small, np.linalg.norm(layer(x) - y, axis=(1, 2)) / (1e-3 * scale), error)
        # Three standard deviations of the count itself, so that the judge is not fooled by its own sample.
        misses, allowed = int(np.sum(error > value["error"] * (1 + 1e-6))), (1 - value["fraction"]) * len(x)
        if misses > allowed + 3 * np.sqrt(allowed + 1):
            broken.append("C1")
    if "C2" in established and (truth is None or truth.canonical().num_heads != established["C2"].value):
        broken.append("C2")
    if "C3" in established and not _within(layer, truth, established["C3"].value["bound"], support):
        broken.append("C3")
    return broken


def _within(
    layer: AttentionLayer, truth: AttentionLayer | None, bound: float, support: Support | None
) -> bool:
    if truth is None or truth.causal != layer.causal:
        return False
    return distance(layer, truth, support=support).max <= bound
