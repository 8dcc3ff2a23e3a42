"""What is fuzzed: for every kind of file a way to damage a good one and the code that reads it.

A target is a class with `__init__(folder)`, which makes good files there, `damage(rng)`, which writes a damaged one, and
`read()`, which gives it to the library as a user would.
"""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn import AttentionLayer, Outcome, Solution, conditions, convert, load, recover, report
from attnlearn._certificate import Certificate, Check, Claim, Status
from attnlearn._result import Phase
from attnlearn._summary import head_similarity, summarize
from attnlearn.data import Gaussian, Recorded, RecordedWriter, as_examples
from attnlearn.engine import Checkpoint, Tools, run_phases
from attnlearn.engine._checkpoint import _metadata
from attnlearn.engine._encode import encode
from attnlearn.oracle import Oracle
from attnlearn.training import TrainConfig
from attnlearn.training._command import load_examples, train_file
from attnlearn.training._problem import make_problem
from tests.fuzz._mutate import mutated_bytes, mutated_json, mutated_text


def split_header(whole: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors of a safetensors file."""
    length = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def with_header(header: bytes, payload: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + payload


def damaged_tensors(whole: bytes, rng: np.random.Generator) -> bytes:
    """A safetensors file with damage anywhere, or in what its header says."""
    if rng.integers(3) == 0:
        return mutated_bytes(whole, rng)
    header, payload = split_header(whole)
    return with_header(mutated_text(header, rng), payload)


class Safetensors:
    """Layers in several layouts, with and without a config.json."""

    def __init__(self, folder: Path) -> None:
        self.path, self.config = folder / "model.safetensors", folder / "config.json"
        self.good = []
        for layout in ("attnlearn", "qkvo", "torch", "bert", "o_proj", "gpt2", "transformer_lens"):
            convert.save_layout(
                AttentionLayer.random(2, 6, rank=3).replace(causal=layout == "gpt2"), self.path, layout=layout
            )
            self.good.append(self.path.read_bytes())

    def damage(self, rng: np.random.Generator) -> None:
        good = self.good[rng.integers(len(self.good))]
        config = {"num_attention_heads": 2, "model_type": "bert", "head_dim": 3, "is_decoder": False}
        self.config.unlink(missing_ok=True)
        kind = rng.integers(4)
        self.path.write_bytes(good if kind == 0 else damaged_tensors(good, rng))
        if kind < 2:
            self.config.write_bytes(mutated_text(config, rng))

    def read(self) -> None:
        layer = load(self.path)
        summarize(layer)
        head_similarity(layer)


class RecordedFolder:
    """Manifest and shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "recorded"
        x = Gaussian(tokens=3, dim=2).sample(30)
        with RecordedWriter(self.folder, causal=False, provenance={"by": "test"}) as writer:
            writer.write(x, x)
            writer.write(x[:, :2], x[:, :2])
        names = ("manifest.json", "shard-000000.safetensors")
        self.good = {name: (self.folder / name).read_bytes() for name in names}

    def damage(self, rng: np.random.Generator) -> None:
        manifest, shard = self.good.values()
        if rng.integers(2):
            manifest = mutated_text(json.loads(manifest), rng)
        else:
            shard = damaged_tensors(shard, rng)
        for name, content in zip(self.good, (manifest, shard)):
            (self.folder / name).write_bytes(content)

    def read(self) -> None:
        examples = as_examples(self.folder)
        examples.take(np.arange(3))
        Recorded(self.folder).verify()


class Npz:
    """Archives of arrays, stored and deflated; damage to bytes, to array headers and to members."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.npz"
        self.arrays = self.make()
        self.good = []
        for save in (np.savez, np.savez_compressed):
            save(self.path, **self.arrays)
            self.good.append(self.path.read_bytes())

    def make(self) -> dict[str, np.ndarray]:
        x = Gaussian(tokens=3, dim=2).sample(30)
        return {"x": x, "y": AttentionLayer.random(1, 2)(x), "mask": np.ones((30, 3), bool)}

    def damage(self, rng: np.random.Generator) -> None:
        if rng.integers(2):
            self.path.write_bytes(mutated_bytes(self.good[rng.integers(2)], rng))
            return
        victim = list(self.arrays)[rng.integers(len(self.arrays))]
        with zipfile.ZipFile(self.path, "w", int(rng.choice([0, 8, 12, 14]))) as archive:
            for name, array in self.arrays.items():
                buffer = io.BytesIO()
                np.save(buffer, array)
                content = buffer.getvalue()
                if name == victim:
                    content = self.member(content, rng)
                archive.writestr(f"{name}.npy", content)

    def member(self, content: bytes, rng: np.random.Generator) -> bytes:
        kind = rng.integers(4)
        if kind == 0:
            return mutated_bytes(content[:128], rng) + content[128:]
        if kind == 1:
            return mutated_bytes(content, rng)
        words = (b"<f8", b"|O8", b"|b1", b">f8", b"<U9", b"|V0", b"<c16", b"<m8[s]", b"<f2")
        shapes = (
            b"(30, 3, 2)",
            b"(90, 2)",
            b"()",
            b"(1000000000000,)",
            b"(-1, 3, 2)",
            b"(0, 3, 2)",
            b"(2**63,)",
        )
        head = content[10:128].replace(b"<f8", words[rng.integers(len(words))])
        head = head.replace(b"(30, 3, 2)", shapes[rng.integers(len(shapes))])
        return content[:8] + len(head).to_bytes(2, "little") + head + content[128:]

    def read(self) -> None:
        as_examples(self.path)


class NpzRecover(Npz):
    """The whole verb on what the reading lets through."""

    def read(self) -> None:
        with np.errstate(all="ignore"):
            recover(self.path, num_heads=1, raise_on_failure=False, progress=False)


class NpzTrain(Npz):
    """Labelled examples, as `train` checks them."""

    def make(self) -> dict[str, np.ndarray]:
        x = Gaussian(tokens=3, dim=2).sample(30)
        return {"x": x, "y": np.sign(x[:, 0, 0]), "x_test": x[:5], "y_test": np.sign(x[:5, 0, 0])}

    def read(self) -> None:
        arrays = load_examples(self.path)
        test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
        make_problem(
            arrays["x"], arrays["y"], num_heads=1, test=test, init="first-step", optimizer="gd", step="auto",
            max_steps=2, model=None, config=None,
        )  # fmt: skip


class NpzTrainWhole(NpzTrain):
    """The whole verb on what the reading lets through."""

    def read(self) -> None:
        with np.errstate(all="ignore"):
            train_file(
                self.path, num_heads=1, max_steps=2, config=TrainConfig(replays=0), progress=False, step=0.1
            )


class ResultJson:
    """Results of several commands, as `report` reads them."""

    def __init__(self, folder: Path) -> None:
        self.path, self.page = folder / "result.json", folder / "report.html"
        layer = AttentionLayer.random(2, 4)
        claim = Claim.stated(
            "C1", "the outputs agree", True, confidence=0.999, assumes=("tokens are independent",)
        )
        check = Check.compare("C1.fit", 1e-9, 1e-6, text="the fit")
        certificate = Certificate((claim,), (check, Check("C2.gap", Status.NOT_RUN, text="the gap")))
        phases = (Phase("count", 0.5, {"heads": 2, "singular_values": [3.0, 1.0, 0.1]}),)
        solution = Solution(layer, Outcome.RECOVERED, certificate, phases, {"examples": 30, "seed": 0})
        row = {"decimals": None, "noise": 0.0, "phase": "match", "sequences": 9, "tokens": 18, "scalars": 36}
        self.good = [
            solution.to_json(),
            conditions(layer).to_json(),
            {
                "schema": "attnlearn/leak",
                "version": 1,
                "rows": [row | {"error": 0.1, "parameter_error": None}],
            },
            {
                "schema": "attnlearn/reproduce",
                "version": 1,
                "claim": "hardness",
                "figures": {"dial": {"text": "t"}},
            },
            {"schema": "attnlearn/inspect", "version": 1, "heads": [{"theta_norm": 1.0}], "file": "x"},
        ]

    def damage(self, rng: np.random.Generator) -> None:
        good = self.good[0 if rng.integers(2) else rng.integers(len(self.good))]
        self.path.write_bytes(mutated_text(good, rng))

    def read(self) -> None:
        report(self.path, self.page)


@dataclass(frozen=True)
class State:
    x: np.ndarray | None = None
    heads: list | None = None
    rate: float = 0.0


def _phase(problem: Any, state: State, tools: Tools) -> tuple[State, dict[str, Any]]:
    return State(np.arange(6.0).reshape(2, 3), [np.ones(2, np.float32), None], float("inf")), {"rank": [1, 2]}


class CheckpointFolder:
    """Identity, lock and state; half of the damaged states carry the hash of their damage."""

    PHASES = (("one", _phase), ("two", _phase))
    IDENTITY = {"data": "a1", "configuration": {"heads": 4}, "seed": 0}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        self.saved = folder / "good"
        with Checkpoint(self.saved, self.IDENTITY, resume=False) as checkpoint:
            run_phases(self.PHASES[:1], None, State(), Tools(), checkpoint)
            self.value = {"name": "one", "state": checkpoint.load()[1]}
        self.folder = folder / "damaged"

    def damage(self, rng: np.random.Generator) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.saved, self.folder)
        state, identity = self.folder / "state-000001.safetensors", self.folder / "identity.json"
        kind = rng.integers(6)
        if kind == 0:
            identity.write_bytes(mutated_text(json.loads(identity.read_bytes()), rng))
        elif kind == 1:
            (self.folder / "lock").write_bytes(mutated_bytes(b"123 on host\n", rng))
        elif kind == 2:
            state.write_bytes(damaged_tensors(state.read_bytes(), rng))
        else:
            header, payload = split_header(state.read_bytes())
            tensors, text = encode(self.value)
            text = json.dumps(mutated_json(json.loads(text), rng))
            header["__metadata__"] = _metadata(tensors, text)
            state.write_bytes(with_header(json.dumps(header).encode(), payload))

    def read(self) -> None:
        with Checkpoint(self.folder, self.IDENTITY, resume=True) as checkpoint:
            run_phases(self.PHASES[:1], None, State(), Tools(), checkpoint)


class AnswerCache:
    """Answers of an oracle on disk: damage to bytes of the file and to its rows."""

    DAMAGE = (
        "UPDATE answer SET dtype = ?",
        "UPDATE answer SET tokens = ?",
        "UPDATE answer SET out_dim = ?",
        "UPDATE answer SET answer = ?",
        "UPDATE probe SET tokens = ?",
        "UPDATE probe SET dim = ?",
        "UPDATE probe SET dtype = ?",
        "UPDATE probe SET out_dim = ?",
        "UPDATE probe SET answer = ?",
        "UPDATE probe SET tolerance = ?",
        "UPDATE about SET schema = ?",
    )
    VALUES = (
        None,
        -1,
        0,
        1,
        3,
        10**6,
        2**62,
        0.5,
        1e308,
        "O",
        "<f8",
        "<f4",
        "|V8",
        "two\nlines",
        b"",
        b"12345678",
        b"\xff" * 96,
    )

    def __init__(self, folder: Path) -> None:
        self.folder, self.layer = folder / "cache", AttentionLayer.random(1, 4)
        self.x = Gaussian(tokens=3, dim=4).sample(6)
        self.read()
        (self.path,) = self.folder.glob("*.sqlite")
        self.good = self.path.read_bytes()

    def damage(self, rng: np.random.Generator) -> None:
        for leftover in self.folder.glob("*.sqlite-journal"):
            leftover.unlink()
        if rng.integers(2):
            self.path.write_bytes(mutated_bytes(self.good, rng))
            return
        self.path.write_bytes(self.good)
        base = sqlite3.connect(self.path)
        with base:
            for _ in range(rng.integers(1, 3)):
                words, value = (
                    self.DAMAGE[rng.integers(len(self.DAMAGE))],
                    self.VALUES[rng.integers(len(self.VALUES))],
                )
                base.execute(words, (value,))
        base.close()

    def read(self) -> None:
        with Oracle.wrap(self.layer, cache=self.folder, retries=0) as oracle:
            oracle(self.x)


class TorchCheckpoint:
    """A state dict of torch; damage to bytes and to the pickle inside."""

    def __init__(self, folder: Path) -> None:
        import torch

        self.path = folder / "model.pt"
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        weights = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0))
        state = {f"self_attn.{name}.weight": weights[i].clone() for i, name in enumerate(names)}
        torch.save(state, self.path)
        self.good = self.path.read_bytes()
        torch.save(state, self.path, _use_new_zipfile_serialization=False)
        self.old = self.path.read_bytes()

    def damage(self, rng: np.random.Generator) -> None:
        kind = rng.integers(4)
        if kind < 2:
            self.path.write_bytes(mutated_bytes(self.old if kind else self.good, rng))
            return
        with (
            zipfile.ZipFile(io.BytesIO(self.good)) as good,
            zipfile.ZipFile(self.path, "w", int(rng.choice([0, 0, 0, 8]))) as damaged,
        ):
            victims = [name for name in good.namelist() if name.endswith(".pkl") or kind == 3]
            victim = victims[rng.integers(len(victims))]
            for name in good.namelist():
                content = good.read(name)
                damaged.writestr(name, mutated_bytes(content, rng) if name == victim else content)

    def read(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what it then refuses
            load(self.path, num_heads=2)


TARGETS: dict[str, Any] = {
    "safetensors": Safetensors,
    "recorded": RecordedFolder,
    "npz": Npz,
    "npz train": NpzTrain,
    "result JSON": ResultJson,
    "checkpoint": CheckpointFolder,
    "answers": AnswerCache,
    "pt": TorchCheckpoint,
    "npz, whole recover": NpzRecover,
    "npz, whole train": NpzTrainWhole,
}
"""What is fuzzed, by name."""
