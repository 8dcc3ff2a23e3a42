"""Claims beside errors: what is established, at which accuracy, and what keeps a claim from being established."""

from __future__ import annotations

import numpy as np
import pytest

from attnlearn._certificate import Status
from attnlearn.solve._batch import Batch, example_scale
from attnlearn.solve.noise._certify import certify_noisy

from ._problems import TRUTH, fitted


@pytest.fixture
def judged(rng):
    def judge(level=0.03, accuracy=0.05):
        layer, used = fitted(rng, level=level, fresh=200)
        fit, rest = used.take(np.arange(700)), used.take(np.arange(700, used.num))
        return certify_noisy(layer, rest, fit, scale=example_scale(fit), accuracy=accuracy)

    return judge


def test_every_claim_is_established_at_the_accuracy_of_the_data(judged):
    found = judged()
    assert found.certificate.certified
    c1, c2, c3 = found.certificate.claims
    assert c1.value["error"] <= 0.05
    assert c1.value["against"] == "layer"
    assert c2.value == 2
    assert c3.value["bound"] <= 0.05
    assert all("mean zero" in claim.text for claim in (c2, c3))
    errors, influence = found.stats["standard_errors"], found.stats["influence"]
    outputs = TRUTH(np.random.default_rng(1).standard_normal((2_000, 4, 5)))
    assert errors["noise"] == pytest.approx(0.03 * outputs.std(), rel=0.1)
    assert errors["examples"] == 700
    assert len(errors["query_bias"]) == 2
    assert 1 / influence["carried_by"] < influence["worst"][0]["share"] < 0.2


def test_c1_is_about_the_recorded_outputs_where_these_are_exact_enough(judged):
    assert "against" not in judged(level=1e-3).certificate.claim("C1").value


def test_a_worse_accuracy_than_asked_for_is_not_established(judged):
    found = judged(level=0.1, accuracy=1e-3)
    failed = {check.code for check in found.certificate.checks if check.status is Status.FAILS}
    assert {"C1.error", "C3.bound", "C2.further"} <= failed
    assert not any(claim.established for claim in found.certificate.claims)


def test_antipodal_tokens_have_a_rival_beside_errors_too(rng):
    half = rng.standard_normal((900, 2, 5))
    x = np.concatenate([half, -half], axis=1) + 1e-4 * rng.standard_normal((900, 4, 5))
    y = TRUTH(x) + 0.02 * rng.standard_normal((900, 4, 5))
    fit, held = Batch(x[:700], y[:700]), Batch(x[700:], y[700:])
    found = certify_noisy(TRUTH, held, fit, scale=example_scale(fit), accuracy=0.05)
    assert found.certificate.rival is not None
    assert not found.certificate.claim("C2").established
    assert not found.certificate.claim("C3").established
