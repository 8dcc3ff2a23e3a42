"""From measured conditions to a verdict on each route."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attnlearn._certificate import Certificate, Check, Status
from attnlearn._layer import AttentionLayer
from attnlearn._result import Outcome
from attnlearn.data import Examples
from attnlearn.diagnosis import _calibration as calibration
from attnlearn.diagnosis._advice import Advice, RouteAdvice, spoken
from attnlearn.diagnosis._gap import Gap
from attnlearn.diagnosis._identifiability import identify
from attnlearn.diagnosis._needs import (
    memory,
    query_count,
    sculpt_examples,
    spectral_examples,
)
from attnlearn.diagnosis._weights import independence
from attnlearn.extraction._calibration import CERTIFY_TOKENS, LOGIT_STD
from attnlearn.recovery._calibration import GROWN_MOST, WIDE_FIRST, WIDTHS
from attnlearn.recovery._explain import Row
from attnlearn.recovery._problem import examples_for
from attnlearn.solve._heads import head_separation, largest_cosine
from attnlearn.solve._rank import largest_rank
from attnlearn.solve._split import sequences_in_all
from attnlearn.solve._unknowns import layer_unknowns, sequences_wanted, unknowns
from attnlearn.solve._white import Whitening

SAID = {
    "C2.keys": "with two keys a head equals its negative plus a constant one: only the function can be learned",
    "C2.apart": "two heads are too close to be told apart",
    "C2.visible": "a head adds less to the outputs than rounding",
    "C3.tokens": "the tokens vary in too few directions",
    "C3.equations": "there are fewer equations than unknowns",
    "C3.bound": "the outputs do not determine the weights (the Jacobian is singular to rounding)",
    "attention.scores": "a head's scores vary so little that its attention drowns in rounding",
    "sculpt.capacity": "too many heads or tokens for the size of the outputs (m(k−1) exceeds d_out), so no row can prove that all heads agree",
    "sum.cancellation": "the projections cancel in the sum",
    "attention.saturation": "attention is one-hot on these tokens",
}


@dataclass(frozen=True)
class Facts:
    """What the verdicts on a layer rest on."""

    layer: AttentionLayer
    x: np.ndarray
    gap: Gap
    certificate: Certificate
    queried: Certificate
    given: int | None

    @classmethod
    def of_layer(
        cls,
        layer: AttentionLayer,
        x: np.ndarray,
        y: np.ndarray,
        gap: Gap,
        white: Whitening,
        given: int | None,
        seed: int,
    ) -> Facts:
        """Identifiability on the given tokens, and on tokens that a querying learner would choose."""
        few = slice(calibration.IDENTIFY_SEQUENCES)
        support = None if white.directions == layer.dim else white.support
        certificate = queried = identify(layer, x[few], y[few], support)
        if given is not None or not _moderate(layer):  # otherwise queries would be tokens just like these
            chosen = chosen_tokens(layer, x.shape[1], seed)
            queried = identify(layer, chosen, layer(chosen), None)
        return cls(layer, x, gap, certificate, queried, given)


def _moderate(layer: AttentionLayer) -> bool:
    """Whether Gaussian tokens of unit variance give scores that are neither flat nor saturated."""
    low, high = calibration.MODERATE_SCORES
    return bool(low <= np.median(np.linalg.norm(layer.theta.astype(float), axis=(1, 2))) <= high)


def chosen_tokens(layer: AttentionLayer, tokens: int, seed: int) -> np.ndarray:
    """Gaussian sequences at the scale where the scores are neither flat nor saturated, of three tokens at least."""
    shape = (calibration.IDENTIFY_SEQUENCES, max(tokens, CERTIFY_TOKENS), layer.dim)
    x = np.random.default_rng([seed, 0xC0D]).standard_normal(shape).astype(layer.dtype)
    typical = float(np.median(np.linalg.norm(layer.theta.astype(float), axis=(1, 2))))
    return x * np.asarray(math.sqrt(LOGIT_STD / max(typical, np.finfo(np.float32).tiny)), layer.dtype)


def judge_layer(facts: Facts, checks: list[Check]) -> Advice:
    """Every route's verdict on a layer."""
    return Advice.choose([_spectral(facts, checks), _queries(facts), _sculpt(facts, checks)])


def judge_placed(layer: AttentionLayer, tokens: int) -> Advice:
    """Every route's verdict on a layer with positions, a window or a prefix."""
    plain = "it knows plain attention alone, where keys are seen alike wherever they stand"
    if layer.form.rule:
        reason = f"it looks for no {layer.form.words()}"
        recover = RouteAdvice("recover", False, None, None, reason)
    else:
        needed = sequences_in_all(2 * sequences_wanted(layer.form, layer.out_dim, tokens, layer.visible))
        size = memory("recover", needed, tokens, layer.dim, layer.out_dim)
        reason = "kinds of positions are searched from random starts, which may all miss the layer"
        recover = RouteAdvice("recover", None, needed, size, reason)
    return Advice.choose(
        [recover, *(RouteAdvice(route, False, None, None, plain) for route in ("extract", "sculpt"))]
    )


def _failing(checks: list[Check] | tuple[Check, ...], codes: tuple[str, ...]) -> str:
    """The first condition of `codes` that fails, in words."""
    failed = {check.code for check in checks if check.status is Status.FAILS}
    return next((SAID[code] for code in codes if code in failed), "")


def _undetermined(facts: Facts, *codes: str) -> str:
    """Why the tokens given would not determine the layer, in words; else empty. A single head is apart from any other."""
    codes += ("C2.apart",) if facts.layer.num_heads > 1 else ()
    return _failing(facts.certificate.checks, (*codes, "C2.visible", "C3.bound"))


def _spectral(facts: Facts, checks: list[Check]) -> RouteAdvice:
    layer, gap = facts.layer, facts.gap
    k = facts.x.shape[1]
    hidden = calibration.HIDDEN if _grows(facts) else 0
    if hidden and layer.dim <= WIDE_FIRST and layer.num_heads <= WIDTHS[0]:
        needed = examples_for(layer_unknowns(layer, None), k * layer.out_dim)
    else:
        needed = spectral_examples(gap, layer_unknowns(layer, None), k * layer.out_dim, hidden)
    reason = "" if gap.stopped is None else Outcome[gap.stopped].reason
    reason = reason or _undetermined(facts, "C2.keys") or _failing(checks, ("attention.scores",))
    limit = calibration.LARGEST_NEED if facts.given is None else facts.given
    if (
        not reason
        and needed > limit
        and needed == examples_for(layer_unknowns(layer, None), k * layer.out_dim)
    ):
        reason = f"it takes {spoken(needed)} examples to determine and to certify so many unknowns"
    elif not reason and needed > limit:
        seen = gap.ratio_without(hidden)
        reason = (
            f"the weakest head that must be seen is {seen:.2g} floors high at {spoken(gap.fitted)} examples"
        )
    size = memory("recover", needed, k, layer.dim, layer.out_dim) if math.isfinite(needed) else None
    return RouteAdvice("recover", not reason, needed, size, reason)


def _grows(facts: Facts) -> bool:
    """Whether a head that the moment does not show would be looked for: what the others leave shows it, however faint."""
    layer = facts.layer
    small = layer.dim <= GROWN_MOST and layer.num_heads <= WIDTHS[1]
    return small and (facts.certificate.check("C2.apart").value or 0.0) >= calibration.HIDDEN_EFFECT


def _queries(facts: Facts) -> RouteAdvice:
    layer = facts.layer
    ranks = largest_rank(layer.theta), largest_rank(layer.w)
    needed = query_count(layer.num_heads, layer.dim, layer.out_dim, *ranks)
    reason = _failing(facts.queried.checks, ("C2.apart", "C2.visible", "C3.bound"))
    if not reason and head_separation(layer) < calibration.QUERIES_APART:
        reason = "two heads are so close that their Jacobians do not separate"
    reason = reason or beyond_search(layer)
    size = memory("extract", needed, 3, layer.dim, layer.out_dim)
    return RouteAdvice("extract", not reason, needed, size, reason)


def beyond_search(layer: AttentionLayer) -> str:
    """Why `extract` would not find heads whose values depend on each other, which it must search for; else empty."""
    heads = layer.num_heads
    if heads <= layer.out_dim and largest_cosine(layer.w) <= calibration.QUERIES_PARALLEL:
        return ""
    if heads > calibration.QUERIES_SEARCHED:
        return f"the values of more than {calibration.QUERIES_SEARCHED} heads depend on each other"
    if np.linalg.norm(layer.theta, ord=2, axis=(1, 2)).max() > calibration.QUERIES_STRONG:
        return "heads write in the same way, with scores so strong that rounding hides their last digits"
    scores = np.concatenate([layer.theta, layer.query_bias[:, None, :]], axis=1)
    if independence(scores) < calibration.QUERIES_INDEPENDENT:
        return "heads write in the same way and their scores depend on each other"
    return ""


def _sculpt(facts: Facts, checks: list[Check]) -> RouteAdvice:
    layer, k = facts.layer, facts.x.shape[1]
    reason = _failing(checks, ("attention.saturation",)) or _undetermined(facts, "C2.keys")
    reason = reason or _failing(checks, ("sculpt.capacity", "sum.cancellation"))
    if not reason and layer.num_heads > calibration.SCULPT_HEADS:
        reason = f"more than {calibration.SCULPT_HEADS} heads agree too rarely"
    if reason:
        return RouteAdvice("sculpt", False, None, None, reason)
    needed = sculpt_examples(layer, facts.x)
    limit = calibration.LARGEST_NEED * 10 if facts.given is None else facts.given
    if needed > limit:
        reason = "rows in which all heads agree are too rare"
    size = memory("sculpt", needed, k, layer.dim, layer.out_dim)
    return RouteAdvice("sculpt", not reason, needed, size, reason)


def judge_data(gap: Gap, examples: Examples, keys: int, rows: tuple[Row, ...]) -> Advice:
    """What data alone can say about the routes; `rows` are those of `explain`."""
    o, d, k = examples.out_dim, examples.dim, examples.tokens
    searched = any(row.runs == "yes" and row.name.startswith("wide") for row in rows)
    heads = WIDTHS[0] if searched else max(gap.heads, 1)
    needed = examples_for(unknowns(heads, d, o), k * o)
    needed = needed if searched else spectral_examples(gap, unknowns(heads, d, o), k * o)
    recover = _from_examples(gap, examples, keys, rows, heads, needed, searched)
    asked = query_count(heads, d, o, d)
    open_queries = "examples do not show whether an oracle would give the layer away"
    queries = RouteAdvice("extract", None, asked, memory("extract", asked, 3, d, o), open_queries)
    carved = SAID["sculpt.capacity"] if heads * (k - 1) > o else ""
    reason = carved or "how often all heads agree can be measured on the layer only"
    sculpt = RouteAdvice("sculpt", False if carved else None, None, None, reason)
    return Advice.choose([recover, queries, sculpt])


def _from_examples(
    gap: Gap,
    examples: Examples,
    keys: int,
    rows: tuple[Row, ...],
    heads: int,
    needed: float,
    searched: bool,
) -> RouteAdvice:
    """The verdict on `recover`: feasible, not, or open (None)."""
    k, d, o = examples.tokens, examples.dim, examples.out_dim
    size = memory("recover", needed, k, d, o) if math.isfinite(needed) else None
    if not rows:  # the run would end with the signals
        return RouteAdvice("recover", False, needed, size, Outcome[gap.stopped].reason if gap.stopped else "")
    if keys < FEWEST_KEYS:
        return RouteAdvice("recover", False, needed, size, SAID["C2.keys"])
    if searched:
        reason = (
            f"the moment does not model these tokens; random starts are searched, for {heads} heads and more"
        )
        return RouteAdvice("recover", None if needed <= examples.num else False, needed, size, reason)
    if gap.stopped is None and needed <= examples.num:
        return RouteAdvice("recover", True, needed, size, "")
    later = any(row.runs == "if needed" and row.name.startswith("wide") for row in rows)
    enough = examples_for(unknowns(heads + 1, d, o), k * o) <= examples.num
    reason = f"{gap.heads} heads are seen, the weakest {gap.ratio:.2g} floors high"
    reason += "; random starts may find them all the same" if later and enough else ""
    return RouteAdvice("recover", None if later and enough else False, needed, size, reason)


FEWEST_KEYS = 3
"""Keys that some query must see for heads to be told from their negatives."""
