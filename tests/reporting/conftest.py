"""Results to report on: real ones, made once, and a made-up one for what must hold of any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnlearn
from attnlearn import AttentionLayer, Certificate, Check, Claim, Outcome, Phase, Solution, data
from attnlearn.extraction import leak
from tests.reporting._browser import Browser, find_browser

C1 = Claim("C1", "small error", True, {"error": 1e-15, "fraction": 0.99, "examples": 2000}, 1 - 1e-6)
C2 = Claim("C2", "3 heads", True, 3)
C3 = Claim("C3", "right to 1e-12", True, {"bound": 1e-12, "heads": [1e-13, 1e-12, 1e-14]})


def made_up(
    outcome: Outcome = Outcome.RECOVERED, layer: Any = None, claims: tuple = (C1, C2, C3), **stats: Any
):
    """A solution with everything a report shows, whatever the outcome."""
    layer = AttentionLayer.random(3, 8, rank=2, bias=True, seed=1) if layer is None else layer
    checks = (Check.compare("C1.error", 1e-15, 1e-3, unit="relative error", text="largest error"),)
    phases = (
        Phase("moment", 0.5, {"singular_values": [3.0, 2.0, 1.0, 0.1], "floor": 0.3, "visible": 3}),
        Phase("refine", 1.5, {"steps": [{"residual": 0.1}, {"residual": 1e-9}], "stop": "floor"}),
    )
    return Solution(
        layer,
        outcome,
        Certificate(claims, checks),
        phases,
        {"method": "moment", "sequence_length": 4, **stats},
    )


@pytest.fixture(scope="session")
def results() -> dict[str, dict[str, Any]]:
    """One JSON result of every kind, from real runs."""
    truth = AttentionLayer.random(num_heads=2, dim=6, bias=True, seed=1)
    x = data.Gaussian(tokens=4, dim=6).sample(3000)
    y = truth(x)
    noise = 0.01 * np.random.default_rng(0).standard_normal(y.shape)
    labelled = data.TokenizedMixture(tokens=4, dim=6).sample(40, seed=0)
    held_out = data.TokenizedMixture(tokens=4, dim=6).sample(40, seed=1)
    known = {"raise_on_failure": False}
    curve = leak(truth, dim=6, decimals=(None, 2), progress=False)
    return {
        "recovered": attnlearn.recover(x, y, **known).to_json(),
        "noisy": attnlearn.recover(x, y + noise, accuracy=1e-4, **known).to_json(),
        "residual": attnlearn.recover(x, y + x, **known).to_json(),
        "extracted": attnlearn.extract(truth, 6, **known).to_json(),
        "trained": attnlearn.train.fit(
            *labelled, num_heads=4, max_steps=60, test=held_out, **known
        ).to_json(),
        "leak": {"schema": "attnlearn/leak", "version": 1, "rows": curve.rows},
    }


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real Chromium; without one the tests are skipped, or fail where ATTNLEARN_REQUIRE_BROWSER is set."""
    import os

    program = find_browser()
    if program is None:
        reason = "no Chromium on the PATH (apt-get install chromium)"
        if os.environ.get("ATTNLEARN_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A report of a made-up result."""
    return attnlearn.report(made_up(), tmp_path / "report.html")
