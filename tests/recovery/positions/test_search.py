"""The search of one family: too few heads are given up at once, and fits that were made are not made again."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.positions import _search
from attnlearn.recovery.positions._kinds import Family, relative, rotary
from attnlearn.scores import Visible
from attnlearn.solve._split import Split
from tests.problems._positioned import Shape, random_by_offset
from tests.recovery._problems import made_signals

SHAPE = Shape(heads=2, dim=6, width=4, tokens=6)
SIGNALS = made_signals(6)


@pytest.fixture
def problem(rng):
    layer = random_by_offset("table", SHAPE, rng)
    x = rng.standard_normal((1200, SHAPE.tokens, SHAPE.dim))
    return Problem(as_examples(x, layer(x)), Split.make(len(x)), True, 2)


def test_fits_that_were_made_are_not_made_again(problem, monkeypatch):
    family = Family(relative(SHAPE.tokens), Visible(True))
    first = _search.Search(problem, SIGNALS, family, Tools(), "s")
    found, _ = first.run()
    assert found.exact
    monkeypatch.setattr(_search, "refine", None)
    again, _ = _search.Search(problem, SIGNALS, family, Tools(), "s", tuple(first.done)).run()
    assert again.layer == found.layer


def test_a_kind_that_is_hopeless_is_not_followed_by_others_of_its_family(problem):
    """One head for two: no base of rotary positions mends that."""
    search = _search.Search(problem, SIGNALS, Family(rotary(4), Visible(True)), Tools(), "s")
    fits = search.by_kind(_search.random_scores(rotary(4)[0], 1, SHAPE.dim, np.random.default_rng(0)))
    assert len(fits) == 1
    assert fits[0].error > 0.3
