"""Oracles named in words, for the command line."""

from __future__ import annotations

import os
import shlex

from attnlearn._errors import describe
from attnlearn._importing import resolve
from attnlearn.oracle._base import Oracle
from attnlearn.oracle._http import HttpSource
from attnlearn.oracle._process import ProcessSource
from attnlearn.oracle._source import LayerSource, Source, as_source

SECRET_VARIABLE = "ATTNLEARN_ORACLE_SECRET"


def parse(spec: str, *, timeout: float | None = None, retries: int | None = None) -> Oracle:
    """`process:PROGRAM ARGUMENTS`, `http://...`, `https://...`, `FILE.py:FUNCTION`, `layer:PATH` or the path of a layer file.

    The words of a program are split as a shell would, but no shell runs. If the environment variable
    ATTNLEARN_ORACLE_SECRET is set, HTTP oracles get it as a bearer token. One call may take `timeout` seconds
    (None: 60 for a process or a server) and is tried again `retries` times (None: 2).

    >>> parse("https://example.org/attention").label
    'https://example.org/attention'
    >>> parse("gopher://example.org")
    Traceback (most recent call last):
    ValueError: oracle: must be process:PROGRAM, http(s)://ADDRESS, FILE.py:FUNCTION or a layer file, got 'gopher://example.org'
    """
    options = {"timeout": timeout, "retries": retries}
    return Oracle.wrap(_source(spec), **options)


def _source(spec: str) -> Source:
    kind, _, rest = spec.partition(":")
    if kind == "process":
        try:
            return ProcessSource(shlex.split(rest))
        except ValueError:  # what was typed may hold a secret, so it is not shown
            rule = "must be process:PROGRAM ARGUMENTS, quoted as for a shell"
            raise ValueError(f"oracle: {rule}, got {len(rest)} characters that are not") from None
    if kind in ("http", "https") and rest.startswith("//"):
        secret = SECRET_VARIABLE if os.environ.get(SECRET_VARIABLE) else None
        return HttpSource(spec, secret_variable=secret)
    if spec.rpartition(":")[0].endswith(".py"):
        return as_source(resolve(spec, "oracle"), f"function {os.path.basename(spec)}")
    path = rest if kind == "layer" and rest else spec
    if not os.path.exists(path) and kind != "layer":
        rule = "must be process:PROGRAM, http(s)://ADDRESS, FILE.py:FUNCTION or a layer file"
        there = "" if "//" in spec else " (no such file)"
        raise ValueError(f"oracle: {rule}, got {describe(spec)}{there}")
    import attnlearn

    return LayerSource(attnlearn.load(path), name=f"layer {os.path.basename(path)}")
