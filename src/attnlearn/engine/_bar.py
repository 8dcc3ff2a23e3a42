"""Progress on a terminal or in a notebook: finished phases as aligned lines, the running one and the whole run as bars below.

Every line has the same columns: what is done, how far it is, its time, and the newest figures in words. The last line is the whole
run, with the time that is left where a plan is known. Lines are cut at the edge of the terminal, never in two.
"""

from __future__ import annotations

from typing import Any

from attnlearn._words import doing
from attnlearn.engine._calibration import NAME_COLUMNS
from attnlearn.engine._progress import OpenPhase, Progress, RunClock, clock


class Bar(Progress):
    """Lines and bars by rich, on standard error.

    >>> Bar()._console_options()
    {'stderr': True}
    """

    def __init__(self) -> None:
        super().__init__()
        self._bars: Any = None
        self._whole: Any = None

    def _console_options(self) -> dict[str, Any]:
        return {"stderr": True}

    def _start(self) -> None:
        if self._bars is None:
            from attnlearn.engine._columns import rich_bars

            self._bars = rich_bars(self._console_options())
            self._bars.start()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = self._whole = None

    def _began(self, run: RunClock) -> None:
        self._start()
        self._whole = self._bars.add_task(run.name, total=None, run=run, figures="")

    def _ended(self, run: RunClock) -> None:
        if self._bars is not None:
            self._bars.remove_task(self._whole)
        self._stop()

    def _opened(self, phase: OpenPhase) -> None:
        self._start()
        depth = "  " * (len(self._phases) - 1)
        phase.task = self._bars.add_task(depth + doing(phase.name), total=phase.total, figures="", run=None)
        if self._whole is not None:  # the whole run stays below its phases
            self._bars.remove_task(self._whole)
            assert self._run is not None
            self._whole = self._bars.add_task(self._run.name, total=None, run=self._run, figures="")

    def _moved(self, phase: OpenPhase) -> None:
        self._bars.update(phase.task, completed=phase.done, figures=phase.describe())

    def _closed(self, phase: OpenPhase, whole: bool) -> None:
        self._bars.remove_task(phase.task)
        if not self._phases:
            self._line(phase, whole)
            if self._run is None:
                self._stop()

    def _line(self, phase: OpenPhase, whole: bool) -> None:
        """A finished phase, printed above the bars in the same columns."""
        from rich.text import Text

        console = self._bars.console
        sure = console.encoding.lower().startswith("utf")
        mark = ("✓" if sure else "*") if whole else ("✗" if sure else "x")
        line = Text.assemble(
            (mark, "green" if whole else "yellow"),
            f" {doing(phase.name):<{NAME_COLUMNS}.{NAME_COLUMNS}} ",
            (f"{clock(phase.seconds) if phase.seconds >= 1 else f'{phase.seconds:.1f} s':>7}  ", "cyan"),
            phase.describe(),
        )
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True, highlight=False)


class Notebook(Bar):
    """The same in a notebook's output cell.

    >>> Notebook()._console_options()
    {'force_jupyter': True}
    """

    def _console_options(self) -> dict[str, Any]:
        return {"force_jupyter": True}
