"""The site: every public name is in the reference, every page is in the contents, notebooks are executed and run again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attnlearn

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"auto(?:function|class):: attnlearn\.(?:\w+\.)?(\w+)", text))
    modules = {"__version__", "convert", "data", "hard", "oracle", "train", "MultiHeadAttentionClassifier"}
    assert not set(attnlearn.__all__) - modules - shown


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text("utf-8")
    listed = set(re.findall(r"^([\w/-]+)$", contents, flags=re.M))
    assert not {path.stem for path in DOCS.glob("*.md")} - {"index"} - listed
    assert {f"tutorials/{path.stem}" for path in NOTEBOOKS} <= listed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_their_outputs_and_no_error(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert kinds
    assert path.stat().st_size < 500_000
    assert not re.search(r"/home/|/root/|/work/|/tmp/", path.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("ipykernel", reason="the extra [docs] is not installed")
    client = pytest.importorskip("nbclient", reason="the extra [docs] is not installed")
    import nbformat

    client.NotebookClient(nbformat.read(path, as_version=4), timeout=900).execute(cwd=str(tmp_path))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery", reason="the extra [docs] is not installed")
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "site" / "gallery" / "index.html").is_file()
    first = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "<math " in first
    assert not re.search(r"<(?:script|link)[^>]*https?://(?!attnlearn)", first), "a page needs no network"
