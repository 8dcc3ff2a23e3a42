"""C2 beside errors: each head is needed (`_needed`), and a further head would have been seen if it is like those planted (`_planted`).

That the heads are the only ones with these outputs rests on the tokens, as for exact fits (`certification._count`). The second opinion
accepts rivals that are as close as the errors hide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnlearn._certificate import Check, Claim, Status
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._deadline import passed
from attnlearn.solve._heads import drop_effects, head_separation, visibility
from attnlearn.solve.certification._count import Seen, look_at_tokens, token_checks
from attnlearn.solve.noise._needed import Needed, heads_needed, split_heads
from attnlearn.solve.noise._planted import PLANTED, Limits, detection_limits
from attnlearn.solve.noise._setting import LATE, Setting
from attnlearn.solve.noise._test_of_fit import some_sequences

HALF = 0.5
"""The share of the inputs on which visibility is measured."""
CARRIED_BY = 30.0
"""Sequences of equal influence below which errors do not count as errors with mean zero, nor the normal approximation as good: a few
foreign sequences leave about as many as they are, honest noise 250 and more of 1,500."""
LIKE_PLANTED = (
    "a further head is like those planted for the test (two close heads: like one head split in two)"
)


class _Evidence(NamedTuple):
    """What the examples show of the heads: which are needed, which others would have been seen, and what the tokens show."""

    needed: Needed
    split: float
    limits: Limits
    visible: float
    """The visibility of the least visible head."""
    seen: Seen


def count_beside_errors(
    at: Setting, c1: Claim, carried_by: float, deadline: float | None
) -> tuple[Claim, list[Check], Seen]:
    """C2 and its checks at the coverage of C1, and what the tokens show; nothing is looked at once the time is over.

    `carried_by` is the number of sequences of equal influence that would move the parameters as the errors do. Where it is
    small, a few sequences are not this layer's with errors, but something else.
    """
    if passed(deadline):
        return _not_looked_at()
    found = _look(at, c1.value["examples"], deadline)
    checks = [
        *_head_checks(at, found, c1.value["fraction"]),
        _influence_check(carried_by),
        *token_checks(at.layer, at.held, found.seen),
    ]
    claim = Claim.stated(
        "C2",
        _text(at.layer.num_heads, found),
        all(check.status is Status.HOLDS for check in checks),
        at.layer.num_heads,
        assumes=(*found.seen.assumes, at.errors, LIKE_PLANTED),
        scope={"apart": found.limits.apart, "visible": found.limits.visible, "fraction": HALF},
    )
    return claim, checks, found.seen


def _not_looked_at() -> tuple[Claim, list[Check], Seen]:
    codes = ("C2.needed", "C2.further", "C2.apart", "C2.rivals")
    checks = [Check(code, Status.NOT_RUN, text=LATE) for code in codes]
    claim = Claim("C2", f"the number of heads was not looked at: {LATE}", False)
    return claim, checks, Seen(None, None, LATE)


def _look(at: Setting, units: int, deadline: float | None) -> _Evidence:
    """All measurements of C2, where C1 judged so many units."""
    layer, held, used = at.layer, at.held, at.used
    needed = heads_needed(layer, used, held, rank=at.rank, deadline=deadline)
    split = split_heads(layer, used, held, deadline=deadline)
    some = used.take(np.arange(some_sequences(used.num, used.x.shape[1])))
    limits = detection_limits(layer, some, at.scale, judged=units, rank=at.rank)
    effects = drop_effects(layer, some, held.first(calibration.SAMPLE), at.scale)
    visible = float(visibility(effects, HALF).min())
    seen = look_at_tokens(layer, held, used, False, deadline, tolerance=_indistinct(at, visible))
    return _Evidence(needed, split, limits, visible, seen)


def _head_checks(at: Setting, found: _Evidence, covered: float) -> list[Check]:
    """The checks of C2 that are about heads, where C1 speaks of so large a share of the inputs."""
    return [
        Check.compare(
            "C2.evidence", 1 - covered, calibration.UNCOVERED, unit="fraction of inputs", text="inputs that were not looked at"
        ),
        Check.compare(
            "C2.needed", found.needed.doubtful, calibration.DELTA, unit="probability",
            text="chance that a fit without the least needed head loses so often:",
        ),
        Check.compare(
            "C2.split", found.split, calibration.DELTA, unit="probability", at_most=False,
            text="chance that a fit with one head split in two wins so often:",
        ),
        Check.compare(
            "C2.further", found.limits.visible, at.accuracy, unit="relative output", text="least visible head that was seen when planted"
        ),
        Check.compare(
            "C2.visible", found.visible, found.limits.visible, unit="relative output", text="least visible head", at_most=False
        ),
        Check.compare(
            "C2.apart", head_separation(at.layer), found.limits.apart, unit="relative distance", text="closest two heads", at_most=False
        ),
    ]  # fmt: skip


def _influence_check(carried_by: float) -> Check:
    return Check.compare(
        "C2.influence", carried_by, CARRIED_BY, unit="sequences",
        text="sequences of equal influence that would carry as much", at_most=False,
    )  # fmt: skip


def _text(heads: int, found: _Evidence) -> str:
    needed = (
        f"{heads} head{'s' * (heads > 1)}: no fit with one less that was found does as well (sign test for each head, "
        f"{found.needed.refitted} with all others refitted)"
    )
    if not np.isfinite(found.limits.visible):
        return f"{needed}; not every planted head was seen, so nothing is said of further ones"
    return (
        f"{needed}, and a further head that is at least {found.limits.visible:.2g} visible on half "
        f"of the inputs and {found.limits.apart:.2g} apart from the others would probably have been seen ({PLANTED} of {PLANTED} planted "
        f"ones were: at least 86 % with confidence 95 %)"
    )


def _indistinct(at: Setting, visible: float) -> float:
    """The share of the least visible head's outputs by which another layer may differ without a difference that examples show."""
    squares = np.sum(np.square(at.residual, dtype=np.float64), axis=(1, 2))
    error = float(np.sqrt(np.mean(squares))) / at.scale
    share = calibration.TRIES * error / np.sqrt(at.used.num)
    return float(min(share / max(visible, np.finfo(float).tiny), calibration.ENOUGH_SHARE))
