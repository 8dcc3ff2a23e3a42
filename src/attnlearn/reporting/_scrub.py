"""Take out of a result what names a person or a machine: home folders, user and host names, secrets in addresses.

Names that everyone has (root, localhost) say nothing and stay, because "root" is also a word of mathematics. Folders of
other people's homes are recognised by their shape, since a report may be made on another machine than the run.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

GENERIC = {
    "root",
    "user",
    "admin",
    "localhost",
    "runner",
    "nobody",
    "home",
    "host",
    "test",
    "ubuntu",
    "debian",
}
WORDS = set(
    re.findall(
        r"\w+",
        "attnlearn python schema version outcome remedy certified certificate claims checks claim check code text value "
        "phases phase name seconds evidence stats layer path shapes summary kind heads head maps map theta similarity "
        "attention source inputs tokens data model samples mean norms provenance versions machine date command rows "
        "figures advice routes route holds fails error status unit threshold slack",
    )
)
"""Words that results are made of: a user or host of that name names nobody, and taking it out would break the result."""

SHORTEST = 3
"""Names of fewer letters are part of too many words to be taken out."""

_HOMES = re.compile(r"(?:[A-Za-z]:\\Users\\|/home/|/Users/|/root(?=/|\b))[^/\\\s\"'<>]*")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?<=[?&])([\w-]*(?:key|token|secret|password|auth)[\w-]*)=[^&\s]+", re.I)


def scrub(value: Any) -> Any:
    """The same JSON with nothing in it that names a person or a machine.

    >>> scrub({"path": "/home/ann/run/x.npz", "at": "https://ann:pw@example.org/f?token=1"})
    {'path': '~/run/x.npz', 'at': 'https://example.org/f?token=…'}
    """
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, dict):
        return {scrub_text(str(key)): scrub(entry) for key, entry in value.items()}
    return [scrub(entry) for entry in value] if isinstance(value, list | tuple) else value


def scrub_text(text: str) -> str:
    """One string without names."""
    for home in _own_homes():
        text = text.replace(home, "~")
    text = _QUERY.sub(r"\1=…", _LOGIN.sub("", _HOMES.sub("~", text)))
    for name, instead in _own_names():
        text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w])", instead, text, flags=re.I)
    return text


def command_line(arguments: Sequence[str]) -> str:
    """A command that can be typed again: folders reduced to names, secrets and own names taken out.

    >>> command_line(["recover", "/data/deep/run 1", "--json", "-"])
    "attnlearn recover 'run 1' --json -"
    """
    return "attnlearn " + " ".join(shlex.quote(scrub_text(_short(word))) for word in arguments)


def _short(word: str) -> str:
    """Absolute paths by their last part, also inside `--option=PATH`; of `process:PROGRAM ARGUMENTS` the program alone.

    Arguments of a program may hold secrets, and nobody can tell which.
    """
    program = re.match(r"((?:--[\w-]+=)?process:)(.*)", word, re.S)
    if program:
        words = program[2].split()
        shown = Path(words[0].strip("'\"")).name if words else ""
        return f"{program[1]}{shown}{' …' if len(words) > 1 else ''}"
    if "://" in word:
        return word
    head, colon, rest = word.partition("=" if word.startswith("--") else ":")
    if colon and head.strip("-").isalpha():
        return f"{head}{colon}{' '.join(_short(part) for part in rest.split(' '))}"
    return Path(word).name if os.path.isabs(word) else word


@cache
def _own_homes() -> tuple[str, ...]:
    found = {str(Path.home()), os.environ.get("HOME", ""), os.environ.get("USERPROFILE", "")}
    return tuple(sorted((home for home in found if len(home) > SHORTEST), key=len, reverse=True))


@cache
def _own_names() -> tuple[tuple[str, str], ...]:
    names: list[tuple[str, str]] = []
    with suppress(KeyError, OSError):  # a container without an entry for its user
        names.append((getpass.getuser(), "user"))
    host = socket.gethostname()
    names += [(host, "host"), (host.split(".")[0], "host")]
    return tuple(
        (name, instead)
        for name, instead in names
        if len(name) >= SHORTEST and name.lower() not in GENERIC | WORDS
    )
