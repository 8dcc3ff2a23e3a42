"""The documents say what is so: tables in step with the results, links that lead somewhere, commands that run as printed."""

from __future__ import annotations

import re
import shlex
import socket
from pathlib import Path

import pytest

from attnlearn import AttentionLayer
from attnlearn.cli.__main__ import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = {"README.md", "from-model.md", "engines.md", "compression.md", "scale.md"}
"""Documents whose commands recover something large, or need a cluster."""

MODEL = """
import torch
from transformers import BertConfig, BertModel

def make():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16)
    model = BertModel(config).double().eval()
    with torch.no_grad():
        for layer in model.encoder.layer:  # attention that differs from an average, as in a trained model
            layer.attention.self.query.weight *= 20
            layer.attention.self.key.weight *= 20
    return model, [torch.randint(0, 50, (500, 6)) for _ in range(8)]
"""


def printed_commands(document: Path) -> list[str]:
    """Commands of the package that a document prints, in order: in bash blocks and in indented lines."""
    text = document.read_text("utf-8")
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, flags=re.S)).splitlines()
    indented = [line[4:] for line in text.splitlines() if re.match(r"    attnlearn ", line)]
    found = [line.split("  #")[0].strip() for line in [*blocks, *indented]]
    return [line for line in found if line.startswith("attnlearn ")]


def test_tables_are_made_from_the_results() -> None:
    from benchmarks.render import rendered

    stale = [name for name, text in rendered().items() if (ROOT / name).read_text("utf-8") != text]
    assert not stale, "run python -m benchmarks render"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8"))
    assert not [
        link
        for link in links
        if "://" not in link
        and not (document.parent / link.split("#")[0]).exists()
        and not link.startswith("#")
    ]


def test_every_document_can_be_found_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert not [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in text]


SOURCES = sorted(
    path for folder in ("src", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
)


def test_sections_that_modules_cite_exist() -> None:
    """Every "docs/NAME.md, section N" and every 'docs/NAME.md, "Heading"' leads to a heading that a clone has."""
    cited, missing = 0, []
    for path in SOURCES:
        text = re.sub(r"\s+", " ", path.read_text("utf-8"))
        for name, number, heading in re.findall(r'docs/([\w-]+\.md)(?:, section (\d+)|, "([^"]+)")?', text):
            document = ROOT / "docs" / name
            headings = document.read_text("utf-8") if document.is_file() else ""
            wanted = rf"^## {number}\. " if number else rf"^## {re.escape(heading)}$" if heading else "^# "
            cited += 1
            if not re.search(wanted, headings, flags=re.M):
                missing.append(f"{path.relative_to(ROOT)}: {name} {number}{heading}")
    assert not missing
    assert cited >= 10


def test_no_module_cites_a_text_that_a_clone_does_not_have() -> None:
    absent = re.compile(r"mathematics of attnlearn|theory, section|theory\.md|see the theory", re.I)
    found = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if absent.search(re.sub(r"\s+", " ", path.read_text("utf-8")))
    ]
    assert not found


def test_pictures_are_small() -> None:
    pictures = [path for path in (ROOT / "docs" / "images").iterdir() if path.is_file()]
    assert pictures
    assert not [path.name for path in pictures if path.stat().st_size > 300_000]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.name in SLOW else [], id=path.name)
        for path in DOCUMENTS
        if printed_commands(path)
    ],
)
def test_commands_run_as_printed(document: Path, tmp_path: Path, monkeypatch, request) -> None:
    pytest.importorskip("transformers", reason="the extra [dev] is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "my_model.py").write_text(MODEL)
    AttentionLayer.random(2, 8, rank=4, seed=3).save("layer.safetensors")
    if document.name != "README.md":
        prepare(document.name, request)
    for command in printed_commands(document):
        assert main(shlex.split(command)[1:]) == 0, command


SERVICE = """from attnlearn import AttentionLayer
attention = AttentionLayer.load("layer.safetensors")
"""
"""A service that needs no network."""


def prepare(name: str, request: pytest.FixtureRequest) -> None:
    """What a document takes for granted: a result, a service, a folder of examples, a cluster."""
    if name == "reports.md":
        words = ["extract", "--oracle", "layer.safetensors", "-o", "found.safetensors", "-q", "--json"]
        assert main([*words, "result.json"]) == 0
        for copy in ("first.json", "second.json"):
            Path(copy).write_bytes(Path("result.json").read_bytes())
        Path("true-layer.safetensors").write_bytes(Path("layer.safetensors").read_bytes())
    if name == "extraction.md":
        Path("service.py").write_text(SERVICE)
    if name == "compression.md":
        AttentionLayer.random(5, 8, rank=4, seed=3).save("model.safetensors")
        assert main(["sample", "model.safetensors", "activations", "--num", "3000", "--tokens", "4"]) == 0
    if name in ("engines.md", "scale.md"):
        assert main(["sample", "layer.safetensors", "examples-folder", "--num", "3000", "--tokens", "4"]) == 0
    if name == "engines.md":
        distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 8786)) == 0:
                pytest.skip("port 8786, which the document names, is taken")
        cluster = distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, scheduler_port=8786, dashboard_address=":0", processes=True
        )
        request.addfinalizer(cluster.close)


def test_the_python_of_the_report_page(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib", reason="the extra [report] is not installed")
    from tests.reporting.conftest import made_up

    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "reports.md").read_text("utf-8"), flags=re.S
    )
    exec(compile(block, "reports.md", "exec"), {"solution": made_up()})
    assert (tmp_path / "moment.pdf").is_file()


def test_every_name_of_the_glossary_is_in_the_code() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    rows = [
        line.split("|")[3] for line in text.splitlines() if line.startswith("| ") and line.count("|") == 5
    ]
    named = {
        word
        for code in re.findall(r"`([^`]+)`", "".join(rows))
        for word in re.findall(r"[A-Za-z_]\w+", code)
        if word != "layer"
    }
    source = "".join(path.read_text("utf-8") for path in SOURCES)
    assert len(named) > 20
    assert not {word for word in named if not re.search(rf"\b{word}\b", source)}
