"""The oracle: one wrapper around whatever answers, so that every query is counted and every answer checked.

For each call: tokens that would be rounded on the way are refused, answers on disk are used, the rest is
asked in batches with bounded time and retries, and what comes back must have the right shape and be finite.
Cost: one pass over queries and answers. What can fail: `OracleError` (dead, slow, wrong shape, NaN, changed
since its cache was written), `BudgetSpent`, and `ValueError` for tokens that are no query.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._precision import require_finite, to_numpy
from attnlearn._types import ArrayLike, Outputs, Tokens
from attnlearn.oracle import _calibration as calibration
from attnlearn.oracle._answers import BudgetSpent, Counts, checked_answer
from attnlearn.oracle._cache import Cache
from attnlearn.oracle._noise import Noise, fixed_tokens, measure
from attnlearn.oracle._patience import patiently, require_timeout, within
from attnlearn.oracle._source import Source, as_source
from attnlearn.oracle._words import plain


class Oracle:
    """Tokens (n, k, d) in, outputs (n, k, d_out) out, counted, checked, cached, retried.

    `batch_size` sequences go into one call, each of at most `timeout` seconds (None: as long as it takes;
    inside this process a timeout moves the call to another thread). `budget` is the most sequences that may
    be asked. `cache` is a folder for the answers; `name` tells oracles apart in it.

    >>> from attnlearn import AttentionLayer
    >>> oracle = Oracle.wrap(AttentionLayer.random(num_heads=2, dim=4), budget=10)
    >>> oracle(np.ones((5, 3, 4)), rows=[0]).shape
    (5, 1, 4)
    >>> oracle.counts
    Counts(sequences=5, tokens=15, scalars=20, cached=0, retried=0)
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int = calibration.BATCH_SIZE,
        budget: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        retries: int = calibration.RETRIES,
        timeout: float | None = None,
        counts: Counts | None = None,
    ) -> None:
        require(batch_size >= 1, "batch_size", "must be at least 1", batch_size)
        require(budget is None or budget >= 0, "budget", "must not be negative", budget)
        require(retries >= 0, "retries", "must not be negative", retries)
        require_timeout(timeout)
        if timeout is not None and source.limit_time(timeout):
            timeout = None
        self._source = source
        self._options = {"batch_size": batch_size, "budget": budget, "retries": retries, "timeout": timeout}
        self._counts = counts if counts is not None else Counts()
        self._limit = None if budget is None else self._counts.sequences + budget
        self._out_dim: int | None = None
        self._open = False
        self._folder = cache
        self._cache: Cache | None = None

    @classmethod
    def wrap(cls, thing: Any, *, name: str | None = None, **options: Any) -> Oracle:
        """An `Oracle` around a callable, a layer, a torch module, a source or a text for `parse`.

        An `Oracle` is returned as it is, or with other `options` on the same source and the same counts.

        >>> oracle = Oracle.wrap(np.tanh)
        >>> Oracle.wrap(oracle) is oracle
        True
        """
        options = {key: value for key, value in options.items() if value is not None}
        if isinstance(thing, Oracle):
            if not options:
                return thing
            merged = {**thing._options, "cache": thing._folder, "budget": None, **options}
            return cls(thing._source, counts=thing._counts, **merged)
        if isinstance(thing, str):
            from attnlearn.oracle._parse import parse

            return cls.wrap(parse(thing), **options)
        return cls(as_source(thing, name), **options)

    @property
    def counts(self) -> Counts:
        """A copy of the counts so far."""
        return dataclasses.replace(self._counts)

    @property
    def label(self) -> str:
        """What the oracle is, in words without secrets."""
        return self._source.label

    @property
    def dim(self) -> int | None:
        """Token dimension, None if the oracle does not say."""
        return self._opened().dim

    @property
    def out_dim(self) -> int | None:
        """Output dimension, None until the oracle says or answers."""
        self._opened()
        return self._out_dim

    @property
    def remaining(self) -> int | None:
        """Sequences left in the budget, None without one."""
        return None if self._limit is None else max(0, self._limit - self._counts.sequences)

    def accepted(self, x: ArrayLike) -> Tokens:
        """The nearest tokens that reach the oracle unrounded, in the dtype of `x`.

        >>> from attnlearn import AttentionLayer
        >>> layer = AttentionLayer.random(2, 4).astype(np.float32)
        >>> x = Oracle.wrap(layer).accepted(np.full((1, 2, 4), 0.1))
        >>> float(x[0, 0, 0]) == float(np.float32(0.1))
        True
        """
        return self._opened().accepted(to_numpy(x, "x"))

    def __call__(self, x: ArrayLike, *, rows: Sequence[int] | None = None) -> Outputs:
        """Outputs (n, k, d_out) in the dtype of `x`; of these only `rows` when given, and only those counted.

        With a cache all rows count, since all are kept.
        """
        tokens = self._tokens(x)
        index = slice(None) if rows is None else list(rows)
        answers, asked = self._answers(tokens)
        taken = answers[:, index].astype(tokens.dtype)
        per_sequence = answers[0].size if self._cache is not None else taken[0].size
        self._counts.scalars += asked * per_sequence
        return taken

    def fresh(self, x: ArrayLike) -> Outputs:
        """Outputs in the dtype of `x`, asked now: no answer comes from the cache."""
        tokens = self._tokens(x)
        return self._ask_everything(tokens).astype(tokens.dtype)

    @property
    def identity(self) -> str:
        """What the source says it is: weights of a layer, an address, a program; without secrets."""
        return self._source.identity

    def recognise(self, folder: str | os.PathLike[str], dim: int) -> None:
        """Keep the answers to fixed probes in `folder`, or refuse an oracle that answers them otherwise than before."""
        cache = Cache(folder, self.identity)
        try:
            self._recognise(cache, np.zeros((1, calibration.NOISE_TOKENS, dim)))
        finally:
            cache.close()

    def noise(self, dim: int | None = None, *, tokens: int = calibration.NOISE_TOKENS) -> Noise:
        """Ask a few fixed sequences repeatedly, past the cache, and measure spread and rounding.

        >>> from attnlearn import AttentionLayer
        >>> noise = Oracle.wrap(AttentionLayer.random(2, 4).astype(np.float32)).noise()
        >>> noise.rounding, noise.sigma < 1e-6
        ('float32', True)
        """
        dim = self.dim if dim is None else dim
        if dim is None:
            raise ValueError("dim: must be given for an oracle that does not say its dimension, got None")
        x = fixed_tokens(calibration.NOISE_SEQUENCES, tokens, dim, np.dtype(np.float64))
        return measure(self._ask_everything, self._tokens(x), calibration.NOISE_REPEATS)

    def close(self) -> None:
        """End the oracle's process or connection and close the cache."""
        self._source.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Oracle({self.label}, {self._counts.sequences} sequences asked)"

    def _opened(self) -> Source:
        if not self._open:
            patiently(self._source.open, self._options["retries"], lambda: None, self._clean)
            self._out_dim = self._source.out_dim
            self._open = True
        return self._source

    def _tokens(self, x: ArrayLike) -> Tokens:
        tokens = to_numpy(x, "x")
        rule = f"must have shape (n, tokens, {'dim' if self.dim is None else self.dim})"
        right = tokens.ndim == 3 and min(tokens.shape) >= 1 and self.dim in (None, tokens.shape[2])
        require(right, "x", rule, tokens)
        require_finite(tokens, "x")
        whole = np.array_equal(self._opened().accepted(tokens), tokens)
        require(whole, "x", f"would be rounded by {self.label}: ask oracle.accepted(x)", str(tokens.dtype))
        return tokens

    def _answers(self, x: Tokens) -> tuple[Outputs, int]:
        cache = self._open_cache(x)
        if cache is None:
            return self._ask(x), len(x)
        found = cache.get(x)
        missing = [index for index, answer in enumerate(found) if answer is None]
        self._counts.cached += len(x) - len(missing)
        if missing:
            for index, answer in zip(missing, self._ask(x[missing]), strict=True):
                found[index] = answer
        answers = [answer for answer in found if answer is not None]
        widths = {answer.shape[1] for answer in answers} | ({self._out_dim} - {None})
        require(len(widths) == 1, "cache", f"must hold answers of one dimension, delete {cache.path}", widths)
        return np.stack(answers), len(missing)

    def _open_cache(self, x: Tokens) -> Cache | None:
        if self._folder is None or self._cache is not None:
            return self._cache
        cache = Cache(self._folder, self._source.identity)
        try:
            self._recognise(cache, x)
        except BaseException:
            cache.close()
            raise
        self._cache = cache
        return cache

    def _recognise(self, cache: Cache, x: Tokens) -> None:
        tokens, dim, dtype = cache.probe_shape() or (x.shape[1], x.shape[2], x.dtype.str)
        probe = fixed_tokens(calibration.PROBE_SEQUENCES, tokens, dim, np.dtype(dtype))
        if cache.probe_shape() is not None:
            cache.check_probe(self._ask_everything(probe), self.label)
            return
        noise = measure(self._ask_everything, probe, repeats=1)
        tolerance = calibration.PROBE_NOISE_FACTOR * noise.sigma + calibration.PROBE_STEP_FACTOR * noise.step
        cache.set_probe(probe, self._ask_everything(probe), tolerance)

    def _ask_everything(self, x: Tokens) -> Outputs:
        answers = self._ask(x)
        self._counts.scalars += answers.size
        return answers

    def _ask(self, x: Tokens) -> Outputs:
        if self.remaining is not None and len(x) > self.remaining:
            raise BudgetSpent(f"{len(x)} more sequences asked, {self.remaining} left in the budget")
        size = self._options["batch_size"]
        return np.concatenate([self._ask_batch(x[start : start + size]) for start in range(0, len(x), size)])

    def _ask_batch(self, x: Tokens) -> Outputs:
        def ask() -> Any:
            timeout = self._options["timeout"]
            # In its own thread JAX would forget the caller's x64 mode, so only where a timeout is wanted.
            return self._source.ask(x) if timeout is None else within(timeout, lambda: self._source.ask(x))

        def retried() -> None:
            self._counts.retried += len(x)

        found = patiently(ask, self._options["retries"], retried, self._clean)
        answer = checked_answer(found, x, self._out_dim)
        self._out_dim = answer.shape[2]
        self._counts.sequences += len(x)
        self._counts.tokens += x.shape[0] * x.shape[1]
        if self._cache is not None:
            self._cache.put(x, answer)
        return answer

    def _clean(self, text: str) -> str:
        secrets = getattr(self._source, "secrets", tuple)
        return plain(text, secrets())
