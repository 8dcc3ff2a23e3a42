"""`attnlearn conditions`: whether a layer can be learned, by which route, and from how much."""

from __future__ import annotations

from pathlib import Path

from attnlearn.cli._console import Console, Json, Quiet, Report, Seed, with_command
from attnlearn.cli._inspect import Heads, Prefix


def conditions(
    source: Path,
    /,
    *,
    tokens: Path | None = None,
    heads: Heads = None,
    prefix: Prefix = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = None,
    report: Report = None,
) -> None:
    """Measure every condition that the learners use, and say which route to take.

    Parameters
    ----------
    source
        A layer (.safetensors), or examples: a folder of recorded data or an .npz file with x and y.
    tokens
        Examples whose tokens a layer is judged on; Gaussian tokens when left out.
    """
    import attnlearn
    from attnlearn._errors import require
    from attnlearn.data import Recorded

    if source.suffix == ".safetensors":
        layer = attnlearn.load(source, num_heads=heads, prefix=prefix)
        x = None
        if tokens is not None:
            recorded = Recorded(tokens)
            x = recorded.sample(min(recorded.num, 20_000), seed=seed)
            x = x[0] if isinstance(x, tuple) else x
        found = attnlearn.conditions(layer, x, seed=seed)
    else:
        require(tokens is None, "tokens", "goes with a layer, examples bring their own", tokens)
        found = attnlearn.conditions(Recorded(source), seed=seed)
    console = Console(json, quiet)
    console.text(str(found))
    document = with_command(found.to_json())
    console.json(document)
    console.report(document, report)
