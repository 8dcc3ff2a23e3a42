"""Recorded activations: a folder of `manifest.json` and safetensors shards, or one .npz file.

Opening reads the manifest and the shard headers only; data is memory-mapped and streamed. Shards must lie in
the folder itself. What can fail: unknown manifest versions, shards that are truncated, swapped or not what the
manifest says, links that lead outside; each is one line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._types import Outputs, Tokens
from attnlearn.data._base import require_count
from attnlearn.data._examples import Examples
from attnlearn.data._manifest import read_manifest
from attnlearn.data._npz import open_npz
from attnlearn.data._shard import Shard, open_shard


class Recorded(Examples):
    """Examples on disk, written by `RecordedWriter`, `record` or `np.savez(path, x=x, y=y)`.

    A compressed .npz file is unpacked into memory: `memory` bounds it in bytes. Besides what `Examples` offers: `path`, `causal`
    (None when nobody said), `provenance`, `words` (the tokens of the first sequences as text, if they were recorded), and `sample` and
    `stream` as a data model, which read the sequences in a random order that depends on the seed.

    >>> import tempfile; path = tempfile.mkdtemp() + "/examples.npz"
    >>> np.savez(path, x=np.ones((5, 3, 2)), y=np.ones((5, 3, 2)))
    >>> Recorded(path)
    Recorded(num=5, tokens=3, dim=2, out_dim=2, masked=False, dtype=float64)
    """

    def __init__(self, path: str | os.PathLike[str], *, memory: int | None = None) -> None:
        self.path = Path(path)
        self.causal: bool | None = None
        self.provenance: dict[str, Any] = {}
        self.words: tuple[tuple[str, ...], ...] = ()
        self._claimed: str | None = None
        if self.path.is_dir():
            super().__init__(self._open_folder())
            return
        rule = "must be a folder that attnlearn record or sample wrote, or an .npz file (np.savez(path, x=x, y=y))"
        there = "" if self.path.is_file() else " (no such file)"
        if there or self.path.suffix != ".npz":
            raise ValueError(f"path: {rule}{_instead(self.path)}, got {str(self.path)!r}{there}")
        super().__init__([open_npz(self.path, memory)])

    def _open_folder(self) -> list[Shard]:
        manifest = read_manifest(self.path)
        self.causal, self.provenance = manifest.causal, manifest.provenance
        self._claimed, self.words = manifest.fingerprint, manifest.words
        home = self.path.resolve()
        shards = []
        for name, sequences in manifest.shards:
            shard = home / name
            require(shard.resolve().parent == home, "path", "shards must lie inside the folder", str(shard))
            shards.append(open_shard(shard, manifest.expected(sequences)))
        return shards

    def verify(self) -> None:
        """Read everything and compare with the fingerprint in the manifest; `ValueError` if it differs.

        >>> import tempfile; folder = tempfile.mkdtemp() + "/recorded"
        >>> from attnlearn.data import RecordedWriter
        >>> with RecordedWriter(folder) as writer:
        ...     writer.write(np.ones((5, 3, 2)), np.ones((5, 3, 2)))
        >>> Recorded(folder).verify()
        """
        if self._claimed is not None:
            found = self.fingerprint()
            require(found == self._claimed, "path", f"{self.path} must match its fingerprint", found)

    def sample(self, num: int, seed: int = 0) -> tuple[Tokens, Outputs]:
        """`num` distinct sequences in random order, as (x, y).

        >>> import tempfile; path = tempfile.mkdtemp() + "/examples.npz"
        >>> np.savez(path, x=np.ones((5, 3, 2)), y=np.ones((5, 3, 2)))
        >>> Recorded(path).sample(2)[0].shape
        (2, 3, 2)
        """
        (whole,) = self.stream(num, require_count(num, "num"), seed)
        return whole

    def stream(self, num: int, chunk: int, seed: int = 0) -> Iterator[tuple[Tokens, Outputs]]:
        """The same sequences, `chunk` at a time; padded data must be read with `chunks`, which has masks."""
        num, chunk = require_count(num, "num"), require_count(chunk, "chunk")
        require(num <= self.num, "num", f"must be at most the {self.num} recorded sequences", num)
        require(not self.masked, "path", "must hold no padding to be sampled (use chunks)", str(self.path))
        order = np.random.default_rng([require_count(seed, "seed", 0), 0x5E9]).permutation(self.num)[:num]
        return ((part.x, part.y) for part in self.chunks(chunk, order))


def _instead(path: Path) -> str:
    """What to do with a file that holds no examples, where its name shows what it is.

    >>> _instead(Path("layer.safetensors"))
    '; a layer gives examples by attnlearn sample, a model by attnlearn record'
    """
    if ".py:" in path.name:
        return "; a model takes --layers all"
    if path.suffix in (".safetensors", ".pt", ".pth", ".bin", ".ckpt"):
        return "; a layer gives examples by attnlearn sample, a model by attnlearn record"
    return ""
