"""Layers on the edge of what can be learned: parities, square waves, near-degenerate families.

`parity` and `rounding` are the families behind the hardness results; `near_degenerate` approaches each
non-degeneracy condition by a distance of one's choice; `dial` goes from a generic layer to a parity. `sq_bound` and
`simulate_queries` say what statistical queries must cost, `solve_parity` and `query_parity` what they need not.
"""

from attnlearn.hard._degenerate import DEGENERACIES, near_degenerate
from attnlearn.hard._dial import dial
from attnlearn.hard._elimination import Elimination, flip_labels, query_parity, solve_parity
from attnlearn.hard._family import all_patterns, parity_gram, parity_members, parity_subsets
from attnlearn.hard._parity import parity, parity_subset
from attnlearn.hard._rounding import learning_with_rounding, lwr_heads, rounding, rounding_reach
from attnlearn.hard._statistical import QueryRun, simulate_queries, sq_bound

__all__ = [
    "DEGENERACIES",
    "Elimination",
    "QueryRun",
    "all_patterns",
    "dial",
    "flip_labels",
    "learning_with_rounding",
    "lwr_heads",
    "near_degenerate",
    "parity",
    "parity_gram",
    "parity_members",
    "parity_subset",
    "parity_subsets",
    "query_parity",
    "rounding",
    "rounding_reach",
    "simulate_queries",
    "solve_parity",
    "sq_bound",
]
