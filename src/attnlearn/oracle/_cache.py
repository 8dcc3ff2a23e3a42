"""Answers on disk, so that no query is paid for twice: one SQLite file per oracle, no pickle.

An answer is found by the SHA-256 of the sequence's dtype, shape and bytes. The file is found by the hash of
the oracle's identity and recognised by the answers to fixed probes: when they have changed, the oracle behind
the name is another one, and using its predecessor's answers would be wrong, so that is an error. SQLite makes
every batch atomic and lets several processes share the file. Kept: hashes, shapes, answers, and the probes;
never queries, commands, addresses or secrets.

What can fail: a file that cannot be used is refused before anything is asked, a damaged one in one line. Answers that cannot be
kept (a full disk) are a `CacheWarning`; the run goes on with them.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnlearn._errors import OracleError, one_line, require
from attnlearn._types import Outputs, Tokens
from attnlearn.oracle._calibration import PROBE_SIZE, PROBE_TOKENS


class OracleChanged(OracleError):
    """The oracle answers fixed probes otherwise than when its answers were kept."""


class CacheWarning(UserWarning):
    """Answers could not be kept: the run goes on, and a later one would ask them again.

    >>> issubclass(CacheWarning, UserWarning)
    True
    """


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
            raise self._refusal("cannot use", error) from error
        require(found == [(_SCHEMA,)], "cache", f"must be of the kind {_SCHEMA}", str(self.path))

    def get(self, x: Tokens) -> list[np.ndarray | None]:
        """The known answers (k, d_out), None where there is none."""
        query = "SELECT dtype, tokens, out_dim, answer FROM answer WHERE key = ?"
        try:
            rows = [self._base.execute(query, (sequence_key(sequence),)).fetchone() for sequence in x]
            return [None if row is None else _answer(row, len(s)) for s, row in zip(x, rows, strict=True)]
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            raise self._refusal("damaged, delete", error) from error

    def put(self, x: Tokens, y: Outputs) -> None:
        """Keep the answers `y` to `x`, all or none."""
        rows = [
            (sequence_key(a), b.dtype.str, *b.shape, np.ascontiguousarray(b).tobytes()) for a, b in zip(x, y)
        ]
        try:
            with self._base:
                self._base.executemany("INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            warnings.warn(
                f"answers are not kept in {self.path} ({one_line(str(error), 200)})",
                CacheWarning,
                stacklevel=2,
            )

    def probe_shape(self) -> tuple[int, int, str] | None:
        """Tokens, dimension and dtype of the probe on file."""
        try:
            found = self._base.execute("SELECT tokens, dim, dtype FROM probe").fetchone()
            if found is not None:
                tokens, dim, dtype = found
                plain = isinstance(tokens, int) and isinstance(dim, int) and dtype in ("<f4", "<f8")
                small = plain and 0 < tokens <= PROBE_TOKENS and 0 < dim * tokens <= PROBE_SIZE
                require(small, "probe", f"must have at most {PROBE_TOKENS} tokens", found)
            return found
        except (sqlite3.Error, ValueError) as error:
            raise self._refusal("damaged, delete", error) from error

    def set_probe(self, x: Tokens, y: Outputs, tolerance: float) -> None:
        """Keep how this oracle answers the probe, and by how much that may differ."""
        wide = y.astype(np.float64)
        row: Sequence = (x.shape[1], x.shape[2], x.dtype.str, y.shape[2], wide.tobytes(), tolerance)
        try:  # answers without a probe could be another oracle's, so there is no cache without it
            with self._base:
                self._base.execute("INSERT INTO probe VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise self._refusal("cannot use", error) from error

    def check_probe(self, y: Outputs, label: str) -> None:
        """Refuse an oracle that answers the probe otherwise than before."""
        try:
            found = self._base.execute("SELECT out_dim, answer, tolerance FROM probe").fetchone()
            out_dim, stored, tolerance = found
            before = np.frombuffer(stored, np.float64).reshape(*y.shape[:2], out_dim)
            require(
                0 <= tolerance < np.inf and bool(np.isfinite(before).all()), "probe", "must be finite", found
            )
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise self._refusal("damaged, delete", error) from error
        change = float(np.abs(before - y).max()) if before.shape == y.shape else np.inf
        if not change <= tolerance:
            raise OracleChanged(
                f"the oracle {label} has changed since {self.path} was written: a fixed query moved by "
                f"{change:.3g} (allowed {tolerance:.3g}); delete that file, or give the oracle another name"
            )

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def _refusal(self, what: str, error: Exception) -> ValueError:
        return ValueError(f"cache: {what} {self.path} ({one_line(str(error), 200)})")


def _answer(row: tuple, asked: int) -> np.ndarray:
    """The kept answer to a sequence of `asked` tokens; `ValueError` or `TypeError` unless it can be one."""
    dtype, tokens, out_dim, stored = row
    require(dtype in ("<f4", "<f8"), "dtype", "must be float32 or float64", dtype)
    require(tokens == asked, "tokens", f"must be {asked}", tokens)
    answer = np.frombuffer(stored, dtype).reshape(tokens, out_dim)
    require(answer.size > 0 and bool(np.isfinite(answer).all()), "answer", "must be finite", answer)
    return answer
