"""`attnlearn explain`: what recover would do with these data, and what it would take."""

from __future__ import annotations

from pathlib import Path

from attnlearn.cli._long import Common


def explain(
    data: Path,
    /,
    *,
    heads: int | None = None,
    method: str = "auto",
    causal: bool | None = None,
    memory: str | None = None,
    options: Common | None = None,
) -> None:
    """Say which proposers recover would run on these data, in which order and why, and the time and memory it would take.

    Parameters
    ----------
    data
        A folder of recorded examples (see record and sample), or an .npz file with x and y.
    heads
        Number of heads, if you know it.
    method
        auto, moment, wide or sculpt, as for recover.
    causal
        Whether the layer is causal; found from the data when left out.
    memory
        Refuse a run that is expected to need more, for example 1.5GB.
    """
    import attnlearn

    options = options or Common()
    options.check()
    found = attnlearn.explain(
        data, method=method, num_heads=heads, causal=causal, memory=memory, seed=options.seed
    )
    options.console.text(str(found))
    options.publish(found.to_json())
