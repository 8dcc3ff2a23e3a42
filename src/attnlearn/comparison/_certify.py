"""`certify`: claim C1 for a candidate that somebody made, against the reference that it stands for.

Nothing is fitted here, so nearly all inputs are evidence. A tenth of them only sets the typical norm of an output; the others are read once.
Candidate and reference are asked in their own precision and compared in float64: what rounding or quantisation costs is part of the error.
A function or a module may answer otherwise when an input stands in another batch, or when it is asked twice (a normalisation over the
batch, dropout, a state). So some inputs are asked again, alone, and the largest change is added to every error.

Cost: one forward of both on every input, `ALONE` inputs again, and the search for near copies. What can fail: `OracleError` where one of them does not
answer with finite numbers of one shape.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check
from attnlearn._errors import require
from attnlearn._layer import AttentionLayer
from attnlearn._precision import as_mask, require_finite, to_numpy
from attnlearn._result import Outcome, Phase, Solution
from attnlearn._types import ArrayLike, Mask, Outputs, Tokens
from attnlearn.data import Examples, Recorded
from attnlearn.data._intake import is_data_model
from attnlearn.engine import Options
from attnlearn.engine._learner import handed_over
from attnlearn.oracle import Oracle
from attnlearn.solve._batch import Batch, clipped_norms, example_scale, unit_errors
from attnlearn.solve._sequences import merged_units, sequence_names, without_copies
from attnlearn.solve._split import Split
from attnlearn.solve.certification import function_claim

DRAWN = 4_000
"""Sequences that are drawn from a data model: 3,600 of them are evidence, which leaves ln(1e6)/3600 = 0.4 % of inputs uncovered."""
SAYS_NOTHING = 1.0
"""An error of one output's norm is what answering zero has: a bound of that size says nothing."""
ALONE = 32
"""Inputs that a function is asked again, each alone: a change in one answer of ten escapes with a chance of 3 %."""
APART = "the candidate was not made from these inputs"

Answer = Callable[[Tokens, Mask | None], Outputs]


def certify(
    candidate: Any,
    reference: Any,
    data: Any,
    *,
    fraction: float | None = None,
    mask: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    target: float | None = None,
    seed: int = 0,
    raise_on_failure: bool = True,
) -> Solution:
    """How far a smaller, quantised or merged layer is from the one it stands for, with confidence 1 - 1e-6.

    `candidate` and `reference` are layers, torch modules or functions from tokens (n, k, d) to outputs (n, k, d_out). `data` is an
    array of tokens, recorded examples or their path, or a data model; with recorded examples `reference` may be None: then the recorded
    outputs are the reference. The inputs must not be those from which the candidate was made. `groups` names the document that each
    sequence is from.

    Claim C1 says that the error is at most eps of an output's norm on all inputs but a fraction that is stated, or, with `fraction` given, on
    at least that fraction of the inputs, at a smaller eps. With `target` the claim is established only if eps is at most that. The outcome is then
    CERTIFIED, and NOT_ESTABLISHED otherwise.

    >>> from attnlearn import data
    >>> layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    >>> solution = certify(layer.astype(np.float32), layer, data.Gaussian(4, 4), target=1e-4)
    >>> solution.outcome.name, solution.certificate.claim("C1").value["error"] < 1e-5
    ('CERTIFIED', True)
    """
    options = Options(target=target, seed=seed, raise_on_failure=raise_on_failure)
    rule = "must lie between 0 and 1"
    require(fraction is None or 0 < fraction < 1, "fraction", rule, fraction)
    began = time.perf_counter()
    whole = _inputs(data, reference, mask, groups, seed)
    sides = {"candidate": _answer(candidate, "candidate", whole)}
    if reference is not None:
        sides["reference"] = _answer(reference, "reference", whole)
    held, scale, unit = _split(whole, sides.get("reference"), groups is not None, seed)
    ours = sides["candidate"](held.x, held.mask)
    rule = f"must have outputs of shape {held.y.shape[1:]}, as the reference has"
    require(ours.shape == held.y.shape, "candidate", rule, ours)
    asked = ((candidate, sides["candidate"], ours), (reference, sides.get("reference"), held.y))
    change = sum(_change_alone(thing, answer, outputs, held, scale) for thing, answer, outputs in asked)
    return handed_over(_judged(candidate, ours, held, scale, unit, fraction, change, options, began), options)


def _judged(
    candidate: Any,
    ours: Outputs,
    held: Batch,
    scale: float,
    unit: str,
    fraction: float | None,
    change: float,
    options: Options,
    began: float,
) -> Solution:
    def answered(x: Tokens, mask: Mask | None) -> Outputs:
        del x, mask
        return ours

    limit = SAYS_NOTHING if options.target is None else options.target
    name = "error against the reference"
    claim, checks = function_claim(answered, held, scale, limit=limit, unit=unit, name=name, covered=fraction, assumes=(APART,), more=change)  # fmt: skip
    alone = Check.compare(
        "C1.alone", change, limit, unit="relative error", text="change of answers to inputs asked alone"
    )
    certificate = Certificate((claim,), (*checks, alone))
    errors = unit_errors(answered, held, scale)
    stats = {
        "seed": int(options.seed),
        "target": options.target,
        "candidate": type(candidate).__name__,
        "examples": held.num,
        "sequence_length": held.x.shape[1],
        "relative_error": float(np.linalg.norm((ours - held.visible).astype(np.float64)) / _spread(held)),
        "median_error": float(np.median(errors)),
        "change_alone": change,
    }
    ended = Outcome.CERTIFIED if certificate.certified else Outcome.NOT_ESTABLISHED
    if ended is Outcome.NOT_ESTABLISHED:
        stats["remedy"] = (
            "take a candidate that is closer, or ask for less (a larger target=, a smaller fraction=)"
        )
    phases = (Phase("certify", time.perf_counter() - began, {"outcome": ended.name}),)
    layer = candidate if isinstance(candidate, AttentionLayer) else None
    return Solution(layer, ended, certificate, phases, stats)


def _spread(held: Batch) -> float:
    rows = held.y.reshape(-1, held.y.shape[-1]) if held.mask is None else held.y[held.mask]
    return max(float(np.linalg.norm(rows - rows.mean(axis=0, dtype=np.float64))), np.finfo(float).tiny)


def _inputs(data: Any, reference: Any, mask: ArrayLike | None, groups: ArrayLike | None, seed: int) -> Batch:
    """The inputs, with the recorded outputs where they are the reference."""
    if isinstance(data, (str, os.PathLike)):
        data = Recorded(data)
    named = None if groups is None else np.asarray(groups)
    if isinstance(data, Examples):
        require(mask is None, "mask", "must be left out, recorded examples bring their own", mask)
        part = data.take(np.arange(data.num))
        return Batch(np.ascontiguousarray(part.x), np.asarray(part.y), part.mask, named)
    rule = "must be given, unless data are recorded examples with outputs of their own"
    require(reference is not None, "reference", rule, reference)
    if is_data_model(data):
        require(mask is None, "mask", "must be left out, a data model draws no padding", mask)
        data = data.sample(DRAWN, seed=seed)
    x = to_numpy(data, "data")
    require(x.ndim == 3 and len(x) >= 1, "data", "must have shape (n, k, d)", x)
    require_finite(x, "data")
    return Batch(x, x, None if mask is None else as_mask(mask, x), named)


def _answer(thing: Any, name: str, whole: Batch) -> Answer:
    """A layer, a module or a function as it is asked."""
    if isinstance(thing, AttentionLayer):
        require(
            thing.dim == whole.x.shape[2], name, f"must take tokens of dimension {whole.x.shape[2]}", thing
        )
        return lambda x, mask: thing(x.astype(thing.dtype, copy=False), mask)
    rule = "must be an AttentionLayer where the data have padding, which a function does not see"
    require(whole.mask is None, name, rule, type(thing).__name__)
    known = isinstance(thing, Oracle) or callable(thing)
    require(known, name, "must be a layer, a torch module or a function", type(thing).__name__)
    oracle = Oracle.wrap(thing, name=name)
    return lambda x, mask: np.asarray(oracle(x))


def _change_alone(thing: Any, answer: Answer | None, outputs: Outputs, held: Batch, scale: float) -> float:
    """The largest change of an answer when an input is asked again, alone; a layer's answers depend on the input alone."""
    if answer is None or isinstance(thing, AttentionLayer):
        return 0.0
    places = np.unique(np.linspace(0, held.num - 1, ALONE).astype(int))
    again = np.concatenate(
        [answer(held.x[[place]], None if held.mask is None else held.mask[[place]]) for place in places]
    )
    moved = np.linalg.norm((again - outputs[places]).astype(np.float64), axis=(1, 2))
    return float(np.max(moved / clipped_norms(held.y[places], scale)))


def _split(whole: Batch, reference: Answer | None, grouped: bool, seed: int) -> tuple[Batch, float, str]:
    """The inputs that are evidence with the reference's outputs, the typical norm of an output, and what a unit is."""
    units = merged_units(sequence_names(whole.x, whole.mask), whole.groups)
    unit = "group" if grouped else "input" if units is None else "distinct input"
    split = Split.make(whole.num, groups=units, unit=unit, seed=seed, name="data")
    whole = Batch(whole.x, whole.y, whole.mask, units)
    chosen = np.sort(np.concatenate([split.fit, split.certify]))
    for_scale, held = whole.take(split.select), whole.take(chosen)
    if reference is not None:
        for_scale, held = (_outputs(part, reference) for part in (for_scale, held))
    return without_copies(held, for_scale.x, for_scale.mask), example_scale(for_scale), unit


def _outputs(part: Batch, reference: Answer) -> Batch:
    return Batch(part.x, reference(part.x, part.mask), part.mask, part.groups)
