"""Members by name: what a file or a report says of the kind of scores, and the scores again from that and their arrays.

A member that is made around another one names it as its `base`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnlearn._errors import require
from attnlearn.scores._around import Around
from attnlearn.scores._bilinear import Bilinear
from attnlearn.scores._capped import Capped
from attnlearn.scores._normalised import Normalised
from attnlearn.scores._protocol import Held
from attnlearn.scores._relative import Relative
from attnlearn.scores._rotary import Rotary
from attnlearn.scores._rotation import HARDLY
from attnlearn.scores._sinks import Sinks

MEMBERS: dict[str, Any] = {
    kind.KIND: kind for kind in (Bilinear, Rotary, Relative, Normalised, Capped, Sinks)
}
"""Every kind of scores by its name."""


def describe(scores: Held) -> dict[str, Any]:
    """The kind of scores and its fixed numbers, as JSON holds them.

    >>> import numpy as np
    >>> describe(Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2))))
    {'kind': 'bilinear'}
    """
    kind = getattr(scores, "KIND", None)
    require(kind in MEMBERS, "scores", f"must be one of {', '.join(MEMBERS)}", type(scores).__name__)
    found = {"kind": kind, **scores.described()}
    return found | {"base": describe(scores.base)} if isinstance(scores, Around) else found


def array_names(description: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the arrays of the described kind, in order; all have the heads first.

    >>> array_names({"kind": "bilinear"})
    ('theta', 'query_bias')
    """
    kind = _kind(description)
    inside = array_names(description["base"]) if issubclass(kind, Around) else ()
    return (*inside, *kind.names(description))


def build(description: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Scores of the described kind with these arrays: the inverse of `describe` and `arrays`.

    >>> import numpy as np
    >>> build({"kind": "bilinear"}, {"theta": np.zeros((1, 2, 2)), "query_bias": np.zeros((1, 2))}).heads
    1
    """
    kind = _kind(description)
    base = build(description["base"], arrays) if issubclass(kind, Around) else None
    return kind.of(description, arrays, base)


def _kind(description: Mapping[str, Any]) -> Any:
    kind = description.get("kind") if isinstance(description, Mapping) else None
    known = isinstance(kind, str) and kind in MEMBERS
    require(known, "scores", f"must be one of {', '.join(MEMBERS)}", kind)
    return MEMBERS[str(kind)]


def blurred(scores: Held, offsets: Sequence[float]) -> str | None:
    """What these offsets cannot tell apart, for people; None if it is nothing.

    >>> import numpy as np
    >>> from attnlearn.scores._rotation import Rotation
    >>> blurred(Rotary(np.zeros((1, 3, 4)), np.zeros((1, 3, 4)), Rotation((0.01, 0.001))), range(-5, 1))
    'frequencies of 0.01, 0.001 turn by less than 0.1 there, so their parts of Theta are known as a sum'
    """
    while isinstance(scores, Around):
        scores = scores.base
    if not isinstance(scores, Rotary):
        return None
    rotation, reach = scores.rotation, max(abs(offset) for offset in offsets)
    slow = [*rotation.slow(reach), *([0.0] if rotation.still else [])]
    if len(slow) <= 1:
        return None
    numbers = ", ".join(f"{number:.2g}" for number in slow)
    return f"frequencies of {numbers} turn by less than {HARDLY} there, so their parts of Theta are known as a sum"


def words(scores: Held) -> str:
    """The kind in words, for people.

    >>> import numpy as np
    >>> words(Bilinear.whole(np.zeros((1, 2, 2)), np.zeros((1, 2))))
    'no positions'
    """
    return scores.words()
