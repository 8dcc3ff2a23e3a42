"""The spectral route as a list of phases, in the order of the theorem (theory, section 3).

prepare   white tokens, linear part removed
moment    the span of the heads from third-order statistics, above a known noise floor
count     the number of heads: what stands above the floor
unmix     the heads inside the span
Then the shared refine (to machine precision) and certify follow.
"""

from __future__ import annotations

from attnlearn.recovery.spectral._count import count
from attnlearn.recovery.spectral._moment import moment
from attnlearn.recovery.spectral._prepare import prepare
from attnlearn.recovery.spectral._unmix import unmix

PHASES = (("prepare", prepare), ("moment", moment), ("count", count), ("unmix", unmix))
