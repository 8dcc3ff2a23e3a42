"""Evidence for the right cause and for wrong ones, over the teachers of the tests."""

from __future__ import annotations

import numpy as np

from attnlearn import AttentionLayer
from attnlearn.solve._diagnose import diagnose
from benchmarks.calibrate import show, span
from tests.solve.test_diagnose import TEACHERS

COVERS = ("SUPPORTED",)


def main() -> None:
    """The evidence of the cause that is there beside the largest of another one, and evidence where there is no cause."""
    right, lead, none = [], [], []
    for name, teacher in {**TEACHERS, "plain": lambda x, layer, rng: layer(x)}.items():
        for seed in range(4):
            rng = np.random.default_rng(seed)
            layer, x = AttentionLayer.random(2, 8, seed=seed), rng.standard_normal((4_000, 4, 8))
            found = {cause.name: cause.evidence for cause in diagnose(x, teacher(x, layer, rng)).causes}
            if name in found:
                right.append(found.pop(name))
                lead.append(right[-1] - max(found.values()))
            else:
                none.append(max(found.values()))
    show(
        "SUPPORTED",
        f"evidence of the right cause {span(right)}, ahead of others by {span(lead)}; without a cause {span(none)}",
    )


if __name__ == "__main__":
    main()
