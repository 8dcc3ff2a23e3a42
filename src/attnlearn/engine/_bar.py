"""Progress on a terminal or in a notebook: finished phases as aligned lines, the running one and the whole run as bars below.

Every line has the same columns: what is done, how far it is, its time, and the newest figures in words. The last line is the whole
run, with the time that is left where a plan is known. Lines are cut at the edge of the terminal, never in two.
"""

from __future__ import annotations

from typing import Any

from attnlearn._words import doing
from attnlearn.engine._calibration import BAR_REFRESH_PER_SECOND
from attnlearn.engine._progress import OpenPhase, Progress, RunClock, clock

NAME, BAR = 26, 16
"""Columns of a phase's name and of its bar: with the time they leave 29 of 80 for the figures."""


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
            self._bars = _rich_bars(self._console_options())
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
            f" {doing(phase.name):<{NAME}.{NAME}} ",
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


def _rich_bars(options: dict[str, Any]) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.progress_bar import ProgressBar
    from rich.table import Column
    from rich.text import Text

    class Bars(BarColumn):
        """The bar of a phase; that of a whole run from its plan or its phases."""

        def render(self, task: Any) -> ProgressBar:
            run = task.fields.get("run")
            share = run.share if run is not None else None
            if share is None:
                return super().render(task)
            return ProgressBar(total=1.0, completed=share, width=BAR)

    class Figures(ProgressColumn):
        """Figures in words; of a whole run what is left."""

        def render(self, task: Any) -> Text:
            run = task.fields.get("run")
            shown = run.left() if run is not None else task.fields["figures"]
            return Text(shown, no_wrap=True, overflow="ellipsis")

    class Seconds(ProgressColumn):
        """The time of a phase or a run so far."""

        def render(self, task: Any) -> Text:
            run = task.fields.get("run")
            spent = run.seconds if run is not None else task.elapsed or 0.0
            return Text(f"{clock(spent):>7}", style="cyan")

    columns = (
        TextColumn(
            "  {task.description}",
            markup=False,
            table_column=Column(min_width=NAME + 2, max_width=NAME + 2, no_wrap=True, overflow="ellipsis"),
        ),
        Seconds(table_column=Column(min_width=7, no_wrap=True)),
        Bars(bar_width=BAR, table_column=Column(min_width=BAR)),
        Figures(table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    # Redirecting standard output would send a result written there to the terminal instead.
    return RichProgress(
        *columns,
        console=Console(**options),
        refresh_per_second=BAR_REFRESH_PER_SECOND,
        redirect_stdout=False,
        redirect_stderr=False,
        transient=True,
    )
