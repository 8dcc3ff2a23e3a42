"""What is established about a compressed layer: claim C1, its error against the source on examples read once.

C2 and C3 have no meaning here: the number of heads was asked for, and no true parameters exist to be near to. C1 is a
statement of fact. Errors are relative to an output's norm, or to the typical norm where the output is smaller. Without a
`target` C1 is established as long as it says something: an error of one output's norm is what answering zero has. It speaks of
nine inputs in ten: the worst of hundreds says little about a layer that is not exact.
"""

from __future__ import annotations

from attnlearn._certificate import Certificate
from attnlearn._layer import AttentionLayer
from attnlearn.compression._calibration import COVERED, SAYS_NOTHING
from attnlearn.solve._batch import Batch
from attnlearn.solve.certification import function_claim


def certify_compressed(
    layer: AttentionLayer, held: Batch, scale: float, target: float | None, unit: str = "input"
) -> Certificate:
    """C1 for `layer` on the certify examples `held`, whose outputs are the source's."""
    limit = SAYS_NOTHING if target is None else target
    name = "error against the source"
    claim, checks = function_claim(
        layer, held, scale, limit=limit, unit=unit, name=name, small=1.0, covered=COVERED
    )
    return Certificate((claim,), tuple(checks))
