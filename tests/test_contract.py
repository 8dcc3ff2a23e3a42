"""The contract of the verbs: the same last keywords with the same defaults, checked by the same rules."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import attnlearn
from attnlearn import AttentionLayer, data
from attnlearn.engine import Options

LAST = {
    "target": None,
    "time_limit": None,
    "seed": 0,
    "engine": None,
    "device": None,
    "checkpoint": None,
    "resume": True,
    "progress": None,
    "raise_on_failure": True,
}
VERBS = {
    "recover": attnlearn.recover,
    "extract": attnlearn.extract,
    "compress": attnlearn.compress,
    "train.fit": attnlearn.train.fit,
}
LAYER = AttentionLayer.random(2, 4, seed=1)
X = data.Gaussian(3, 4).sample(60)
LABELLED = data.TokenizedMixture(tokens=3, dim=4).sample(20, seed=0)
GIVEN = {
    "recover": ((X, LAYER(X)), {}),
    "extract": ((LAYER,), {}),
    "compress": ((LAYER, X), {"num_heads": 1}),
    "train.fit": (LABELLED, {"num_heads": 1}),
}


def test_the_options_of_the_engine_are_the_last_keywords() -> None:
    assert {field.name: field.default for field in dataclasses.fields(Options)} == LAST


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_with_the_same_keywords(verb: str) -> None:
    last = list(inspect.signature(VERBS[verb]).parameters.values())[-len(LAST) :]
    assert {parameter.name: parameter.default for parameter in last} == LAST
    assert [parameter.name for parameter in last] == list(LAST)
    assert {parameter.kind for parameter in last} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"target": -1.0}, "target: must be positive"),
        ({"time_limit": 0}, "time_limit: must be positive"),
        ({"seed": -3}, "seed: must be an integer >= 0"),
        ({"device": "tpu"}, "device: must be None or"),
    ],
)
def test_every_verb_refuses_the_same_mistakes(verb: str, keywords, message: str) -> None:
    arguments, options = GIVEN[verb]
    with pytest.raises(ValueError, match=f"^{message}"):
        VERBS[verb](*arguments, **options, **keywords)
