"""What the example servers share: a layer that answers frames and keeps its weights to itself.

One query may have at most `Hidden.longest` tokens in a sequence, because the scores of a sequence grow with its square;
sequences are computed a few at a time, and queries one after the other. Whatever else is wrong with a query is answered
with an error frame: nothing that a client sends may end the server or print a traceback.
"""

from __future__ import annotations

import argparse
import math
import threading
from collections.abc import Sequence

import numpy as np

from attnlearn._errors import OracleError
from attnlearn._layer import AttentionLayer
from attnlearn.oracle import _frames
from attnlearn.oracle._calibration import MAX_BODY_BYTES, SERVE_SCORE_BYTES, SERVE_TOKENS


def rounded(y: np.ndarray, how: str) -> np.ndarray:
    """`y` as `how` would send it: "none", "float16", "bfloat16" or a number of decimals.

    >>> rounded(np.array([0.123456]), "2").tolist()
    [0.12]
    """
    if how == "none":
        return y
    if how == "float16":
        return y.astype(np.float16).astype(y.dtype)
    if how == "bfloat16":
        import ml_dtypes

        return y.astype(ml_dtypes.bfloat16).astype(y.dtype)
    return np.round(y, int(how))


class Hidden:
    """A layer that can be asked but not read.

    >>> hidden = Hidden(AttentionLayer.random(2, 4))
    >>> frame = hidden.reply({"kind": "query"}, np.ones((1, 2, 4)))
    >>> _frames.answer_of(_frames.unpack(frame)).shape
    (1, 2, 4)
    """

    def __init__(self, layer: AttentionLayer, how: str = "none") -> None:
        self._layer, self._how = layer, how
        self._one_at_a_time = threading.Lock()
        scores = math.isqrt(SERVE_SCORE_BYTES // (layer.num_heads * layer.dtype.itemsize))
        self.longest = min(SERVE_TOKENS, scores)

    @property
    def hello(self) -> dict[str, object]:
        """What an asker may know."""
        layer = self._layer
        sizes = {"dim": layer.dim, "out_dim": layer.out_dim, "dtype": layer.dtype.name}
        return {"kind": "hello", "protocol": _frames.PROTOCOL, **sizes}

    def reply(self, header: dict[str, object], x: np.ndarray | None) -> bytes:
        """The answer frame to a query, or an error frame."""
        number = header.get("number")
        repeated = {"number": number} if type(number) is int else {}
        try:
            if header.get("kind") != "query" or x is None:
                raise ValueError("expected a query")
            return _frames.pack({"kind": "answer", **repeated}, self._outputs(x))
        except ValueError as error:
            return refusal(str(error), **repeated)
        except Exception as error:
            return refusal(f"the server failed ({type(error).__name__})", **repeated)

    def _outputs(self, x: np.ndarray) -> np.ndarray:
        layer, (n, k, _) = self._layer, x.shape
        if k > self.longest:
            raise ValueError(f"a sequence of {k} tokens is too long: at most {self.longest}")
        if n * k * layer.out_dim * layer.dtype.itemsize > MAX_BODY_BYTES:
            raise ValueError("the answer would be too large")
        with self._one_at_a_time, np.errstate(all="ignore"):
            return rounded(layer(x.astype(layer.dtype)), self._how)


def refusal(message: str, **header: object) -> bytes:
    """An error frame."""
    return _frames.pack({"kind": "error", **header, "message": message})


def read_query(data: bytes) -> tuple[dict[str, object], np.ndarray | None]:
    """The frame in a request body; what is no frame becomes a header that `reply` refuses."""
    try:
        return _frames.unpack(data)
    except OracleError:
        return {"kind": "damaged"}, None


def parser(description: str) -> argparse.ArgumentParser:
    """The options that both servers take."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("layer", help="a layer file; whoever asks sees its answers only")
    arguments.add_argument(
        "--dtype", choices=sorted(_frames.DTYPES), help="compute in this dtype (the file's)"
    )
    arguments.add_argument("--round", default="none", help="none, float16, bfloat16 or a number of decimals")
    return arguments


def hidden(options: argparse.Namespace) -> Hidden:
    """The server's layer, as the options say."""
    layer = _load(options.layer)
    how = options.round
    if how not in ("none", "float16", "bfloat16") and not how.isdigit():
        raise ValueError(f"round: must be none, float16, bfloat16 or a number of decimals, got {how!r}")
    return Hidden(layer if options.dtype is None else layer.astype(options.dtype), how)


def _load(path: str) -> AttentionLayer:
    import attnlearn

    return attnlearn.load(path)


def run(main, argv: Sequence[str] | None) -> int:
    """`main(argv)`, with bad input as one line and exit code 2."""
    import sys

    try:
        return main(argv)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
