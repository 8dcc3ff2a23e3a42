"""The trained classifier: immutable weights with predictions, attention patterns and a file format.

File: one safetensors file with `u` (H, positions, d) and `w` (H, d, d); metadata name the format, its version
and the read-out position. Predictions are computed in chunks, in the dtype of the weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from attnlearn._attention import softmax
from attnlearn._errors import require
from attnlearn._files import read_tensors, write_tensors
from attnlearn._maps import head_maps
from attnlearn._precision import precision, require_finite, to_numpy
from attnlearn._types import ArrayLike
from attnlearn._version import __version__
from attnlearn.training._model import AttentionModel, Model, Weights, equal_scales
from attnlearn.training._readout import ReadoutModel

FORMAT, VERSION = "attnlearn/classifier", "1"


@dataclass(frozen=True, eq=False)
class TrainedClassifier:
    """Phi(X) = (1/sqrt H) sum_h <U_h, softmax(X W_h X^T) X>; the predicted label is its sign.

    >>> model = TrainedClassifier(np.ones((1, 2, 3)), np.zeros((1, 3, 3)))
    >>> model.predict(np.ones((1, 2, 3))).tolist()
    [1.0]
    """

    kind: ClassVar[str] = "classifier"
    u: Float[np.ndarray, "h p d"]
    w: Float[np.ndarray, "h d d"]
    model: Model = field(default_factory=AttentionModel)
    tokens: int = 0

    def __post_init__(self) -> None:
        dtype = np.result_type(self.u, self.w)
        for name in ("u", "w"):
            array = np.array(getattr(self, name), dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        dim = self.u.shape[-1]
        fit = self.u.ndim == 3 and self.u.shape[0] >= 1 and self.w.shape == (self.u.shape[0], dim, dim)
        require(
            fit, "w", "must have shape (H, d, d) where u has (H, positions, d)", (self.u.shape, self.w.shape)
        )
        object.__setattr__(self, "tokens", self.tokens or self.u.shape[1])

    @property
    def num_heads(self) -> int:
        """H."""
        return self.u.shape[0]

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.u.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """float32 or float64."""
        return self.u.dtype

    @property
    def weights(self) -> Weights:
        """(u, w) as the compiled functions take them."""
        return Weights(self.u, self.w)

    def decision(self, x: ArrayLike) -> Float[np.ndarray, "n"]:
        """Phi of every sequence.

        >>> TrainedClassifier(np.ones((1, 2, 3)), np.zeros((1, 3, 3))).decision(np.ones((1, 2, 3)))
        array([6.])
        """
        from attnlearn.training._loss import cut

        x = self._tokens(x)
        weights = Weights(self.u.astype(x.dtype), self.w.astype(x.dtype))
        with precision(x.dtype):
            chunks = cut(x, np.ones(len(x), x.dtype), self.num_heads)
            phi = _values(self.model)(weights, equal_scales(self.num_heads, x.dtype), chunks.x)
            return np.asarray(phi).reshape(-1)[: len(x)]

    def predict(self, x: ArrayLike) -> Float[np.ndarray, "n"]:
        """Labels -1 and +1 (0 counts as +1)."""
        return np.where(self.decision(x) >= 0, 1.0, -1.0).astype(self.dtype)

    def patterns(self, x: ArrayLike) -> Float[np.ndarray, "n h p k"]:
        """Attention of every head: rows are read-out positions, columns tokens, each row sums to 1.

        >>> TrainedClassifier(np.ones((1, 2, 3)), np.zeros((1, 3, 3))).patterns(np.ones((1, 2, 3))).shape
        (1, 1, 2, 2)
        """
        x = self._tokens(x)
        queries = self.model.queries(x)
        return softmax(np.einsum("npd,hde,nke->nhpk", queries, self.w, x, optimize=True))

    def _tokens(self, x: ArrayLike) -> Float[np.ndarray, "n k d"]:
        x = to_numpy(x, "x")
        shape = (self.tokens, self.dim)
        require(
            x.ndim == 3 and x.shape[1:] == shape,
            "x",
            f"must have shape (n, {shape[0]}, {shape[1]}) as fitted",
            x,
        )
        require(len(x) > 0, "x", "must have at least one sequence", len(x))
        require_finite(x, "x")
        return x.astype(np.result_type(x, self.u), copy=False)

    def save(self, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None) -> None:
        """Write one safetensors file, atomically; `provenance` goes into its metadata.

        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> TrainedClassifier(np.ones((1, 2, 3)), np.zeros((1, 3, 3))).save(path)
        >>> TrainedClassifier.load(path)
        TrainedClassifier(num_heads=1, tokens=2, dim=3, float64)
        """
        position = self.model.position if isinstance(self.model, ReadoutModel) else None
        known = type(self.model) in (AttentionModel, ReadoutModel)
        require(known, "model", "must be one of the package's own to be saved", type(self.model).__name__)
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "tokens": str(self.tokens),
            "position": json.dumps(position),
            "provenance": json.dumps({"attnlearn": __version__, **(provenance or {})}),
        }
        write_tensors(path, {"u": self.u, "w": self.w}, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainedClassifier:
        """Read what `save` wrote."""
        tensors, metadata = read_tensors(path)
        right = metadata.get("format") == FORMAT and metadata.get("version") == VERSION
        require(
            right and {"u", "w"} <= set(tensors), "path", "must be a classifier saved by attnlearn", str(path)
        )
        position = json.loads(metadata["position"])
        model = AttentionModel() if position is None else ReadoutModel(position)
        return cls(tensors["u"], tensors["w"], model, int(metadata["tokens"]))

    def summary_json(self) -> dict[str, Any]:
        """What a result's JSON says of the model."""
        norms = {
            "u": np.linalg.norm(self.u.astype(float), axis=(1, 2)).tolist(),
            "w": np.linalg.norm(self.w.astype(float), axis=(1, 2)).tolist(),
        }
        return {
            "shapes": {"u": list(self.u.shape), "w": list(self.w.shape)},
            "summary": {
                "kind": self.kind,
                "dtype": str(self.dtype),
                "norms": norms,
                "maps": head_maps(theta=self.w, w=self.u),  # scores and read-out, under a layer's names
            },
        }

    def __repr__(self) -> str:
        return f"TrainedClassifier(num_heads={self.num_heads}, tokens={self.tokens}, dim={self.dim}, {self.dtype})"


@cache
def _values(model: Model) -> Any:
    """The compiled values of a model; kept, because a new jit would compile at every call."""
    from attnlearn._jax import jax
    from attnlearn.training._loss import values

    return jax.jit(lambda weights, scales, x: values(model, weights, scales, x))
