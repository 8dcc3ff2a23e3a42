"""`attnlearn demo`: the main job, on a real layer, from examples alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from attnlearn.cli._console import Console, Quiet
from attnlearn.cli._long import Long, solved

LAYER = "sapiens-vh-layer0.safetensors"
"""Layer 0 of the antibody language model sapiens (MIT), which ships with the package; its numbers are float16, exactly."""


def demo(
    folder: Path = Path("demo"),
    /,
    *,
    short: Annotated[bool, Parameter(negative="")] = False,
    quiet: Quiet = False,
) -> int:
    """Recover a real layer from examples alone and write its report.

    Parameters
    ----------
    folder
        Where to write the layer, the result and the report.
    short
        A random layer with 4 heads on 16 dimensions instead: a few seconds.
    """
    import attnlearn
    from attnlearn.cli._long import _code
    from attnlearn.data import Gaussian

    console, options = Console(quiet=quiet), Long(quiet=quiet)
    truth, about, tokens, num = _short() if short else _real()
    folder.mkdir(parents=True, exist_ok=True)
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


def _real() -> tuple[Any, str, int, int]:
    """The layer that ships with the package, what it is, tokens of a sequence and sequences."""
    from importlib import resources

    import numpy as np

    from attnlearn import load

    with resources.as_file(resources.files("attnlearn.cli") / "layers" / LAYER) as path:
        layer = load(path, dtype=np.float64)
    about = (
        "The layer belongs to a published antibody language model (sapiens): 8 heads of rank 16 on tokens of dimension 128, with "
        "large query biases."
    )
    return layer, about, 8, 20_000


def _short() -> tuple[Any, str, int, int]:
    from attnlearn import AttentionLayer

    layer = AttentionLayer.random(num_heads=4, dim=16, rank=4, bias=True, seed=1)
    return layer, "A random layer: 4 heads of rank 4 on tokens of dimension 16.", 6, 8_000


def _compared(console: Console, solution: Any, truth: Any) -> None:
    """How far the answer is from the truth, which the run did not see."""
    from attnlearn import distance

    error = distance(solution.layer, truth)
    console.text(
        f"truth    {truth.num_heads} heads, {solution.layer.num_heads} found; true relative errors: Theta {error.theta:.1e}, "
        f"W {error.w:.1e}, query bias {error.query_bias:.1e}, output bias {error.output_bias:.1e}"
    )
