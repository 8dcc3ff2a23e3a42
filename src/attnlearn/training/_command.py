"""What `attnlearn train` does: arrays from a file, a run, a model file. Plain paths and numbers in and out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from attnlearn._errors import require
from attnlearn._files import existing_file
from attnlearn._result import Solution
from attnlearn.data._npz import read_npz
from attnlearn.training._fit import fit


def load_examples(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays `x`, `y` and optionally `x_test`, `y_test` of an .npz file; nothing is unpickled.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "examples.npz"
    >>> np.savez(path, x=np.zeros((2, 3, 4)), y=np.array([1.0, -1.0]))
    >>> sorted(load_examples(path))
    ['x', 'y']
    """
    arrays = read_npz(existing_file(path), ("x", "y"), ("x_test", "y_test"))
    paired = ("x_test" in arrays) == ("y_test" in arrays)
    require(paired, "path", "must hold both x_test and y_test", sorted(arrays))
    return arrays


def train_file(
    path: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    num_heads: int = 8,
    **settings: Any,
) -> Solution:
    """Train on the examples of an .npz file and save the classifier; `settings` are those of `fit`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from attnlearn.data import TokenizedMixture
    >>> folder = Path(tempfile.mkdtemp())
    >>> x, y = TokenizedMixture(tokens=3, dim=5).sample(12, seed=0)
    >>> np.savez(folder / "examples.npz", x=x, y=y)
    >>> solution = train_file(folder / "examples.npz", output=folder / "model.safetensors", num_heads=2, max_steps=20)
    >>> solution.outcome.name, (folder / "model.safetensors").exists()
    ('TRAINED', True)
    """
    arrays = load_examples(path)
    test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    settings.setdefault("raise_on_failure", False)
    solution = fit(arrays["x"], arrays["y"], num_heads=num_heads, test=test, **settings)
    if output is not None and solution.layer is not None:
        solution.layer.save(output)
    return solution
