"""Every example runs as it stands, and so do the README's lines of Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONG = {"demo.py", "train_digits.py"}
EXAMPLES = [
    pytest.param(path, marks=[pytest.mark.slow] if path.name in LONG else [], id=path.stem)
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("path", EXAMPLES)
def test_example_runs(path: Path) -> None:
    pytest.importorskip("torch", reason="the extra [torch] is not installed")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_lines_of_python_in_the_readme(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # they write a report
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.S)
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "RECOVERED (certified)" in printed
    assert float(printed.splitlines()[-1]) < 1e-8
    assert (tmp_path / "report.html").is_file()


def test_the_commands_of_the_readme_exist() -> None:
    from attnlearn.cli._app import app

    text = (ROOT / "README.md").read_text("utf-8") + "".join(
        path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))
    )
    shown = "".join(re.findall(r"```bash\n(.*?)```", text, flags=re.S)) + "\n".join(
        line.strip() for line in text.splitlines() if line.startswith("    ")
    )
    named = set(re.findall(r"^attnlearn ([a-z]+)", shown, flags=re.M))
    assert named
    assert not {name for name in named if name not in app}
    targets = set(re.findall(r"^make ([a-z-]+)", text, flags=re.M))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(re.search(rf"^{target}:", makefile, flags=re.M) for target in targets)
