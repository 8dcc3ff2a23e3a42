"""The columns of progress as rich draws them. This module imports rich, so it is imported when a bar is shown."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from attnlearn.engine._calibration import BAR_COLUMNS, BAR_REFRESH_PER_SECOND, NAME_COLUMNS
from attnlearn.engine._progress import clock


class Bars(BarColumn):
    """The bar of a phase; that of a whole run from its plan or its phases."""

    def render(self, task: Any) -> ProgressBar:
        run = task.fields.get("run")
        share = run.share if run is not None else None
        if share is None:
            return super().render(task)
        return ProgressBar(total=1.0, completed=share, width=BAR_COLUMNS)


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


def rich_bars(options: dict[str, Any]) -> RichProgress:
    """Bars on a console with these options."""
    width = NAME_COLUMNS + 2
    name = Column(min_width=width, max_width=width, no_wrap=True, overflow="ellipsis")
    # Redirecting standard output would send a result written there to the terminal instead.
    return RichProgress(
        TextColumn("  {task.description}", markup=False, table_column=name),
        Seconds(table_column=Column(min_width=7, no_wrap=True)),
        Bars(bar_width=BAR_COLUMNS, table_column=Column(min_width=BAR_COLUMNS)),
        Figures(table_column=Column(no_wrap=True, overflow="ellipsis")),
        console=Console(**options),
        refresh_per_second=BAR_REFRESH_PER_SECOND,
        redirect_stdout=False,
        redirect_stderr=False,
        transient=True,
    )
