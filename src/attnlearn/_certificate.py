"""Certificates: numbered claims, each resting on coded checks with a number, a threshold and a slack.

Recovered layers claim C1 (function error on a fraction of inputs), C2 (number of heads) and C3 (parameter
error per head); a trained model claims what its run verified. `certified` means every claim is established:
a claim that nobody established is never counted in favour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from attnlearn._errors import named


class Status(Enum):
    """What a check found.

    >>> Status.HOLDS.value
    'holds'
    """

    HOLDS = "holds"
    FAILS = "fails"
    NOT_APPLICABLE = "not applicable"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Check:
    """One measured condition; `value` must not exceed `threshold` (`at_most`) or not fall below it.

    >>> check = Check.compare("C1.error", 1e-9, 1e-6, unit="relative error", text="largest error")
    >>> check.status.value, round(check.slack)
    ('holds', 1000)
    """

    code: str
    status: Status
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    text: str = ""
    at_most: bool = True

    @classmethod
    def compare(
        cls,
        code: str,
        value: float,
        threshold: float,
        *,
        unit: str = "",
        text: str = "",
        at_most: bool = True,
    ) -> Check:
        """A check that holds when value <= threshold (or >= with at_most=False); NaN never holds."""
        value, threshold = float(value), float(threshold)
        holds = value <= threshold if at_most else value >= threshold
        return cls(code, Status.HOLDS if holds else Status.FAILS, value, threshold, unit, text, at_most)

    @property
    def slack(self) -> float | None:
        """How many times better the value is than the threshold asks; above 1 when the check holds."""
        if self.value is None or self.threshold is None:
            return None
        better, worse = (self.threshold, self.value) if self.at_most else (self.value, self.threshold)
        if worse == 0:
            return math.inf if better > 0 else 1.0
        return better / worse

    def to_json(self) -> dict[str, Any]:
        """The check as JSON; numbers that JSON cannot hold become null."""
        return {
            "code": self.code,
            "status": self.status.value,
            "value": _number(self.value),
            "threshold": _number(self.threshold),
            "slack": _number(self.slack),
            "direction": self.direction,
            "unit": self.unit,
            "text": self.text,
        }

    @property
    def direction(self) -> str | None:
        """Whether the threshold is a "ceiling" or a "floor" of the value; None without a threshold.

        >>> Check.compare("C2.apart", 0.5, 0.1, at_most=False).direction
        'floor'
        """
        if self.threshold is None:
            return None
        return "ceiling" if self.at_most else "floor"

    def figures(self) -> str:
        """The check in words, with its value, its threshold and the sign of the threshold.

        >>> Check.compare("C1.error", 2.0, 1.0, text="largest error").figures()
        'largest error 2 (wanted <= 1)'
        """
        if self.value is None:
            return self.text
        sign = "<=" if self.at_most else ">="
        limit = "" if self.threshold is None else f" (wanted {sign} {self.threshold:.3g})"
        return f"{self.text} {self.value:.3g}{limit}"


@dataclass(frozen=True)
class Claim:
    """A statement about the answer: whether it is established, with what confidence, and what it assumes.

    `assumes` lists what the claim takes for granted because no data can show it, each as a clause. What data can show
    is a check and never an assumption. `scope` holds the numbers that limit the claim, by name.

    >>> claim = Claim.stated("C2", "8 heads", True, assumes=("tokens have a joint density",))
    >>> claim.text
    '8 heads, provided that tokens have a joint density'
    """

    code: str
    text: str
    established: bool
    value: Any = None
    confidence: float | None = None
    assumes: tuple[str, ...] = ()
    scope: dict[str, float] = field(default_factory=dict)

    @classmethod
    def stated(
        cls,
        code: str,
        statement: str,
        established: bool,
        value: Any = None,
        confidence: float | None = None,
        *,
        assumes: tuple[str, ...] = (),
        scope: dict[str, float] | None = None,
    ) -> Claim:
        """A claim whose text ends with its assumptions, so that nobody can quote it without them."""
        text = statement + (", provided that " + " and ".join(assumes) if assumes else "")
        return cls(code, text, established, value, confidence, assumes, scope or {})

    def to_json(self) -> dict[str, Any]:
        """The claim as JSON."""
        return {
            "code": self.code,
            "text": self.text,
            "established": self.established,
            "value": jsonable(self.value),
            "confidence": _number(self.confidence),
            "assumes": list(self.assumes),
            "scope": jsonable(self.scope),
        }


@dataclass(frozen=True)
class Certificate:
    """Claims and the checks behind them; certified when there are claims and all are established.

    `rival` is another layer with the same outputs, where one was found: then the answer is not the only one.

    >>> Certificate().certified
    False
    """

    claims: tuple[Claim, ...] = ()
    checks: tuple[Check, ...] = field(default=())
    rival: Any = None

    @property
    def certified(self) -> bool:
        """Whether every claim is established (an empty certificate certifies nothing)."""
        return bool(self.claims) and all(claim.established for claim in self.claims)

    def claim(self, code: str) -> Claim:
        """The claim with this code."""
        return named(self.claims, "code", code)

    def check(self, code: str) -> Check:
        """The check with this code."""
        return named(self.checks, "code", code)

    def resting_on(self, check: Check) -> Certificate:
        """The certificate with one more check, on which all claims but C1 rest."""
        holds = check.status is Status.HOLDS
        claims = tuple(
            replace(claim, established=claim.established and (holds or claim.code == "C1"))
            for claim in self.claims
        )
        return Certificate(claims, (*self.checks, check), self.rival)

    def to_json(self) -> dict[str, Any]:
        """The certificate as JSON."""
        return {
            "claims": [claim.to_json() for claim in self.claims],
            "checks": [check.to_json() for check in self.checks],
        }

    def frame(self):
        """The checks as a pandas data frame (needs the extra `report`)."""
        import pandas as pd

        return pd.DataFrame([check.to_json() for check in self.checks])

    def __str__(self) -> str:
        lines = [
            f"{'established    ' if claim.established else 'not established'}  {claim.code}  {claim.text}"
            for claim in self.claims
        ]
        lines += [f"  {check.status.value:<14} {check.code}: {check.figures()}" for check in self.checks]
        return "\n".join(lines) or "empty certificate"


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def jsonable(value: Any) -> Any:
    """`value` in JSON's own types: NumPy scalars and arrays unpacked, non-finite numbers null.

    >>> import numpy as np
    >>> jsonable({"a": np.float32(0.5), "b": np.array([1, 2]), "c": float("inf")})
    {'a': 0.5, 'b': [1, 2], 'c': None}
    """
    if hasattr(value, "to_json"):
        return jsonable(value.to_json())
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return _number(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
