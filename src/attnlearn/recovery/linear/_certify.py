"""The certificate of the linear route: C1 as everywhere, U (one function), C2 (the number of heads); C3 does not apply.

U. Two linear-attention layers are the same function everywhere if their coefficients on the distinct monomials agree. If the
normal matrix of the examples is regular, least squares on them has one solution: every layer that fits them as well is the
same function on all inputs. For the population: let v minimise v^T A v over unit vectors, A the second moment of a unit's features.
The smallest eigenvalue of a block's mean is at most the mean of v^T A_s v there, whose expectation is lambda_min(A), so by Markov's
inequality it exceeds lambda_min(A) / p with probability at most p; all of B independent blocks do with probability at most p^B. So
lambda_min(A) >= delta^(1/B) min over blocks, with confidence 1 - delta: no bound on the features and no dimension enters. The
coordinates and scales of the features are fixed on the select side. Of four regressions (causal or not, some or all examples) one is
chosen by the outputs, so delta is divided by four.

C2. M(a) (`_heads`) has rank at most the number of heads of any layer with this function, and the layer found has as many.

C3 does not apply: the coefficients fix the heads up to an invertible mixing. Proofs: docs/mathematics.md, section 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._result import Outcome
from attnlearn.recovery import _calibration as recovery
from attnlearn.recovery._conclude import Units
from attnlearn.recovery._problem import memorised
from attnlearn.recovery.linear._calibration import CANDIDATES
from attnlearn.recovery.linear._rank import Found
from attnlearn.recovery.linear._regress import Regression
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._batch import Batch, exactness_limit, rounding_floor, unit_errors
from attnlearn.solve.certification._function import INDEPENDENT, function_claim


@dataclass(frozen=True)
class Fitted:
    """The regression, the layer made of it, the tokens' dimension, and whether coordinates were fixed on the select side."""

    regression: Regression
    found: Found
    dim: int
    separate: bool
    exact: float


def certificate(fitted: Fitted, held: Batch, scale: float, units: Units, target: float | None) -> Certificate:
    """Claims C1, U and C2 about the frozen layer."""
    limit = calibration.SMALL_ERROR if target is None else target
    layer: Any = fitted.found.layer  # the claim calls it, whatever kind of layer it is
    c1, checks = function_claim(layer, held, scale, limit=limit, unit=units.name, where=units.where)
    unique, unique_checks = uniqueness(fitted, units)
    # Relative to the typical output: rounding of a small output, a sum of large terms, says nothing about the number of heads.
    error = float(unit_errors(layer, held, scale, small=1.0).max())
    c2, count_checks = count(fitted, unique, error, rounding_floor(layer, held, scale))
    mixing = "parameters of each head: the function fixes them up to an invertible mixing of the heads"
    unknown = Check("C3", Status.NOT_APPLICABLE, text=mixing)
    return Certificate((c1, unique, c2), (*checks, *unique_checks, *count_checks, unknown))


def population_floor(blocks: tuple[float, ...], delta: float) -> float:
    """A lower bound on lambda_min of the second moment, with confidence 1 - delta, from its values in independent blocks.

    >>> round(population_floor((0.3, 0.2), 0.01), 12)
    0.02
    """
    return float(delta ** (1 / len(blocks)) * max(0.0, min(blocks)))


def uniqueness(fitted: Fitted, units: Units) -> tuple[Claim, list[Check]]:
    """Whether every least-squares fit to the fit examples is the same function, and the population's bound."""
    regression, found = fitted.regression, fitted.found
    number, rank = regression.coordinates.number, regression.coordinates.rank
    floor = population_floor(regression.blocks, calibration.DELTA / CANDIDATES)
    checks = [
        Check.compare("U.rows", regression.rows, number, unit="rows", text="rows, of at least the features", at_most=False),
        Check.compare("U.directions", rank, fitted.dim, text="directions in which tokens vary", at_most=False),
        Check(
            "U.lambda", Status.HOLDS if regression.determined else Status.FAILS, regression.smallest, 0.0, "",
            "smallest eigenvalue of the normal matrix less its rounding", at_most=False,
        ),
        Check.compare(
            "U.same", found.apart, fitted.exact, unit="relative error",
            text="difference between the layer and the least-squares fit",
        ),
        Check("U.population", Status.HOLDS, floor, 0.0, "", "lower bound on it for the distribution", at_most=False)
        if fitted.separate and floor > 0
        else Check("U.population", Status.NOT_RUN, text="lower bound for the distribution: needs more examples"),
    ]  # fmt: skip
    established = all(check.status is Status.HOLDS for check in checks[:4])
    if not established:
        one = all(check.status is Status.HOLDS for check in checks[:3])
        text = (
            f"the least-squares fit is one function on all inputs, from which this layer differs by {found.apart:.3g} of the outputs"
            if one
            else "linear attention that fits these examples as well may be another function"
        )
        return Claim("U", text, False), checks
    text = (
        "every linear-attention layer that minimises the squared error on the fit examples is this function on all inputs "
        f"(smallest eigenvalue {regression.smallest:.3g} of the normal matrix of {number} features)"
    )
    known = checks[4].status is Status.HOLDS
    if known:
        text += f"; for the distribution the eigenvalue is at least {floor:.3g}"
    assumes = (INDEPENDENT.format(unit=units.name),) if known else ()
    confidence = 1 - calibration.DELTA if known else None
    value = {"smallest": regression.smallest, "population": floor if known else None, "features": number}
    return Claim.stated("U", text, True, value, confidence, assumes=assumes), checks


def count(fitted: Fitted, unique: Claim, eps: float, floor: float) -> tuple[Claim, list[Check]]:
    """The number of heads of the function: what M(a) proves, against what was found."""
    layer, fewest = fitted.found.layer, fitted.found.fewest
    limit = exactness_limit(floor, layer.dtype)
    checks = [
        Check.compare("C2.exact", eps, limit, unit="relative error", text="fit exact to rounding, in typical outputs: error"),
        Check.compare(
            "C2.fewest", layer.num_heads, fewest, unit="heads", text="heads found, of those that are proved to be needed"
        ),
    ]  # fmt: skip
    exact = checks[0].status is Status.HOLDS and unique.established
    established = exact and checks[1].status is Status.HOLDS
    if established:
        heads = "1 head" if fewest == 1 else f"{fewest} heads"
        text = f"{heads}: this layer has them, and no linear-attention layer with fewer is this function"
    elif exact:
        text = f"at least {fewest} and at most {layer.num_heads} heads"
    else:
        text = f"{layer.num_heads} heads were found; the number needs a fit that is exact and unique"
    return Claim(
        "C2", text, established, {"heads": layer.num_heads, "at_least": fewest if exact else None}
    ), checks


def outcome(fitted: Fitted, made: Certificate, target: float | None) -> Outcome:
    """How the run ended."""
    regression, found = fitted.regression, fitted.found
    if made.certified:
        return Outcome.RECOVERED
    if target is not None and made.claim("C1").established:
        return Outcome.ON_TARGET
    if made.check("U.rows").status is Status.FAILS or memorised(regression.error, found.best):
        return Outcome.TOO_FEW_EXAMPLES
    if not regression.determined or regression.coordinates.rank < fitted.dim:
        return Outcome.TOKENS_DEGENERATE
    if found.error <= fitted.exact:
        failed = {check.code for check in made.checks if check.status is Status.FAILS}
        few = failed and failed <= {"C1.coverage", "C1.copies"}
        return Outcome.TOO_FEW_EXAMPLES if few else Outcome.NOT_ESTABLISHED
    return Outcome.NOT_ATTENTION if found.error > recovery.MISFIT else Outcome.BELOW_NOISE_FLOOR


def examples_needed(fitted: Fitted, num: int) -> int:
    """Examples with which the features should be determined, and C1 have its evidence."""
    rows = max(1, fitted.regression.rows)
    wanted = 2 * calibration.EQUATIONS_PER_UNKNOWN * fitted.regression.coordinates.number
    return max(recovery.CERTIFIED_LEAST, int(np.ceil(num * max(1.0, wanted / rows))))
