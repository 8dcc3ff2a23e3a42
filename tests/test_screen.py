"""One screen of text: as wide as asked, broken between words, colours for what is established."""

from __future__ import annotations

import pytest

from attnlearn import AttentionLayer, Certificate, Check, Claim, Outcome, Phase, Solution
from attnlearn._screen import solution_text

CLAIMS = (Claim("C1", "small error " * 12, True), Claim("C2", "2 heads", False))
CHECKS = (Check.compare("C2.apart", 2.0, 1.0, text="a check"),)
PHASES = (Phase("moment", 1.25), Phase("wide search", 0.0, {"skipped": "why"}), Phase("certify", 0.5))
SOLUTION = Solution(
    AttentionLayer.random(2, 4), Outcome.NOT_ESTABLISHED, Certificate(CLAIMS, CHECKS), PHASES,
    {"sequences": 1_636, "scalars": 20_904, "cached_sequences": 36},
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 110])
def test_lines_fit_and_no_word_is_broken(width: int) -> None:
    text = solution_text(SOLUTION, width)
    assert max(map(len, text.splitlines())) <= width
    assert " ".join(text.split()).count("small error") == 12
    assert "\x1b" not in text


def test_queries_and_the_time_of_all_phases_are_said() -> None:
    text = solution_text(SOLUTION)
    assert "queries  1,636 sequences, 36 of them known from before, 20,904 numbers read" in text
    assert "time     1.8 s: moment 1.2 s, certify 0.5 s" in text


def test_colours_mark_what_is_established_what_is_not_and_what_fails() -> None:
    text = solution_text(SOLUTION, colour=True)
    assert "\x1b[32mestablished:\x1b[0m small" in text
    assert "\x1b[33mnot established:\x1b[0m 2 heads" in text
    assert "\x1b[31mfails\x1b[0m  C2.apart" in text
    assert text.startswith("\x1b[1;33mNOT_ESTABLISHED (not certified):\x1b[0m")
