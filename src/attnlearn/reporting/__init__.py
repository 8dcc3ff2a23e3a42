"""Results a person can see and trust: one self-contained HTML file per result, made from its JSON.

    report(solution, "out.html")

The pictures are plain objects with `svg()`, `plot()` and `frame()`.
"""

from attnlearn._verdict import Verdict, verdict
from attnlearn.reporting._displays import Bars, Lines, Series
from attnlearn.reporting._figures import phase_figures
from attnlearn.reporting._heads import head_panels
from attnlearn.reporting._heatmap import Heatmap
from attnlearn.reporting._report import report
from attnlearn.reporting._scrub import scrub

__all__ = [
    "Bars",
    "Heatmap",
    "Lines",
    "Series",
    "Verdict",
    "head_panels",
    "phase_figures",
    "report",
    "scrub",
    "verdict",
]
