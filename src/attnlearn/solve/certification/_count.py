"""C2: the number of heads of every layer with these outputs, on these tokens.

If two layers agree on sequences with a joint density and three visible keys, they have the same canonical heads. So the count
is read off a fit that is exact to rounding, within stated limits: heads at least `apart` from each other, each at least
`visible`. A head's visibility is what leaving it out costs after the W of all others are fitted again, on the stated fraction
of the inputs. Heads that cancel each other on these tokens, and heads for inputs that hardly occur, are not visible.
The checks are the conditions of the theorem as far as data can show them (`_position`, `_rivals`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnlearn._canonical import Support, on_support
from attnlearn._certificate import Check, Claim, Status
from attnlearn._layer import AttentionLayer
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, exactness_limit
from attnlearn.solve._deadline import passed
from attnlearn.solve._heads import drop_effects, head_separation, offsets_of, shown_scores, visibility
from attnlearn.solve.certification._mirrors import mirrored_opinion
from attnlearn.solve.certification._parameters import LATE
from attnlearn.solve.certification._position import Position, measure_position
from attnlearn.solve.certification._rivals import Opinion, Rival, second_opinion, starts_wanted

DENSITY = "the tokens of a sequence have a joint density"
CENTRED = "sequences with a fixed sum and otherwise a joint density tell layers apart"
GENERAL = "the layer is in general position, for these tokens have no density"


@dataclass(frozen=True)
class Seen:
    """What the tokens show: general position (None where we drew them from a density ourselves) and the second opinion.

    Without an opinion nobody has looked, for the reason `unseen`: the fit is not exact, and nothing rests on it; or the time was
    over.
    """

    position: Position | None
    opinion: Opinion | None
    unseen: str = "the fit is not exact"

    @property
    def rival(self) -> Rival | None:
        """Another layer with the same outputs, if one was found."""
        return None if self.opinion is None else self.opinion.rival

    @property
    def assumes(self) -> tuple[str, ...]:
        """What has to be taken for granted about tokens or layer."""
        if self.position is None:
            return ()
        if not self.position.continuous:
            return (GENERAL,)
        return (CENTRED,) if self.position.centred else (DENSITY,)


UNSEEN = Seen(None, None)


def look_at_tokens(
    layer: AttentionLayer,
    held: Batch,
    fitted: Batch,
    designed: bool,
    deadline: float | None = None,
    tolerance: float | None = None,
) -> Seen:
    """General position of the tokens and the second opinion on them; thorough where the tokens are suspicious.

    `tolerance` is the relative error up to which another layer is as good, where outputs carry errors.
    """
    if passed(deadline):
        return Seen(None, None, LATE)
    if not layer.plain_scores:
        return _with_positions(layer, held, fitted, deadline)
    if designed:
        return Seen(None, second_opinion(layer, fitted, deadline=deadline), LATE)
    x, mask = _both(held, fitted)
    position = measure_position(x, mask)
    opinion = second_opinion(
        layer, fitted, thorough=_suspicious(position), deadline=deadline, tolerance=tolerance
    )
    return Seen(position, opinion, LATE)


def _suspicious(position: Position) -> bool:
    """Whether tokens show anything that a density would not."""
    return not position.free or position.balanced > 0 or position.spread < 1 or position.quadrics > 0


def _with_positions(layer: AttentionLayer, held: Batch, fitted: Batch, deadline: float | None) -> Seen:
    """What tokens show to a layer whose scores depend on positions: only where they look as if they had a density is it judged."""
    position = measure_position(*_both(held, fitted))
    if _suspicious(position) or not position.continuous:
        return Seen(
            position, None, "these tokens look as if they had no density, which scores with positions need"
        )
    return Seen(position, mirrored_opinion(layer, fitted, deadline), LATE)


def _both(held: Batch, fitted: Batch) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens of both sides, the certify side, which is spread over all data, first."""
    x = np.concatenate([held.x, fitted.x])[: calibration.LOOK_MOST]
    if held.mask is None and fitted.mask is None:
        return x, None
    masks = [np.ones(side.x.shape[:2], bool) if side.mask is None else side.mask for side in (held, fitted)]
    return x, np.concatenate(masks)[: calibration.LOOK_MOST]


def _separation(layer: AttentionLayer, support: Support | None, keys: int) -> float:
    """How far the closest two heads are apart, on the support and at the offsets that so many keys have."""
    return head_separation(layer if support is None else on_support(layer, support), offsets_of(layer, keys))


def count_claim(
    layer: AttentionLayer,
    held: Batch,
    fitted: Batch,
    *,
    eps: float,
    floor: float,
    bound: float | str,
    scale: float,
    fraction: float,
    support: Support | None,
    seen: Seen,
    where: str = "",
    precision: np.dtype | None = None,
) -> tuple[Claim, list[Check]]:
    """The claim and its checks; `bound` is C3's (or the reason why there is none), `fraction` the share of inputs about which C1 says nothing."""
    limit = exactness_limit(floor, layer.dtype if precision is None else precision)
    clear = calibration.STANDS_OUT
    apart = max(0.0 if isinstance(bound, str) else clear * bound, least_apart(limit))
    visible = clear * max(eps, floor)
    sample = held.first(calibration.SAMPLE)
    effects = visibility(drop_effects(layer, _enough(layer, fitted), sample, scale), fraction)
    distance = bound if isinstance(bound, str) else _separation(layer, support, held.x.shape[1])
    checks = [
        Check.compare(
            "C2.evidence", fraction, calibration.UNCOVERED, unit="fraction of inputs", text="inputs that were not looked at"
        ),
        Check.compare("C2.exact", eps, limit, unit="relative error", text="fit exact to rounding: error"),
        _apart(distance, apart),
        Check.compare(
            "C2.visible", float(np.min(effects)), visible,
            unit="relative output", text="least visible head", at_most=False,
        ),
        *_content(layer, held.x.shape[1], apart),
        *token_checks(layer, held, seen),
    ]  # fmt: skip
    established = all(check.status is Status.HOLDS for check in checks)
    scope = {"apart": apart, "visible": visible, "fraction": fraction, "outputs": eps}
    text = _text(layer.num_heads, scope, where)
    return Claim.stated("C2", text, established, layer.num_heads, assumes=seen.assumes, scope=scope), checks


def least_apart(limit: float) -> float:
    """The least distance of heads that a claim speaks of when errors up to `limit` count as exact, however sharp C3's bound is."""
    return max(calibration.APART_LEAST, (calibration.STANDS_OUT * limit) ** 0.5)


def _content(layer: AttentionLayer, tokens: int, least: float) -> list[Check]:
    """For scores with positions: no head may be one of offsets alone, or vanish at some offset but 0."""
    if layer.plain_scores:
        return []
    theta, biases = shown_scores(layer, [offset for offset in offsets_of(layer, tokens) if offset])
    own = np.concatenate([theta, biases[:, :, None, : layer.dim]], axis=2)
    sizes = np.linalg.norm(own, axis=(2, 3))
    share = float(sizes.min() / max(sizes.max(), np.finfo(float).tiny)) if sizes.size else 0.0
    text = "least scores of a head at an offset, relative to the largest"
    return [Check.compare("C2.content", share, least, unit="relative size", text=text, at_most=False)]


def _apart(distance: float | str, apart: float) -> Check:
    if isinstance(distance, str):
        return Check("C2.apart", Status.NOT_RUN, text=f"closest two heads: {distance}")
    return Check.compare(
        "C2.apart", distance, apart, unit="relative distance", text="closest two heads", at_most=False
    )


def _text(heads: int, scope: dict[str, float], where: str) -> str:
    if scope["apart"] > 1:  # no two heads are so far from each other
        return f"{heads} head{'s' * (heads > 1)} explain the outputs too roughly to exclude another number"
    return (
        f"{heads} head{'s' * (heads > 1)}: every layer that gives these outputs to {scope['outputs']:.2g}, with heads at least "
        f"{scope['apart']:.2g} apart and each at least {scope['visible']:.2g} visible on {100 * scope['fraction']:.2g} % of "
        f"inputs{where}, has {heads}"
    )


def _enough(layer: AttentionLayer, fitted: Batch) -> Batch:
    """As many fitted sequences as determine the W of all heads."""
    rows = calibration.EQUATIONS_PER_UNKNOWN * (layer.num_heads * layer.dim + 1)
    return fitted.first(max(calibration.SAMPLE, -(-rows // fitted.x.shape[1])))


def token_checks(layer: AttentionLayer, held: Batch, seen: Seen) -> list[Check]:
    """What the tokens show of the conditions of uniqueness, and the second opinion."""
    position, opinion = seen.position, seen.opinion
    most = layer.visible.most_keys(held.x.shape[1])
    if opinion is None:
        return [Check("C2.rivals", Status.NOT_RUN, text=f"other layers with the same outputs: {seen.unseen}")]
    rivals = Check.compare(
        "C2.rivals", int(opinion.rival is not None), 0,
        unit="layers", text=f"other layers with the same outputs that {opinion.tried} tries found",
    )  # fmt: skip
    if position is None:
        keys = held.x.shape[1] if held.mask is None else int(held.mask.sum(axis=1).max())
        return [_keys(min(keys, most)), rivals]
    return [_keys(min(position.keys, most)), *_position_checks(position, opinion), rivals]


def _keys(number: int) -> Check:
    return Check.compare(
        "C2.keys",
        number,
        calibration.LEAST_KEYS,
        unit="keys",
        text="different keys of a sequence",
        at_most=False,
    )


def _position_checks(position: Position, opinion: Opinion) -> list[Check]:
    checks = [
        Check.compare(
            "C2.spread", position.spread, 1.0,
            unit="of full rank", text="rank of the differences of a sequence's tokens", at_most=False,
        ),
        Check.compare(
            "C2.tied", 0 if position.centred else max(position.tied, position.functions), 0,
            unit="directions", text="directions of a sequence that its other tokens determine",
        ),
    ]  # fmt: skip
    checks.append(
        Check.compare(
            "C2.manifold", position.quadrics, 0, unit="quadrics", text="quadrics that hold all tokens"
        )
    )
    if position.balanced:
        checks.append(
            Check.compare(
                "C2.symmetry", opinion.agreed, starts_wanted(), unit="starts", at_most=False,
                text="the tokens have a fixed sum: starts that found the same head again",
            )
        )  # fmt: skip
    return checks
