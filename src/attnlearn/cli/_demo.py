"""`attnlearn demo`: the main job, on a random layer or one of your own, from examples alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnlearn.cli._console import Console, Quiet
from attnlearn.cli._long import Long, solved


def demo(
    folder: Path = Path("demo"),
    /,
    *,
    layer: Path | None = None,
    quiet: Quiet = False,
) -> int:
    """Recover a layer from examples alone and write its report: a first look, in seconds.

    Parameters
    ----------
    folder
        Where to write the layer, the result and the report.
    layer
        A layer of your own (safetensors, any known layout) in place of the random one.
    """
    import attnlearn
    from attnlearn.cli._long import _code
    from attnlearn.data import Gaussian

    console, options = Console(quiet=quiet), Long(quiet=quiet)
    truth, about, tokens, num = _random() if layer is None else _given(layer)
    _make(folder)
    console.text(
        f"{about} Its weights are hidden: recover sees {num:,} random inputs and the layer's outputs."
    )
    x = Gaussian(tokens, truth.dim).sample(num, seed=1)
    solution = solved(attnlearn.recover, x, truth(x), progress=options.progress, raise_on_failure=False)
    console.text()
    console.solution(solution)
    if solution.layer is not None:
        _compared(console, solution, truth)
        solution.layer.save(folder / "layer.safetensors")
        solution.save_json(folder / "result.json", folder / "layer.safetensors")
    known = None if solution.layer is None else truth
    page = attnlearn.report(solution, folder / "report.html", truth=known).resolve()
    console.text(f"wrote    {folder / 'layer.safetensors'}, {folder / 'result.json'}")
    console.text(f"\nOpen the report in a browser:\n{page.as_uri()}")
    console.text("Then try your own: attnlearn recover DATA --report report.html, or attnlearn record --help")
    return _code(solution)


def _make(folder: Path) -> None:
    """The folder for everything, before any work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "a file has that name" if folder.is_file() else error.strerror
        raise ValueError(f"folder: must be a folder to write into, got {folder} ({why})") from error


def _given(path: Path) -> tuple[Any, str, int, int]:
    """A layer from a file, what it is, tokens of a sequence and sequences."""
    import numpy as np

    from attnlearn import load

    layer = load(path, dtype=np.float64)
    return (
        layer,
        f"The layer of {path.name}: {layer.num_heads} heads on tokens of dimension {layer.dim}.",
        8,
        20_000,
    )


def _random() -> tuple[Any, str, int, int]:
    from attnlearn import AttentionLayer

    layer = AttentionLayer.random(num_heads=8, dim=32, rank=4, bias=True, seed=1)
    about = "A random layer of a small transformer's size: 8 heads of rank 4 on tokens of dimension 32, with biases."
    return layer, about, 8, 20_000


def _compared(console: Console, solution: Any, truth: Any) -> None:
    """How far the answer is from the truth, which the run did not see."""
    from attnlearn import distance

    error = distance(solution.layer, truth)
    console.text(
        f"truth    {truth.num_heads} heads, {solution.layer.num_heads} found; true relative errors: Theta {error.theta:.1e}, "
        f"W {error.w:.1e}, query bias {error.query_bias:.1e}, output bias {error.output_bias:.1e}"
    )
