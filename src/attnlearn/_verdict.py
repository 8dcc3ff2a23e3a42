"""The verdict of a result in words: what was learned, how sure, what is not established, and what to do about it.

The exception of a run, the terminal and the report print this text. It is made from the JSON alone (`outline` gives the
part that it reads), for every outcome and every kind of result. It never says more than the certificate: a claim that is not
established is named as such, and a layer without a certificate is "fitted", not "recovered".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnlearn._cause import error, failing, reason, remedy, rival
from attnlearn._numbers import pretty
from attnlearn._outcome import Outcome

SMALL_ERROR = 0.1
"""A compressed layer whose proved error exceeds a tenth of an output's norm is shown in the colour of caution."""

EASY = 1e-4
"""Errors from a hundredth of a percent on are said in percent."""

CLAIM_NAMES: dict[Any, str] = {
    "C1": "the function error on most inputs (C1)",
    "C2": "the number of heads (C2)",
    "C3": "the error of every parameter (C3)",
    "U": "that no other function fits as well (U)",
    "M": "the error on new examples (M)",
    "R": "the bound on the training loss of this run (R)",
    "L": "the training loss (L)",
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
    assumes: str = ""
    """What the established claims assume, as a sentence."""

    @property
    def text(self) -> str:
        """The verdict as one paragraph."""
        assumed = f" {self.assumes}" if self.assumes else ""
        return self.sentence + assumed + (f" What to do: {self.remedy}." if self.remedy else "")


def verdict(document: dict[str, Any]) -> Verdict:
    """The verdict of a result in JSON.

    >>> from attnlearn import Outcome, Solution
    >>> verdict(Solution.failed(Outcome.SATURATED).to_json()).sentence
    'No layer was learned: attention is nearly one-hot on these tokens.'
    """
    outcome = Outcome[document["outcome"]]
    claims = {claim["code"]: claim for claim in document["certificate"]["claims"]}
    held = [code for code, claim in claims.items() if claim["established"]]
    # The word of the file is not enough: every claim in it must be established too.
    certified = bool(document["certified"] and outcome.ended_well and claims and len(held) == len(claims))
    trained = _kind(document) == "classifier"
    if certified and outcome in (Outcome.COMPRESSED, Outcome.CERTIFIED):
        return _compressed(document, claims)
    if certified:
        told = _trained(document, claims) if trained else _learned(document, claims)
        return Verdict(
            "good",
            "Certified",
            told,
            scope=_scope(document, claims, trained),
            assumes=_assumed(claims, trained),
        )
    if document["layer"] is None and "candidate" not in document["stats"]:
        thing = "model" if outcome is Outcome.TRAINED else "layer"
        told = f"No {thing} was learned: {reason(document, outcome)}."
        return Verdict("bad", "Nothing learned", told, (), remedy(document, outcome))
    missing = tuple(_name(code, claim) for code, claim in claims.items() if code not in held)
    scope = _scope(document, claims, trained) if held else ""
    if outcome is Outcome.ON_TARGET and held:
        told, assumed = _on_target(document, claims, trained), _assumed(claims, trained)
        return Verdict("good", "On target", told, missing, scope=scope, assumes=assumed)
    told = _uncertified(document, outcome, claims, held, trained)
    missing = missing or ("anything: there are no claims",)
    return Verdict("partial", "Not certified", told, missing, remedy(document, outcome), scope)


def _name(code: Any, claim: dict[str, Any]) -> str:
    return CLAIM_NAMES.get(code, str(claim["text"]))


def _uncertified(
    document: dict[str, Any], outcome: Outcome, claims: dict[str, Any], held: list[Any], trained: bool
) -> str:
    """What was fitted, why it is not certified, and what is established all the same."""
    if trained:
        return f"{_on_new(document)} It is not certified: {_why(document, claims, outcome)}."
    told = f"{_subject(document, trained)}, but it is not certified: {reason(document, outcome)}."
    told += error(document["stats"]) + rival(document)
    if outcome is Outcome.NOT_ESTABLISHED:
        told += failing(document)
    if held:
        told += f" Established is only {_listed([_name(code, claims[code]) for code in held])}."
    return told


def _on_target(document: dict[str, Any], claims: dict[str, Any], trained: bool) -> str:
    """A target that is met: the claim about it, and no more."""
    if trained:
        value = claims.get("L", {}).get("value") or {}
        said = f" Its training loss is {pretty(value.get('loss'), 3)}, at most the target {pretty(value.get('target'), 3)}."
        return _on_new(document) + said
    told = f": {exact}" if (exact := _c1(claims)) else ""
    return f"{_subject(document, trained)}, as close as was asked for{told}."


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
    few = {1: "The head of the layer was recovered", 2: "Both heads of the layer were recovered"}
    done = few.get(number or 0, f"All {_count(number)} of the layer were recovered")
    parts = [told] if (told := _c1(claims)) else []
    if (value := claims.get("C3", {}).get("value")) and isinstance(value, dict) and value.get("heads"):
        parts.append(f"every Θ and W is right to {pretty(largest(value['heads']))}")
    given = document["stats"].get("given_heads")
    fewer = f" {given} were asked for; the others would add nothing." if _more(given, number) else ""
    return done + (": " + "; ".join(parts) if parts else "") + "." + fewer


def _more(given: Any, number: int | None) -> bool:
    return isinstance(given, int) and number is not None and given > number


def _c1_value(claims: dict[str, Any]) -> dict[str, Any] | None:
    """The figures of claim C1, if it has those that every learner gives it."""
    value = claims.get("C1", {}).get("value")
    return value if isinstance(value, dict) and {"error", "fraction"} <= value.keys() else None


def _c1(claims: dict[str, Any]) -> str:
    """How exact the outputs are, and how sure that is; empty where nothing is said."""
    value = _c1_value(claims)
    if value is None:
        return ""
    share, sure = 100 * value["fraction"], claims["C1"].get("confidence")
    with_sureness = f", with confidence {100 * sure:.6g} %" if sure else ""
    return f"its outputs are right to {pretty(value['error'])} on at least {share:.2f} % of {_unit(value)}{with_sureness}"


def _assumed(claims: dict[str, Any], trained: bool) -> str:
    """What the established claims assume, each assumption once; what training assumes stands in its scope."""
    assumed = [
        text for claim in claims.values() if claim["established"] for text in claim.get("assumes") or ()
    ]
    return f"This assumes that {_listed(list(dict.fromkeys(assumed)))}." if assumed and not trained else ""


def _unit(value: dict[str, Any]) -> str:
    return f"{value.get('unit') or 'input'}s"


def _compressed(document: dict[str, Any], claims: dict[str, Any]) -> Verdict:
    """A smaller layer: the error is established, which does not make it small."""
    before, value = document["stats"].get("source_heads"), _c1_value(claims)
    other, told = "reference", "The candidate was compared"
    if document["outcome"] == Outcome.COMPRESSED.name:
        instead = f" instead of {before}" if before and before != _heads(document) else ""
        other, told = "source", f"The layer was refitted with {_count(_heads(document))}{instead}"
    if value is None:
        return Verdict("partial", "Certified error", f"{told}.")
    told += (
        f": its outputs differ from the {other}'s by at most {_share(value['error'])} an output's norm (of "
        f"{pretty(value.get('floor'), 3)} where it is smaller) on at least {100 * value['fraction']:.2f} % of {_unit(value)}."
    )
    tone = "good" if value["error"] <= SMALL_ERROR else "partial"
    scope, assumed = _scope(document, claims, False), _assumed(claims, False)
    return Verdict(tone, "Certified error", told, scope=scope, assumes=assumed)


def _share(error: float) -> str:
    """An error as a part of something: in percent, where that is easy to read.

    >>> _share(0.0123), _share(1.5e-9)
    ('1.23 % of', '1.5 × 10⁻⁹ of')
    """
    return f"{pretty(100 * error, 3)} % of" if error >= EASY else f"{pretty(error)} of"


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


def _why(document: dict[str, Any], claims: dict[str, Any], outcome: Outcome) -> str:
    """Why a trained model is not certified: its own reason where the run gave one."""
    value = claims.get("R", {}).get("value")
    return (value.get("reason") if isinstance(value, dict) else None) or reason(document, outcome)


def _subject(document: dict[str, Any], trained: bool) -> str:
    if "candidate" in document["stats"]:
        return "The candidate was compared with the reference"
    kind = _kind(document).replace("attention layer", "layer")
    return f"A {kind} with {_count(_heads(document))} was {'trained' if trained else 'fitted'}"


def _scope(document: dict[str, Any], claims: dict[str, Any], trained: bool) -> str:
    """What even a full certificate leaves open."""
    if trained:
        assumed = claims.get("M", {}).get("assumes")
        if assumed:
            return f"The error on new examples holds provided that {' and '.join(assumed)}."
        return "The certificate is about training; nothing is established about new examples."
    value = _c1_value(claims)
    rest = f" On the remaining {100 * (1 - value['fraction']):.2f} % nothing is said." if value else ""
    where = document["stats"].get("certify_distribution")
    inputs = (
        f"inputs drawn as for the certificate ({where})" if where else "inputs distributed like the examples"
    )
    return f"C1 holds for {inputs}.{rest}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
