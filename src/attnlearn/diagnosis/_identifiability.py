"""Whether the tokens determine the layer at all: three keys, the affine support, the Jacobian.

The check is the certificate of the *true* layer on its own outputs: what would not be established for the truth cannot
be for any answer. With data alone only the tokens can be judged: the number of keys, and the directions in which tokens
vary (on an affine subspace only the canonical form on it is determined).

Cost: one `certify`. Full rank of the Jacobian is local uniqueness only.
"""

from __future__ import annotations

import numpy as np

from attnlearn._canonical import Support
from attnlearn._certificate import Certificate, Check
from attnlearn._layer import AttentionLayer
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve._rank import largest_rank
from attnlearn.solve.certification import certify

UNSEEN = {
    "C2.apart": "closest two heads",
    "C2.visible": "least visible head",
    "C3.bound": "bound on the error of every Theta and W at rounding",
}


def identify(layer: AttentionLayer, x: np.ndarray, y: np.ndarray, support: Support | None) -> Certificate:
    """The certificate that the layer itself would get on these tokens, at the rank that its heads have."""
    held, rank = Batch(x, y), largest_rank(layer.theta)
    kept = rank if 0 < rank < layer.dim and support is None else None
    with np.errstate(divide="ignore", invalid="ignore"):  # a head without scores has no relative error
        return certify(layer, held, held, scale=example_scale(held), support=support, rank=kept)


def token_checks(keys: int, rank: int, dim: int) -> list[Check]:
    """What tokens alone say about identifiability."""
    return [
        Check.compare("tokens.keys", keys, 3, text="most keys that a query sees", at_most=False),
        Check.compare("tokens.rank", rank, dim, text="directions in which tokens vary", at_most=False),
    ]


def parameter_checks(certificate: Certificate) -> list[Check]:
    """The checks of the true layer's certificate that the tokens and the weights decide."""
    return [certificate.check(code) for code in UNSEEN]
