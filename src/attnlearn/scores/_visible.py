"""Which keys a query sees: all, none after itself, those near it, a common prefix.

| mask | seen |
|---|---|
| causal | keys at or before the query |
| window w | keys fewer than w places away (causal: the last w, with itself) |
| prefix p | under a causal mask also the first p keys, for every query |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attnlearn._errors import require


class Visible(NamedTuple):
    """A mask by place. It counts as true when it is causal, so it can stand where a plain flag `causal` did.

    >>> Visible(causal=True, window=2).hidden(3).astype(int).tolist()
    [[0, 1, 1], [0, 0, 1], [1, 0, 0]]
    >>> bool(Visible(window=2)), Visible().hidden(3) is None
    (False, True)
    """

    causal: bool = False
    window: int | None = None
    prefix: int = 0

    def __bool__(self) -> bool:
        return self.causal

    def hidden(self, k: int) -> np.ndarray | None:
        """True (query, key) where a query of k tokens does not see a key; None when it sees all."""
        if not self.causal and self.window is None:
            return None
        query, key = np.arange(k)[:, None], np.arange(k)[None, :]
        later = (key > query) & (key >= self.prefix) if self.causal else np.zeros((k, k), bool)
        return later if self.window is None else later | (np.abs(query - key) >= self.window)

    def offsets(self, k: int) -> list[int]:
        """Offsets (key minus query) that queries of k tokens see.

        >>> Visible(causal=True, window=2).offsets(5)
        [-1, 0]
        """
        hidden = self.hidden(k)
        seen = np.ones((k, k), bool) if hidden is None else ~hidden
        return [offset for offset in range(1 - k, k) if np.diagonal(seen, offset).any()]

    def most_keys(self, k: int) -> int:
        """Keys that the query which sees most sees.

        >>> Visible(causal=True, window=2).most_keys(5)
        2
        """
        hidden = self.hidden(k)
        return k if hidden is None else int((~hidden).sum(axis=1).max())


def value_directions(heads: int, tokens: float, causal: bool | Visible) -> float:
    """Output directions in which a row can change with the scores: differences of values, on average over the queries.

    >>> value_directions(2, 5, False), value_directions(2, 5, True)
    (8, 4.0)
    """
    seen = (tokens - 1) / 2 if causal else tokens - 1  # keys beside the first
    return max(1.0, heads * seen)


def as_visible(causal: Any, window: int | None = None, prefix: int = 0) -> Visible:
    """A mask from a flag and sizes, or the mask itself.

    >>> as_visible(True)
    Visible(causal=True, window=None, prefix=0)
    """
    if isinstance(causal, Visible):
        require(window is None and prefix == 0, "window", "must not be given beside a mask", window)
        causal, window, prefix = causal
    require(isinstance(causal, (bool, np.bool_)), "causal", "must be True or False", causal)
    whole = window is None or (isinstance(window, (int, np.integer)) and not isinstance(window, bool))
    require(whole and (window is None or window >= 1), "window", "must be None or an integer >= 1", window)
    good = isinstance(prefix, (int, np.integer)) and prefix >= 0 and (prefix == 0 or bool(causal))
    require(good, "prefix", "must be an integer >= 0, and 0 unless causal", prefix)
    return Visible(bool(causal), None if window is None else int(window), int(prefix))
