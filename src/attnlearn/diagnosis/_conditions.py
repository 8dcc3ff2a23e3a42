"""`conditions`: every non-degeneracy condition that the learners use, measured, and what follows from it.

With a layer everything is computed from its weights on the tokens given (or on Gaussian ones). With data alone the
report holds what data can show (tokens, gap, visible heads, examples) and marks the rest "needs the layer".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlearn._certificate import Certificate, Check, Status, jsonable
from attnlearn._errors import named, require
from attnlearn._layer import AttentionLayer
from attnlearn._parts import is_plain
from attnlearn._precision import to_numpy
from attnlearn.data import Gaussian, as_examples
from attnlearn.diagnosis import _attention, _identifiability, _weights
from attnlearn.diagnosis import _calibration as calibration
from attnlearn.diagnosis._advice import Advice
from attnlearn.diagnosis._gap import Gap, data_gap, layer_gap, problem_of, tools_of
from attnlearn.diagnosis._judge import Facts, judge_data, judge_layer, judge_placed
from attnlearn.engine import Progress
from attnlearn.recovery._explain import rows_of
from attnlearn.recovery._problem import Need
from attnlearn.recovery._proposers import TABLES
from attnlearn.recovery._signals import measure
from attnlearn.solve._white import whitening


@dataclass(frozen=True)
class Conditions:
    """Measured conditions (`checks`), further numbers (`figures`) and `advice` in plain words.

    >>> found = conditions(AttentionLayer.random(num_heads=2, dim=6, seed=0))
    >>> found.advice.route, found.check("tokens.keys").status.value
    ('recover', 'holds')
    """

    checks: tuple[Check, ...]
    figures: dict[str, Any]
    advice: Advice

    def check(self, code: str) -> Check:
        """The condition with this code."""
        return named(self.checks, "code", code)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "schema": "attnlearn/conditions",
            "version": 1,
            "checks": [check.to_json() for check in self.checks],
            "figures": jsonable(self.figures),
            "advice": jsonable(self.advice.to_json()),
        }

    def frame(self):
        """The conditions as a pandas data frame (needs the extra `report`)."""
        return Certificate((), self.checks).frame()

    def __str__(self) -> str:
        unseen = [check.code for check in self.checks if check.status is Status.NOT_RUN]
        seen = tuple(check for check in self.checks if check.status is not Status.NOT_RUN)
        lines = [str(Certificate((), seen))]
        if unseen:
            lines.append(
                f"  not run        {len(unseen)} conditions need the layer's weights: {', '.join(unseen)}"
            )
        lines += [f"  {route}" for route in self.advice.routes]
        return "\n".join([*lines, self.advice.text])


def conditions(
    layer_or_x: Any,
    y: Any = None,
    *,
    seed: int = 0,
    progress: Progress | bool | str | None = None,
) -> Conditions:
    """Measure whether a layer can be learned, by which route, and from how much.

    `conditions(layer)` takes Gaussian tokens, `conditions(layer, x)` the tokens x (n, k, d). `conditions(x, y)` and
    `conditions(recorded)` see data only: what needs the weights is marked so. Of a layer with positions the weights are measured at
    every offset that the tokens have; the rest is what its outputs on them show.

    >>> truth = AttentionLayer.random(num_heads=2, dim=6, seed=1)
    >>> x = Gaussian(tokens=4, dim=6).sample(3000)
    >>> conditions(x, truth(x)).check("theta.incoherence").status.value
    'not run'
    """
    shown = Progress.make(progress)
    if isinstance(layer_or_x, AttentionLayer):
        if not is_plain(layer_or_x):
            with shown.run("conditions", 2):
                return _of_placed(layer_or_x, y, seed, shown)
        with shown.run("conditions", 3):
            return _of_layer(layer_or_x, y, seed, shown)
    with shown.run("conditions", 2):
        return _of_data(layer_or_x, y, seed, shown)


def _tokens_of(layer: AttentionLayer, tokens: Any, seed: int) -> np.ndarray:
    """The tokens that a layer is judged on: those given, or Gaussian ones."""
    if tokens is None:
        return Gaussian(calibration.TOKENS, layer.dim, dtype=layer.dtype).sample(
            calibration.SEQUENCES, seed=seed
        )
    x = to_numpy(tokens, "y")
    good = x.ndim == 3 and x.shape[2] == layer.dim and x.shape[1] >= 2
    rule = f"must hold tokens of shape (n, k, {layer.dim}) with k >= 2 when the first argument is a layer"
    require(good, "y", rule, x)
    return x


def _of_placed(layer: AttentionLayer, tokens: Any, seed: int, progress: Progress) -> Conditions:
    """A layer with positions: its weights at every offset that the tokens have, and what its outputs on them show."""
    x = _tokens_of(layer, tokens, seed)[: calibration.MOST_SEQUENCES]
    x = x.astype(np.result_type(x, layer.w), copy=False)
    found = _of_data(x, layer(x), seed, progress)
    offsets = layer.visible.offsets(x.shape[1])
    measured = [
        *_weights.placed_checks(layer, offsets),
        *_attention.attention_checks(layer.astype(x.dtype), x),
    ]
    known = {check.code: check for check in measured}
    checks = tuple(known.get(check.code, check) for check in found.checks)
    return dataclasses.replace(found, checks=checks, advice=judge_placed(layer, x.shape[1]))


def _of_layer(layer: AttentionLayer, tokens: Any, seed: int, progress: Progress) -> Conditions:
    x = _tokens_of(layer, tokens, seed)
    given = None if tokens is None else len(x)
    dtype = np.result_type(x, layer.w)
    layer, x = layer.astype(dtype), x[: calibration.MOST_SEQUENCES].astype(dtype, copy=False)
    y = layer(x)
    with progress.phase("moment"):
        gap = layer_gap(layer, x, y, seed)
    with progress.phase("signals"):
        white = whitening(x, None)
    with progress.phase("certify"):
        facts = Facts.of_layer(layer, x, y, gap, white, given, seed)
    checks = [
        *_identifiability.token_checks(x.shape[1], white.directions, layer.dim),
        *_weights.weight_checks(layer),
        *_attention.attention_checks(layer, x),
        _attention.nonlinear_check(gap.share, layer.dtype),
        *_identifiability.parameter_checks(facts.certificate),
        *_gap_checks(gap, layer.num_heads, x.shape[1], layer.out_dim),
    ]
    return Conditions(tuple(checks), _figures(gap, x, layer.num_heads), judge_layer(facts, checks))


def _of_data(x: Any, y: Any, seed: int, progress: Progress) -> Conditions:
    examples = as_examples(x, y)
    chosen = np.arange(min(examples.num, calibration.MOST_SEQUENCES))
    x, y, mask = examples.take(chosen)
    problem = problem_of(x, y, mask, None, seed)
    with progress.phase("signals"):
        signals = measure(problem, tools_of(seed))
    seen = signals.evidence if isinstance(signals, Need) else signals.evidence()
    rows = () if isinstance(signals, Need) else rows_of(TABLES["auto"], problem, signals)
    with progress.phase("moment"):
        gap = data_gap(problem, signals, seed)
    keys = x.shape[1] if mask is None else int(mask.sum(axis=1).max())
    checks = [
        *_identifiability.token_checks(keys, int(seen.get("support_rank", 0)), examples.dim),
        *_weights.unseen_checks(_weights.TEXTS | _attention.TEXTS),
        _attention.nonlinear_check(gap.share, examples.dtype),
        *_weights.unseen_checks(_identifiability.UNSEEN),
        *_gap_checks(gap, gap.heads, examples.tokens, examples.out_dim),
    ]
    figures = _figures(gap, x, gap.heads)
    figures |= {"causal": bool(seen.get("causal")), "examples": examples.num}
    return Conditions(tuple(checks), figures, judge_data(gap, examples, keys, rows))


def _gap_checks(gap: Gap, heads: int, tokens: int, out_dim: int) -> list[Check]:
    return [
        Check.compare(
            "gap.ratio",
            gap.ratio,
            calibration.SEEN_AT,
            unit="floors",
            text=f"weakest of {heads} heads over the noise floor at {gap.fitted} examples",
            at_most=False,
        ),
        Check.compare(
            "sculpt.capacity", heads * (tokens - 1), out_dim, text="m (k - 1), which must not exceed d_out"
        ),
    ]


def _figures(gap: Gap, x: np.ndarray, heads: int) -> dict[str, Any]:
    return {
        "heads": heads,
        "tokens": x.shape[1],
        "dim": x.shape[2],
        "singular_values": gap.values[: max(heads + 4, 1)].tolist(),
        "floor": gap.floor,
        "fitted": gap.fitted,
    }
