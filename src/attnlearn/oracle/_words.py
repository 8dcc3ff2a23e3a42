"""Words of a stranger, fit to be shown: one line, no control characters, no secrets, bounded length.

What a server or a program says reaches the screen, the JSON and the report. It could move a terminal's cursor, turn
the direction of writing, or repeat the token that it was sent. A secret is recognised as it is, percent-encoded and in
Base64; a server that hides it otherwise is not caught.
"""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote

from attnlearn.oracle._calibration import LONGEST_MESSAGE

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")


def plain(text: str, secrets: Iterable[str] = (), limit: int = LONGEST_MESSAGE) -> str:
    """`text` on one line, without control characters and `secrets`, in at most `limit` characters.

    >>> plain("bad \\x1b[31mtoken\\x1b[0m\\n\\u202eabc", ["abc"])
    'bad token …'
    """
    line = " ".join(_ESCAPES.sub("", text).split())
    line = "".join(letter for letter in line if unicodedata.category(letter)[0] != "C")
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("=")):
            line = re.sub(re.escape(form), "…", line, flags=re.I)
    return line if len(line) <= limit else line[: limit - 1] + "…"
