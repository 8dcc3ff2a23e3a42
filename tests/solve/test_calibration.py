"""The constants: few, each with its own words, each used, and each that changes answers with a script that measures it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from attnlearn.recovery import _calibration as of_recovery
from attnlearn.solve import _calibration as calibration
from attnlearn.solve._calibration import in_precision
from benchmarks.calibrate import NAMES, covered, instead, script
from benchmarks.calibrate.__main__ import main

SOURCE = Path(calibration.__file__)
SECTIONS = {"Changes answers", "Sizes and budgets"}


def constants() -> dict[str, tuple[str, str]]:
    """Every constant with its section and its docstring; former names are none."""
    text = SOURCE.read_text("utf-8")
    headings = [
        (match.start(), match[1]) for match in re.finditer(r"^# =+\n# (.+)\n# =+$", text, re.MULTILINE)
    ]
    starts = np.cumsum([0, *(len(line) + 1 for line in text.split("\n"))])
    found, body = {}, ast.parse(text).body
    for node, after in zip(body, [*body[1:], None]):
        if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Name):
            continue
        section = [name for place, name in headings if place < starts[node.lineno - 1]][-1]
        words = (
            after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        )
        for target in node.targets:
            found[target.id] = (section, words)
    return found


def test_there_are_few_in_two_sections():
    assert len(constants()) <= 55
    assert {section for section, _ in constants().values()} == SECTIONS


def test_each_is_a_number_with_its_own_docstring():
    for name, (_, words) in constants().items():
        value = getattr(calibration, name)
        by_precision = value.values() if isinstance(value, dict) else [value]
        assert all(isinstance(number, (int, float)) for number in by_precision), name
        assert words.strip().endswith((".", ")")), name


def test_each_is_used():
    package = SOURCE.parent
    text = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py") if path != SOURCE)
    assert [name for name in constants() if not re.search(rf"\b{name}\b", text)] == []


def test_each_that_changes_answers_has_a_script_that_measures_it():
    answers = {name for name, (section, _) in constants().items() if section == "Changes answers"}
    assert covered() == answers


def answers_of_recovery() -> set[str]:
    """The constants in the section "changes answers" of `recovery/_calibration.py`."""
    text = Path(of_recovery.__file__).read_text("utf-8")
    section = re.search(r"^# === changes answers =+\n(.*?)^# === ", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    body = ast.parse(section[1]).body
    assigned = [node for node in body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    targets = [target for node in assigned for target in getattr(node, "targets", None) or [node.target]]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def test_each_of_recovery_that_changes_answers_has_a_script_that_measures_it():
    answers = answers_of_recovery()
    assert {"SIGNIFICANT", "GOOD_SHARES"} <= answers  # the first and the last
    assert covered("recovery") == answers


@pytest.mark.parametrize("name", NAMES)
def test_scripts_print_each_constant_that_they_list(name):
    text = Path(script(name).__file__).read_text("utf-8")
    printed = set(re.findall(r'\b(?:show|cut)\(\s*"([A-Z_0-9]+)"', text))
    assert printed == set(script(name).COVERS)


def test_the_list_names_every_script(capsys):
    main(["--list"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(NAMES)


def test_other_values_hold_for_a_while_only():
    before = of_recovery.GAP
    with instead(GAP=7.0):
        assert of_recovery.GAP == 7.0
    assert before == of_recovery.GAP


@pytest.mark.parametrize("name", NAMES)
def test_the_scripts_can_be_imported(name):
    assert script(name).COVERS
    assert callable(script(name).main)


def test_float32_has_half_the_digits():
    assert in_precision(1e-8, np.float64) == 1e-8
    assert in_precision(1e-8, np.dtype("float32")) == pytest.approx(1e-4)


def test_claims_keep_their_thresholds():
    """No simplification may loosen what guards a claim: these values only ever become stricter."""
    assert calibration.DELTA <= 1e-6
    assert calibration.UNCOVERED <= 0.5
    assert calibration.SMALL_ERROR <= 1e-3
    assert calibration.ROUNDING_SLACK <= 4.0
    assert calibration.EXACT <= 3e-13
    assert calibration.STANDS_OUT >= 100.0
    assert calibration.APART_LEAST >= 1e-4
    assert calibration.PARAMETER_SAFETY >= 3.0
    assert calibration.PARAMETER_ERROR <= 1e-2
    assert calibration.LEAST_KEYS >= 3
    assert calibration.NO_VARIANCE >= 1e-9
    assert 1 - calibration.ENOUGH_SHARE <= 0.75
    assert calibration.RIDGE < calibration.EXACT
