"""`attnlearn conditions`: whether a layer can be learned, by which route, and from how much."""

from __future__ import annotations

from pathlib import Path

from attnlearn.cli._inspect import Heads, Prefix
from attnlearn.cli._long import Common


def conditions(
    source: Path,
    /,
    *,
    tokens: Path | None = None,
    heads: Heads = None,
    prefix: Prefix = None,
    options: Common | None = None,
) -> None:
    """Measure every condition that the learners use, and say which route to take.

    Parameters
    ----------
    source
        A layer (.safetensors, or the folder of a saved model), or examples: a folder of recorded data or an .npz file with x and y.
    tokens
        Examples whose tokens a layer is judged on; Gaussian tokens when left out.
    """
    import attnlearn
    from attnlearn._errors import require
    from attnlearn.data import Recorded

    options = options or Common()
    options.check()
    if source.suffix == ".safetensors" or (source / "config.json").is_file():
        layer = attnlearn.load(source, num_heads=heads, prefix=prefix)
        x = None
        if tokens is not None:
            recorded = Recorded(tokens)
            x = recorded.sample(min(recorded.num, 20_000), seed=options.seed)
            x = x[0] if isinstance(x, tuple) else x
        found = attnlearn.conditions(layer, x, seed=options.seed, progress=options.progress)
    else:
        require(tokens is None, "tokens", "goes with a layer, examples bring their own", tokens)
        found = attnlearn.conditions(Recorded(source), seed=options.seed, progress=options.progress)
    options.console.text(str(found))
    options.publish(found.to_json())
