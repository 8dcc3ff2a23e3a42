"""Words for people: every phase that runs has some, and no key of the code reaches a reader of progress."""

from __future__ import annotations

import re
from pathlib import Path

import attnlearn
from attnlearn._words import FIGURES, PHASES, SILENT, about, doing, said
from attnlearn.engine._calibration import NAME_COLUMNS

SOURCE = Path(attnlearn.__file__).parent


def test_every_proposer_and_every_phase_of_a_learner_has_words() -> None:
    from attnlearn.extraction._extract import LEARNED
    from attnlearn.recovery._proposers import TABLES

    named = {row.name for table in TABLES.values() for row in table} | {name for name, _ in LEARNED}
    assert len(named) > 12
    assert not named - PHASES.keys()


def test_every_figure_of_progress_has_words() -> None:
    text = "".join(path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    calls = re.findall(r"(?:progress\.update|on_step)\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text)
    keys = {key for call in calls for key in re.findall(r"(?:^|[ ,])([a-z_]+)=", call)}
    assert {"residual", "heads", "products"} <= keys
    assert not keys - FIGURES.keys() - SILENT


def test_names_fit_their_column_and_texts_are_sentences() -> None:
    for name, words in PHASES.items():
        assert len(words.doing) <= NAME_COLUMNS, name
        assert words.text.endswith("."), name
        assert doing(name) == words.doing
        assert about(name) == words.text


def test_figures_without_words_keep_their_name_without_underscores() -> None:
    assert said({"some_thing": 3, "eigenvalue": 1.0}) == "some thing 3"
    assert said({"examples": 20_000, "memory": "0.56 GB"}) == "20,000 examples, 0.56 GB of memory"
