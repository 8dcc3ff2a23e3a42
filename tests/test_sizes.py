"""Small files that claim to be large: refused by their headers, before anything is allocated."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attnlearn import AttentionLayer, convert, load, recover
from attnlearn.cli.__main__ import main
from attnlearn.training._command import train_file

BOMB = 2**31
"""Bytes that the bombs below would unpack to, if anyone let them."""


def npy_header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.fixture(scope="module")
def bomb(tmp_path_factory) -> Path:
    """An .npz of two megabytes whose arrays are two gigabytes of zeros."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.npz"
    sequences = BOMB // 2 // (8 * 8 * 16)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("x", "y"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(npy_header((sequences, 8, 16)))
                for _ in range(BOMB // 2 // 2**24):
                    member.write(bytes(2**24))
    return path


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr("attnlearn._memory.free_bytes", lambda: 500_000_000)


@pytest.fixture(autouse=True)
def stays_small():
    """The process must not grow by what a bomb would take."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < BOMB / 1024 / 4


def test_a_compressed_file_is_measured_against_memory(bomb, capsys) -> None:
    with pytest.raises(
        ValueError, match=r"^path: bomb.npz unpacks to 2.15 GB, more than the 0.50 GB allowed by memory$"
    ):
        recover(bomb, memory="500MB")
    assert main(["recover", str(bomb), "--memory", "500MB"]) == 2
    assert "allowed by memory" in capsys.readouterr().err


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("verb", [recover, train_file])
def test_a_compressed_file_is_measured_against_what_is_free(verb, bomb) -> None:
    with pytest.raises(
        ValueError, match=r"^path: bomb.npz unpacks to 2.15 GB, more than the 0.50 GB that are free$"
    ):
        verb(bomb)


def state(torch, strided) -> dict:
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {f"self_attn.{name}.weight": strided(torch.ones(1)) for name in names}


@pytest.mark.parametrize(
    ("strided", "message"),
    [
        (lambda one: one.expand(24_000, 24_000), "must not hold more bytes than its file"),
        (lambda one: one.expand(8, 8), "must not have strides that overlap"),
    ],
    ids=["larger than the file", "small"],
)
def test_strides_that_repeat_a_number_are_refused(strided, message, tmp_path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    torch.save(state(torch, strided), tmp_path / "stride.pt")
    assert (tmp_path / "stride.pt").stat().st_size < 3000
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "stride.pt", num_heads=2)


def test_views_of_one_tensor_are_not_refused(tmp_path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    joined = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0))
    parts = iter([joined[0], joined[1].T, joined[2], joined[3]])
    torch.save(state(torch, lambda _: next(parts)), tmp_path / "views.pt")
    assert load(tmp_path / "views.pt", num_heads=2).dim == 8


def test_a_packed_checkpoint_is_refused(tmp_path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    torch.save(state(torch, lambda _: torch.zeros(64, 64)), tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(ValueError, match="members that are not compressed"):
        load(tmp_path / "packed.pt", num_heads=2)
    assert load(tmp_path / "plain.pt", num_heads=2).dim == 64


@pytest.mark.usefixtures("little_memory")
def test_a_layer_that_would_not_fit_is_refused_before_it_is_multiplied() -> None:
    thin = np.ones((4, 4096, 1))
    with pytest.raises(ValueError, match=r"^layer: 4 heads of dimension 4096 grow to 3.22 GB"):
        convert.from_qkvo(thin, thin, thin, thin.swapaxes(1, 2))


@pytest.mark.parametrize(
    "text",
    [100_000 * "[", '{"schema": "attnlearn/solution", "version": 1, "stats": ' + 300 * "[" + 300 * "]" + "}"],
)
def test_nested_json_is_one_line_wherever_it_is_read(text, tmp_path, capsys) -> None:
    AttentionLayer.random(2, 4).save(tmp_path / "model.safetensors")
    convert.save_layout(AttentionLayer.random(2, 4), tmp_path / "model.safetensors", layout="qkvo")
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "manifest.json").write_text(text)
    for words in (["inspect", "model.safetensors"], ["recover", "."], ["report", "manifest.json"]):
        assert main([words[0], str(tmp_path / words[1])]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1
        assert "nested deeper than 64" in errors[0]


def test_a_limit_of_the_process_is_one_line_too(bomb) -> None:
    """As `ulimit -v` sets it: exit 2 and a line, not a MemoryError."""
    script = (
        "import resource, sys; from attnlearn.cli.__main__ import main; import attnlearn.recovery, jax;"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + 10**9, -1)); sys.exit(main(['recover', sys.argv[1]]))"
    )
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not say what a process has taken")
    done = subprocess.run(
        [sys.executable, "-c", script, str(bomb)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "that are free" in done.stderr
    assert len(done.stderr.splitlines()) == 1
