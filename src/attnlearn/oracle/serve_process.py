"""Serve a layer over standard input and output: `python -m attnlearn.oracle.serve_process LAYER`.

For `attnlearn extract --oracle "process:python -m attnlearn.oracle.serve_process LAYER" --dim D`. Ends when its input
ends. What it answers and refuses is the same as for `attnlearn.oracle.serve_http`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import BinaryIO

from attnlearn._errors import OracleError
from attnlearn.oracle import _frames, _serve


def serve(hidden: _serve.Hidden, source: BinaryIO, sink: BinaryIO) -> None:
    """Greet, then answer query after query until `source` ends.

    >>> import io
    >>> from attnlearn import AttentionLayer
    >>> sink = io.BytesIO()
    >>> serve(_serve.Hidden(AttentionLayer.random(2, 4)), io.BytesIO(b""), sink)
    >>> _frames.unpack(sink.getvalue())[0]["dim"]
    4
    """

    def receive(size: int) -> bytes:
        data = source.read(size)
        if len(data) < size:
            raise EOFError
        return data

    sink.write(_frames.pack(hidden.hello))
    sink.flush()
    while True:
        try:
            header, x = _frames.read(receive)
        except EOFError:
            return
        except OracleError as error:
            # The rest of the stream cannot be told apart any more: say why, and end.
            sink.write(_serve.refusal(str(error)))
            sink.flush()
            return
        sink.write(hidden.reply(header, x))
        sink.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv` and serve."""
    hidden = _serve.hidden(_serve.parser((__doc__ or "").split(":")[0]).parse_args(argv))
    # Whatever prints from now on must not get into the frames.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(hidden, sys.stdin.buffer, sink)
    except BrokenPipeError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_serve.run(main, None))
