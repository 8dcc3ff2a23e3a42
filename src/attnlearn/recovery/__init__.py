"""Learning a layer from random examples: signals, a table of proposers, one fit, one outcome.

Read it in this order: `_signals` (what is measured), `_proposers` (the table), `_repairs` (how a candidate is fitted), `_driver`
(the loop), `_outcome` (how a run ends).
"""

from attnlearn.recovery._config import SpectralConfig
from attnlearn.recovery._explain import Explanation, explain
from attnlearn.recovery._recover import recover

__all__ = ["Explanation", "SpectralConfig", "explain", "recover"]
