"""Answers on disk, so that no query is paid for twice: one SQLite file per oracle, no pickle.

An answer is found by the SHA-256 of the sequence's dtype, shape and bytes. The file is found by the hash of
the oracle's identity and recognised by the answers to fixed probes: when they have changed, the oracle behind
the name is another one, and using its predecessor's answers would be wrong, so that is an error. SQLite makes
every batch atomic and lets several processes share the file. Kept: hashes, shapes, answers, and the probes;
never queries, commands, addresses or secrets.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnlearn._errors import OracleError, require
from attnlearn._types import Outputs, Tokens


class OracleChanged(OracleError):
    """The oracle answers fixed probes otherwise than when its answers were kept."""


_SCHEMA = "attnlearn-oracle-cache-1"
_TABLES = """
CREATE TABLE IF NOT EXISTS about (schema TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS probe (tokens INT, dim INT, dtype TEXT, out_dim INT, answer BLOB, tolerance REAL);
CREATE TABLE IF NOT EXISTS answer (key BLOB PRIMARY KEY, dtype TEXT, tokens INT, out_dim INT, answer BLOB);
"""


def sequence_key(sequence: np.ndarray) -> bytes:
    """The name of one sequence (k, d) in the cache.

    >>> len(sequence_key(np.zeros((2, 3))))
    32
    """
    head = f"{sequence.dtype.str}{sequence.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(sequence).tobytes()).digest()


class Cache:
    """The answers of the oracle called `identity`, in a file inside `folder`.

    >>> import tempfile
    >>> cache = Cache(tempfile.mkdtemp(), "callable:f")
    >>> x = np.ones((1, 2, 3))
    >>> cache.put(x, 2 * x)
    >>> cache.get(x)[0].tolist()
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    >>> cache.close()
    """

    def __init__(self, folder: str | os.PathLike[str], identity: str) -> None:
        require(not Path(folder).is_file(), "cache", "must be a folder", str(folder))
        name = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self.path = Path(folder) / f"{name}.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.path, timeout=30.0)
            with self._base:
                self._base.executescript(_TABLES)
                self._base.execute("INSERT OR IGNORE INTO about VALUES (?)", (_SCHEMA,))
                found = self._base.execute("SELECT schema FROM about").fetchall()
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"cache: cannot use {self.path} ({error})") from error
        require(found == [(_SCHEMA,)], "cache", f"must be of the kind {_SCHEMA}", str(self.path))

    def get(self, x: Tokens) -> list[np.ndarray | None]:
        """The known answers (k, d_out), None where there is none."""
        answers: list[np.ndarray | None] = []
        for sequence in x:
            query = "SELECT dtype, tokens, out_dim, answer FROM answer WHERE key = ?"
            row = self._base.execute(query, (sequence_key(sequence),)).fetchone()
            answers.append(None if row is None else np.frombuffer(row[3], row[0]).reshape(row[1], row[2]))
        return answers

    def put(self, x: Tokens, y: Outputs) -> None:
        """Keep the answers `y` to `x`, all or none."""
        rows = [
            (sequence_key(a), b.dtype.str, *b.shape, np.ascontiguousarray(b).tobytes()) for a, b in zip(x, y)
        ]
        with self._base:
            self._base.executemany("INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?, ?)", rows)

    def probe_shape(self) -> tuple[int, int, str] | None:
        """Tokens, dimension and dtype of the probe on file."""
        return self._base.execute("SELECT tokens, dim, dtype FROM probe").fetchone()

    def set_probe(self, x: Tokens, y: Outputs, tolerance: float) -> None:
        """Keep how this oracle answers the probe, and by how much that may differ."""
        wide = y.astype(np.float64)
        row: Sequence = (x.shape[1], x.shape[2], x.dtype.str, y.shape[2], wide.tobytes(), tolerance)
        with self._base:
            self._base.execute("INSERT INTO probe VALUES (?, ?, ?, ?, ?, ?)", row)

    def check_probe(self, y: Outputs, label: str) -> None:
        """Refuse an oracle that answers the probe otherwise than before."""
        out_dim, stored, tolerance = self._base.execute(
            "SELECT out_dim, answer, tolerance FROM probe"
        ).fetchone()
        before = np.frombuffer(stored, np.float64).reshape(*y.shape[:2], out_dim)
        change = float(np.abs(before - y).max()) if before.shape == y.shape else np.inf
        if not change <= tolerance:
            raise OracleChanged(
                f"the oracle {label} has changed since {self.path} was written: a fixed query moved by "
                f"{change:.3g} (allowed {tolerance:.3g}); delete that file, or give the oracle another name"
            )

    def close(self) -> None:
        """Close the file."""
        self._base.close()
