"""C2 beside errors: each head is needed (`_needed`), and a further head would have been seen if it is like those planted (`_planted`).

That the heads are the only ones with these outputs rests on the tokens, as for exact fits (`certification._count`). The second opinion
accepts rivals that are as close as the errors hide.
"""

from __future__ import annotations

import numpy as np

from attnlearn._certificate import Check, Claim, Status
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._deadline import passed
from attnlearn.solve._heads import drop_effects, head_separation, visibility
from attnlearn.solve.certification._count import Seen, look_at_tokens, token_checks
from attnlearn.solve.noise._needed import heads_needed, split_heads
from attnlearn.solve.noise._planted import PLANTED, detection_limits
from attnlearn.solve.noise._setting import LATE, Setting
from attnlearn.solve.noise._test_of_fit import some_sequences

HALF = 0.5
"""The share of the inputs on which visibility is measured."""
LIKE_PLANTED = "a further head is like those planted and two close heads would be found from one split in two"


def count_beside_errors(at: Setting, c1: Claim, deadline: float | None) -> tuple[Claim, list[Check], Seen]:
    layer, held = at.layer, at.held
    if passed(deadline):
        late = [
            Check(code, Status.NOT_RUN, text=LATE)
            for code in ("C2.needed", "C2.further", "C2.apart", "C2.rivals")
        ]
        return (
            Claim("C2", f"the number of heads was not looked at: {LATE}", False),
            late,
            Seen(None, None, LATE),
        )
    units = c1.value["examples"]
    needed = heads_needed(layer, at.used, held, rank=at.rank, deadline=deadline)
    split = split_heads(layer, at.used, held, deadline=deadline)
    some = at.used.take(np.arange(some_sequences(at.used.num, at.used.x.shape[1])))
    limits = detection_limits(layer, some, at.scale, judged=units, rank=at.rank)
    effects = drop_effects(layer, some, held.first(calibration.SAMPLE), at.scale)
    seen_alone = visibility(effects, HALF)
    seen = look_at_tokens(
        layer, held, at.used, False, deadline, tolerance=_indistinct(at, float(seen_alone.min()))
    )
    checks = [
        Check.compare(
            "C2.evidence", 1 - c1.value["fraction"], calibration.UNCOVERED, unit="fraction of inputs", text="inputs that were not looked at"
        ),
        Check.compare(
            "C2.needed", needed.doubtful, calibration.DELTA, unit="probability",
            text="chance that a fit without the least needed head loses so often:",
        ),
        Check.compare(
            "C2.split", split, calibration.DELTA, unit="probability", at_most=False,
            text="chance of what a fit with a head split in two wins:",
        ),
        Check.compare(
            "C2.further", limits.visible, at.accuracy, unit="relative output", text="least visible head that was seen when planted"
        ),
        Check.compare(
            "C2.visible", float(seen_alone.min()), limits.visible, unit="relative output", text="least visible head", at_most=False
        ),
        Check.compare(
            "C2.apart", head_separation(layer), limits.apart, unit="relative distance", text="closest two heads", at_most=False
        ),
        *token_checks(layer, held, seen),
    ]  # fmt: skip
    scope = {"apart": limits.apart, "visible": limits.visible, "fraction": HALF}
    text = (
        f"{layer.num_heads} head{'s' * (layer.num_heads > 1)}: no fit with one less that was found does as well (sign test for each head, "
        f"{needed.refitted} with all others refitted), and a further head that is at least {limits.visible:.2g} visible on half of the inputs and "
        f"{limits.apart:.2g} apart from the others would probably have been seen ({PLANTED} of {PLANTED} planted ones were: at least 86 % with "
        f"confidence 95 %)"
    )
    assumes = (*seen.assumes, at.errors, LIKE_PLANTED)
    established = all(check.status is Status.HOLDS for check in checks)
    return Claim.stated("C2", text, established, layer.num_heads, assumes=assumes, scope=scope), checks, seen


def _indistinct(at: Setting, visible: float) -> float:
    """The share of the least visible head's outputs by which another layer may differ without a difference that examples show."""
    squares = np.sum(np.square(at.residual, dtype=np.float64), axis=(1, 2))
    error = float(np.sqrt(np.mean(squares))) / at.scale
    share = calibration.TRIES * error / np.sqrt(at.used.num)
    return float(min(share / max(visible, np.finfo(float).tiny), calibration.ENOUGH_SHARE))
