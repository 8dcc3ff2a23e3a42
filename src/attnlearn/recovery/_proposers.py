"""The tables of `recover`: which proposers run, in which order.

| table `auto`, top to bottom | runs when |
|---|---|
| residual connection | the own token enters the outputs about as itself, and the moment does not model the tokens |
| wide search | the moment does not model the tokens |
| moment | always |
| moment of every example | the moment's fit is not exact, and the moment has not read every example |
| suggested count | the moment shows heads, but not how many, or not which |
| cause of the misfit | the best fit leaves structure |
| scores with positions | what the best fit leaves depends on the offset of key and query |
| wide search after the moment | nothing explains the outputs, and no known cause is in the way |
| one more head | what the best fit leaves may be a head |
| unrelated outputs | no layer was found |

A table ends at the first fit that is exact or on target. To add an idea, write a `Proposer` and give it a row.
"""

from __future__ import annotations

from attnlearn.recovery._of_moment import EveryExample, FromMoment, SuggestedCount
from attnlearn.recovery._of_search import (
    MisfitCause,
    OneMoreHead,
    ResidualConnection,
    UnrelatedOutputs,
    WideSearch,
    WideSearchLater,
)
from attnlearn.recovery._proposer import Proposer
from attnlearn.recovery.positions import WithPositions

_FROM_MOMENT = (FromMoment(), EveryExample(), SuggestedCount())
TABLES: dict[str, tuple[Proposer, ...]] = {
    "auto": (
        ResidualConnection(),
        WideSearch(),
        *_FROM_MOMENT,
        MisfitCause(),
        WithPositions(),
        WideSearchLater(),
        OneMoreHead(),
        UnrelatedOutputs(),
    ),
    "moment": (*_FROM_MOMENT, MisfitCause(), OneMoreHead(), UnrelatedOutputs()),
    "wide": (WideSearchLater(), MisfitCause(), OneMoreHead(), UnrelatedOutputs()),
}
"""The tables of the methods that look for heads in the data; sculpting and a given start have their own."""
