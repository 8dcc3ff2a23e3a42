"""The error of engines, apart from what raises it."""

from __future__ import annotations

from attnlearn._errors import AttnlearnError


class EngineError(AttnlearnError):
    """The workers failed, not the work: processes were killed, or the cluster cannot be reached.

    >>> issubclass(EngineError, AttnlearnError)
    True
    """
