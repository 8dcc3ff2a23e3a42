"""The verdict of a result in one sentence: what was learned, how sure, what is not established.

The sentence is made from the JSON alone, for every outcome and every kind of result. It never says more than the
certificate: a claim that is not established is named as such, and a layer without a certificate is "fitted", not
"recovered".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnlearn._result import Outcome
from attnlearn.reporting._numbers import pretty

REASONS: dict[str, str] = {
    "RECOVERED": "not every claim of its certificate is established",
    "COMPRESSED": "the error of the smaller layer is not established",
    "TRAINED": "the guarantee for this run is not established",
    "BELOW_NOISE_FLOOR": "the outputs carry noise, and the answer is only as exact as the noise allows",
    "TOO_FEW_EXAMPLES": "there are too few examples to settle the answer",
    "TOKENS_DEGENERATE": "the tokens vary in too few directions, or determine each other",
    "HEADS_INDISTINGUISHABLE": "two heads, or two layers, cannot be told apart on these tokens",
    "PROJECTIONS_CANCEL": "the projections of the heads cancel in their sum",
    "TOO_MANY_HEADS": "no row of outputs can prove that all heads agree, because m (k − 1) exceeds d_out",
    "HEADS_UNBALANCED": "the scores or projections of the heads differ too much in size",
    "HEADS_COHERENT": "the scores or the projections of two heads are nearly parallel",
    "LOW_EFFECTIVE_RANK": "a head's scores or projection have effective rank near one",
    "ATTENTION_TOO_WEAK": "attention hardly differs from a plain average on these tokens",
    "SATURATED": "attention is nearly one-hot on these tokens",
    "NOT_ATTENTION": "no attention layer was found that explains the outputs",
    "BUDGET_SPENT": "the budget of examples, queries or steps is used up",
    "INTERRUPTED": "the run was interrupted",
    "ORACLE_FAILED": "the oracle stopped answering properly",
    "NUMERICAL_FAILURE": "a phase produced numbers that are not finite",
    "NOT_ESTABLISHED": "the answer fits, but not every claim of the certificate is established",
}
SMALL_ERROR = 0.1
"""A compressed layer whose proved error exceeds a tenth of an output's norm is shown in the colour of caution."""

CLAIM_NAMES: dict[Any, str] = {
    "C1": "the function error on most inputs (C1)",
    "C2": "the number of heads (C2)",
    "C3": "the error of every parameter (C3)",
    "M": "the error on new examples (M)",
    "R": "the bound on the training loss of this run (R)",
}


@dataclass(frozen=True)
class Verdict:
    """`tone` is good, partial or bad; `sentence` says what was learned; `missing` what is not established.

    >>> Verdict("bad", "Not certified", "No layer was learned.", ("everything",), "give more").tone
    'bad'
    """

    tone: str
    badge: str
    sentence: str
    missing: tuple[str, ...] = ()
    remedy: str = ""
    scope: str = ""

    def __post_init__(self) -> None:
        # Numbers do not part from their units at the end of a line.
        for name in ("sentence", "scope"):
            kept = getattr(self, name).replace(" %", "\u00a0%").replace(" × ", "\u00a0×\u00a0")
            object.__setattr__(self, name, kept)


def verdict(document: dict[str, Any]) -> Verdict:
    """The verdict of a result in JSON.

    >>> from attnlearn import Outcome, Solution
    >>> verdict(Solution.failed(Outcome.SATURATED).to_json()).sentence
    'No layer was learned: attention is nearly one-hot on these tokens.'
    """
    outcome = Outcome[document["outcome"]]
    claims = {claim["code"]: claim for claim in document["certificate"]["claims"]}
    # The word of the file is not enough: every claim in it must be established too.
    certified = bool(
        document["certified"] and claims and all(claim["established"] for claim in claims.values())
    )
    trained = _kind(document) == "classifier"
    missing = tuple(
        CLAIM_NAMES.get(code, str(claim["text"]))
        for code, claim in claims.items()
        if not claim["established"]
    )
    remedy = _remedy(document, outcome)
    if certified and outcome.name == "COMPRESSED":
        return _compressed(document, claims)
    if certified:
        told = _trained(document, claims) if trained else _learned(document, claims)
        return Verdict("good", "Certified", told, (), "", _scope(document, claims, trained))
    if document["layer"] is None:
        thing = "model" if outcome is Outcome.TRAINED else "layer"
        return Verdict(
            "bad", "Nothing learned", f"No {thing} was learned: {REASONS[outcome.name]}.", (), remedy
        )
    told = (
        f"{_subject(document, trained)}, but it is not certified: {REASONS[outcome.name]}.{_rival(document)}"
    )
    held = [code for code, claim in claims.items() if claim["established"]]
    if trained:
        told = f"{_on_new(document)} It is not certified: {_why(claims, outcome)}."
    elif held:
        told += f" Established is only {_listed([CLAIM_NAMES.get(code, str(code)) for code in held])}."
    return Verdict(
        "partial", "Not certified", told, missing or ("anything: there are no claims",), remedy,
        _scope(document, claims, trained) if held else "",
    )  # fmt: skip


def _rival(document: dict[str, Any]) -> str:
    """The other layer with the same outputs, where one was found."""
    rival = document["stats"].get("rival")
    if not isinstance(rival, dict):
        return ""
    return (
        f" Another layer gives the same outputs to {pretty(rival['residual'])}: its head {rival['head'] + 1} has other scores, "
        f"at a relative distance of {pretty(rival['distance'], 3)} ({rival['how']})."
    )


def _remedy(document: dict[str, Any], outcome: Outcome) -> str:
    """The outcome's remedy, with the figures that the result holds in place of their names."""
    stats = document["stats"]
    needed, diagnosis = stats.get("examples_needed"), stats.get("diagnosis")
    if outcome is Outcome.TOO_FEW_EXAMPLES and isinstance(needed, int):
        return f"more examples: about {needed:,} in all"
    if outcome is Outcome.NOT_ATTENTION and isinstance(diagnosis, dict):
        told = {entry["name"]: entry["text"] for entry in diagnosis.get("evidence") or ()}
        cause = diagnosis.get("cause")
        if told.get(cause):
            return f"the likeliest cause is “{cause}”: {told[cause]}"
    return str(document.get("remedy") or outcome.remedy)


def largest(bounds: list[float | None]) -> float | None:
    """The largest of some bounds; None, which JSON has for infinity, when one of them is infinite.

    >>> largest([1e-9, 1e-12]), largest([1e-9, None])
    (1e-09, None)
    """
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _kind(document: dict[str, Any]) -> str:
    return ((document.get("layer") or {}).get("summary") or {}).get("kind", "attention layer")


def _heads(document: dict[str, Any]) -> int | None:
    shapes = (document.get("layer") or {}).get("shapes") or {}
    first = shapes.get("theta") or shapes.get("w")
    return first[0] if first else None


def _count(number: int | None) -> str:
    return "heads" if number is None else "1 head" if number == 1 else f"{number} heads"


def _learned(document: dict[str, Any], claims: dict[str, Any]) -> str:
    number = _heads(document)
    done = (
        "The head of the layer was recovered"
        if number == 1
        else f"All {_count(number)} of the layer were recovered"
    )
    parts = []
    if (value := claims.get("C1", {}).get("value")) and isinstance(value, dict):
        share, sure = 100 * value["fraction"], claims["C1"].get("confidence")
        with_sureness = f", with confidence {100 * sure:.6g} %" if sure else ""
        parts.append(
            f"its outputs are right to {pretty(value['error'])} on at least {share:.2f} % of {_unit(value)}{with_sureness}"
        )
    if (value := claims.get("C3", {}).get("value")) and isinstance(value, dict) and value.get("heads"):
        parts.append(f"every Θ and W is right to {pretty(largest(value['heads']))}")
    return done + (": " + "; ".join(parts) if parts else "") + "." + _provided(claims)


def _provided(claims: dict[str, Any]) -> str:
    """What the established claims assume, each assumption once."""
    assumed = [
        text for claim in claims.values() if claim["established"] for text in claim.get("assumes") or ()
    ]
    return f" This assumes that {_listed(list(dict.fromkeys(assumed)))}." if assumed else ""


def _unit(value: dict[str, Any]) -> str:
    return f"{value.get('unit') or 'input'}s"


def _compressed(document: dict[str, Any], claims: dict[str, Any]) -> Verdict:
    """A smaller layer: the error is established, which does not make it small."""
    before, value = document["stats"].get("source_heads"), claims.get("C1", {}).get("value")
    told = f"The layer was refitted with {_count(_heads(document))}" + (
        f" instead of {before}" if before else ""
    )
    if not isinstance(value, dict):
        return Verdict("partial", "Certified error", f"{told}.")
    told += (
        f": its outputs differ from the source's by at most {pretty(100 * value['error'], 3)} % of an output's norm "
        f"(of the typical norm where it is smaller) on at least {100 * value['fraction']:.2f} % of {_unit(value)}."
        f"{_provided(claims)}"
    )
    tone = "good" if value["error"] <= SMALL_ERROR else "partial"
    return Verdict(tone, "Certified error", told, scope=_scope(document, claims, False))


def _trained(document: dict[str, Any], claims: dict[str, Any]) -> str:
    """New examples first: what a user wants to know of a classifier. The bound on the run comes second."""
    told, value = _on_new(document), claims.get("R", {}).get("value")
    if isinstance(value, dict) and value.get("bound") is not None:
        told += (
            f" Its mean training loss is proved to be at most {pretty(value['bound'], 3)} for this very run"
            f" (measured {pretty(value['measured'], 3)})."
        )
    return told


def _on_new(document: dict[str, Any]) -> str:
    known = document["stats"].get("new_examples") or "its error is unknown"
    return f"{_subject(document, True)}; on new examples {known}."


def _why(claims: dict[str, Any], outcome: Outcome) -> str:
    """Why a trained model is not certified: its own reason where the run gave one."""
    value = claims.get("R", {}).get("value")
    return (value.get("reason") if isinstance(value, dict) else None) or REASONS[outcome.name]


def _subject(document: dict[str, Any], trained: bool) -> str:
    number = _heads(document)
    return f"A {'classifier' if trained else 'layer'} with {_count(number)} was {'trained' if trained else 'fitted'}"


def _scope(document: dict[str, Any], claims: dict[str, Any], trained: bool) -> str:
    """What even a full certificate leaves open."""
    if trained:
        assumed = claims.get("M", {}).get("assumes")
        if assumed:
            return f"The error on new examples holds provided that {' and '.join(assumed)}."
        return "The certificate is about training; nothing is established about new examples."
    value = claims.get("C1", {}).get("value")
    rest = (
        f" On the remaining {100 * (1 - value['fraction']):.2f} % nothing is said."
        if isinstance(value, dict)
        else ""
    )
    where = document["stats"].get("certify_distribution")
    inputs = (
        f"inputs drawn as for the certificate ({where})" if where else "inputs distributed like the examples"
    )
    return f"C1 holds for {inputs}.{rest}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
