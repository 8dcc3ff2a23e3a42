"""Choose and merge: from h + 1 heads to a start with h, before anything is refined.

One Gram matrix has the costs of all drops, refit included (`solve/_drop`). Merging heads i and j puts (t Theta_i + (1 - t) Theta_j) in their
place, t their share of the output; to first order in the scores that loses
e_i e_j/(e_i + e_j) ‖Theta_i - Theta_j‖^2, e_i = ‖W_i‖^2, all in white coordinates. The cheapest pair is tried, its cost
with refitted W measured, and the cheaper of drop and merge is the start.

Cost: two Gram matrices, O(rows (m d)^2), and one Cholesky factor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn._attention import Parameters
from attnlearn._layer import AttentionLayer
from attnlearn.solve._drop import WhitenedRegression, drop_costs, select


class Start(NamedTuple):
    """A layer with one head fewer, how it was made, and the relative errors that its rivals had on fit examples."""

    layer: AttentionLayer
    made_by: str
    errors: dict[str, float]


def one_fewer(layer: AttentionLayer, ground: WhitenedRegression) -> Start:
    """The better of dropping one head and merging two, W and b refitted."""
    inside = ground.enter(layer)
    costs = drop_costs(inside, ground)
    least = int(np.argmin(costs))
    dropped, cost = ground.refit(select(inside, np.delete(np.arange(layer.num_heads), least)))
    errors = {"dropped": float(np.sqrt(cost))}
    merged, merged_cost = ground.refit(_merged(inside, *cheapest_pair(inside)))
    errors["merged"] = float(np.sqrt(merged_cost))
    return Start(merged, "merge", errors) if merged_cost < cost else Start(dropped, "drop", errors)


def cheapest_pair(inside: Parameters) -> tuple[int, int]:
    """The two heads whose merging loses least to first order in the scores."""
    stacked = np.concatenate([inside.theta, inside.query_bias[:, None, :]], axis=1)
    energy = np.sum(np.square(inside.w), axis=(1, 2))
    m = len(stacked)
    pairs = [(i, j) for i in range(m) for j in range(i)]
    lost = [
        np.sum(np.square(stacked[i] - stacked[j]))
        * energy[i]
        * energy[j]
        / max(energy[i] + energy[j], np.finfo(float).tiny)
        for i, j in pairs
    ]
    return pairs[int(np.argmin(lost))]


def _merged(inside: Parameters, i: int, j: int) -> Parameters:
    energy = np.sum(np.square(inside.w), axis=(1, 2))
    share = energy[i] / max(energy[i] + energy[j], np.finfo(float).tiny)
    theta, c = inside.theta.copy(), inside.query_bias.copy()
    theta[j] = share * theta[i] + (1 - share) * theta[j]
    c[j] = share * c[i] + (1 - share) * c[j]
    kept = np.delete(np.arange(len(theta)), i)
    return select(inside._replace(theta=theta, query_bias=c), kept)
