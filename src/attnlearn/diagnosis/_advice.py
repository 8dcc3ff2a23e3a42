"""Plain words: which route, how many examples or queries, and why not if not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from attnlearn._errors import named


@dataclass(frozen=True)
class RouteAdvice:
    """One route: whether it should end in a certificate, what it takes, and why not.

    `needed` counts sequences (examples, or queries); None when unknown, infinite when no number suffices.

    >>> RouteAdvice("recover", True, 1200, 10**6, "").feasible
    True
    """

    route: str
    feasible: bool | None
    needed: float | None
    memory: int | None
    reason: str

    def __str__(self) -> str:
        unit = "queries" if self.route == "extract" else "examples"
        amount = (
            "" if self.needed is None or math.isinf(self.needed) else f" about {spoken(self.needed)} {unit}"
        )
        size = "" if self.memory is None else f" and {max(1, round(self.memory / 2**20)):,} MB"
        if self.feasible:
            return f"{self.route:<8} yes:{amount}{size}" + (f" ({self.reason})" if self.reason else "")
        verdict = "open" if self.feasible is None else "no"
        wanted = f"; it would take{amount}" if amount and self.feasible is False else ""
        return f"{self.route:<8} {verdict}: {self.reason}{wanted}"


@dataclass(frozen=True)
class Advice:
    """The route to take (None when none should work), every route's verdict, and a sentence.

    >>> print(Advice.choose([RouteAdvice("recover", False, None, None, "two heads are equal")]).text)
    No route should recover this layer. recover: two heads are equal.
    """

    route: str | None
    routes: tuple[RouteAdvice, ...]
    text: str

    @classmethod
    def choose(cls, routes: list[RouteAdvice]) -> Advice:
        """The first feasible route in the order given, in words."""
        best = next((route for route in routes if route.feasible), None)
        reasons = "; ".join(f"{route.route}: {route.reason}" for route in routes if route.feasible is False)
        if best is None:
            known = all(route.feasible is False for route in routes)
            lead = "No route should recover this layer" if known else "No route is known to work"
            said = "; ".join(f"{route.route}: {route.reason}" for route in routes)
            return cls(None, tuple(routes), f"{lead}. {said}.")
        unit = "queries of your choice" if best.route == "extract" else "examples"
        call = {
            "recover": "recover(x, y)",
            "sculpt": 'recover(x, y, method="sculpt")',
            "extract": "extract(oracle)",
        }[best.route]
        text = f"Use {call}: about {spoken(best.needed or 0)} {unit} should do."
        return cls(best.route, tuple(routes), text + (f" Not {reasons}." if reasons else ""))

    def of(self, route: str) -> RouteAdvice:
        """The verdict on one route."""
        return named(self.routes, "route", route)

    def to_json(self) -> dict[str, Any]:
        """The advice as JSON."""
        return {"route": self.route, "text": self.text, "routes": [asdict(entry) for entry in self.routes]}


def spoken(number: float) -> str:
    """A count as a person says it.

    >>> [spoken(n) for n in (187, 12345, 4.2e6)]
    ['190', '12,000', '4,200,000']
    """
    if math.isinf(number):
        return "infinitely many"
    digits = max(0, math.floor(math.log10(max(number, 1))) - 1)
    return f"{int(round(number / 10**digits) * 10**digits):,}"
