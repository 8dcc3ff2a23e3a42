"""Words of a stranger, fit to be shown: one line, no control characters, no secrets, bounded length.

What a server or a program says reaches the screen, the JSON and the report. It could move a terminal's cursor, turn
the direction of writing, or repeat the token that it was sent. A secret is recognised as it is, percent-encoded and in
Base64; a server that hides it otherwise is not caught.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from urllib.parse import quote

from attnlearn._errors import one_line
from attnlearn.oracle._calibration import LONGEST_MESSAGE


def plain(text: str, secrets: Iterable[str] = (), limit: int = LONGEST_MESSAGE) -> str:
    """`text` on one line, without control characters and `secrets`, in at most `limit` characters.

    >>> plain("bad \\x1b[31mtoken\\x1b[0m\\n\\u202eabc", ["abc"])
    'bad token …'
    """
    line = one_line(text, len(text) + 1)
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")):
            line = re.sub(re.escape(form), "…", line, flags=re.I)
    return line if len(line) <= limit else line[: limit - 1] + "…"
