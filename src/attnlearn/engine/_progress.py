"""Progress on standard error: a bar on a terminal, plain lines in a log, a notebook's bar, or nothing.

A phase opens with its name and, if known, its number of steps; every update may bring figures (the current
loss, the rank found), of which the newest are shown. Phases may be nested. Standard output is never touched,
so `--json -` stays clean. Colour follows NO_COLOR and TERM as rich does. Cost: about a microsecond an update.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from attnlearn._errors import require
from attnlearn.engine._calibration import BAR_REFRESH_PER_SECOND, PLAIN_INTERVAL_SECONDS


def _show(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


@dataclass
class _Phase:
    name: str
    total: int | None
    done: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    task: Any = None
    started: float = field(default_factory=time.monotonic)

    def describe(self) -> str:
        return " ".join(f"{name}={_show(value)}" for name, value in self.figures.items())


class Progress:
    """Quiet progress, and the base of the others: keeps the phases, shows nothing.

    >>> progress = Progress.make("quiet")
    >>> with progress.phase("fit", total=2):
    ...     progress.update(loss=0.5)
    """

    def __init__(self) -> None:
        self._phases: list[_Phase] = []

    @classmethod
    def make(cls, spec: Progress | bool | str | None = None) -> Progress:
        """Read `None` (a bar if someone can watch it), True, False, "bar", "plain", "notebook", "quiet".

        >>> type(Progress.make(False)).__name__
        'Progress'
        >>> Progress.make("loud")
        Traceback (most recent call last):
        ValueError: progress: must be one of bar, notebook, plain, quiet, got 'loud'
        """
        if isinstance(spec, Progress):
            return spec
        if spec is None or isinstance(spec, bool):
            watched = "notebook" if _in_notebook() else "bar" if _on_terminal() else None
            unwatched = "plain" if spec else "quiet"
            spec = "quiet" if spec is False else watched or unwatched
        kinds = {"bar": Bar, "notebook": Notebook, "plain": Plain, "quiet": Progress}
        require(spec in kinds, "progress", f"must be one of {', '.join(kinds)}", spec)
        return kinds[spec]()

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[None]:
        """Everything inside belongs to the phase `name` of `total` steps (None: nobody knows).

        >>> with Progress().phase("separate", total=3):
        ...     pass
        """
        phase = _Phase(name, total)
        self._phases.append(phase)
        self._opened(phase)
        try:
            yield
        except BaseException:
            self._phases.remove(phase)
            self._closed(phase, whole=False)
            raise
        self._phases.remove(phase)
        self._closed(phase, whole=True)

    def update(self, advance: int = 1, **figures: Any) -> None:
        """`advance` more steps of the innermost phase are done; `figures` replace those of the same name.

        >>> Progress().update(loss=1e-3)
        """
        if self._phases:
            phase = self._phases[-1]
            phase.done += advance
            phase.figures.update(figures)
            self._moved(phase)

    def _opened(self, phase: _Phase) -> None: ...

    def _moved(self, phase: _Phase) -> None: ...

    def _closed(self, phase: _Phase, whole: bool) -> None: ...


class Plain(Progress):
    """Lines without escape codes, at most one every few seconds and one at each end of a phase.

    >>> import io
    >>> log = io.StringIO()
    >>> with Plain(log).phase("fit"):
    ...     pass
    >>> log.getvalue().splitlines()[0]
    'fit: started'
    """

    def __init__(self, stream: TextIO | None = None, interval: float = PLAIN_INTERVAL_SECONDS) -> None:
        super().__init__()
        self._stream = stream
        self._interval = interval
        self._last = time.monotonic()

    def _line(self, phase: _Phase, what: str) -> None:
        path = "/".join([*(outer.name for outer in self._phases if outer is not phase), phase.name])
        print(f"{path}: {what} {phase.describe()}".rstrip(), file=self._stream or sys.stderr, flush=True)
        self._last = time.monotonic()

    def _opened(self, phase: _Phase) -> None:
        self._line(phase, "started")

    def _moved(self, phase: _Phase) -> None:
        if time.monotonic() - self._last >= self._interval:
            self._line(phase, f"{phase.done}/{phase.total}" if phase.total else f"{phase.done}")

    def _closed(self, phase: _Phase, whole: bool) -> None:
        seconds = time.monotonic() - phase.started
        self._line(phase, f"{'done in' if whole else 'left after'} {seconds:.1f} s")


class Bar(Progress):
    """A rich bar for each open phase, on standard error.

    >>> Bar()._console_options()
    {'stderr': True}
    """

    def __init__(self) -> None:
        super().__init__()
        self._bars: Any = None

    def _console_options(self) -> dict[str, Any]:
        return {"stderr": True}

    def _opened(self, phase: _Phase) -> None:
        if self._bars is None:
            self._bars = _rich_bars(self._console_options())
            self._bars.start()
        depth = "  " * (len(self._phases) - 1)
        phase.task = self._bars.add_task(depth + phase.name, total=phase.total, figures="")

    def _moved(self, phase: _Phase) -> None:
        self._bars.update(phase.task, completed=phase.done, figures=phase.describe())

    def _closed(self, phase: _Phase, whole: bool) -> None:
        if whole:
            end = max(phase.done, 1) if phase.total is None else phase.total
            self._bars.update(phase.task, completed=end, total=end)
        self._bars.stop_task(phase.task)
        if not self._phases:
            self._bars.stop()
            self._bars = None


class Notebook(Bar):
    """The same bars in a notebook's output cell.

    >>> Notebook()._console_options()
    {'force_jupyter': True}
    """

    def _console_options(self) -> dict[str, Any]:
        return {"force_jupyter": True}


def _rich_bars(options: dict[str, Any]) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    # Redirecting standard output would send a result written there to the terminal instead.
    return RichProgress(
        *columns,
        console=Console(**options),
        refresh_per_second=BAR_REFRESH_PER_SECOND,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _on_terminal() -> bool:
    import os

    return (
        sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    )


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return type(instance).__name__ == "ZMQInteractiveShell"
