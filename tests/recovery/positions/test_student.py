"""The student with positions: it learns most of a layer, and says what dropping each head costs."""

from __future__ import annotations

import numpy as np

from attnlearn.data import as_examples
from attnlearn.engine import Tools
from attnlearn.recovery._problem import Problem
from attnlearn.recovery.positions._kinds import Family
from attnlearn.recovery.positions._student import Descent
from attnlearn.solve._split import Split
from tests.problems._positioned import Shape, random_by_offset
from tests.recovery._problems import made_signals


def test_a_student_learns_most_of_a_layer_and_says_what_a_head_is_worth(rng):
    layer = random_by_offset("rotary", Shape(heads=2, dim=8, width=4, tokens=8), rng)
    x = rng.standard_normal((1500, 8, 8))
    y = layer(x)
    problem = Problem(as_examples(x, y), Split.make(len(x)), True, 2)
    signals = made_signals(8, causal=True)
    descent = Descent(problem, signals, Family((layer.form.rotation,), layer.visible), Tools())
    found = descent.run("s")
    assert found.num_heads == 8
    assert np.linalg.norm(found(x) - y) < 0.1 * np.linalg.norm(y)
    costs = {len(kept): cost for kept, cost in descent.drops(found)}
    assert list(costs) == [7, 6, 5, 4, 3, 2, 1]
    assert costs[1] == max(costs.values())
