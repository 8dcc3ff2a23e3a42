"""Progress on standard error: a bar on a terminal, plain lines in a log, a notebook's bar, or nothing.

A run opens with the verb and, if known, its number of phases; a plan may bring the seconds that it should take. A phase opens with
its name and, if known, its number of steps; every update may bring figures (the current loss, the heads seen), of which the newest are
shown, in words. Phases may be nested. Standard output is never touched, so `--json -` stays clean. Colour follows NO_COLOR and TERM as
rich does. Cost: about a microsecond an update.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from attnlearn._errors import require
from attnlearn._words import doing, said
from attnlearn.engine._calibration import PLAIN_INTERVAL_SECONDS


@dataclass
class OpenPhase:
    """A phase that runs: its name, its steps and the newest figures."""

    name: str
    total: int | None
    done: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    task: Any = None
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self.started

    def describe(self) -> str:
        """The newest figures in words."""
        return said(self.figures)


@dataclass
class RunClock:
    """How far a run is: its seconds so far, those that were planned, and the phases that are finished."""

    name: str
    phases: int | None = None
    planned: float | None = None
    finished: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    @property
    def share(self) -> float | None:
        """The part of the run that is behind us; None where nobody knows.

        >>> RunClock("extract", phases=8, finished=2).share
        0.25
        """
        if self.planned is not None:
            return min(self.seconds / max(self.planned, 1e-9), 0.99)
        return None if not self.phases else min(self.finished / self.phases, 0.99)

    def left(self) -> str:
        """What is left, in words.

        >>> RunClock("recover", planned=100.0).left()
        'about 1:40 left'
        >>> RunClock("extract", phases=8, finished=2).left()
        'part 3 of 8'
        """
        if self.planned is not None:
            rest = self.planned - self.seconds
            return f"about {clock(rest)} left" if rest > 0 else f"{clock(self.planned)} was planned"
        return "" if not self.phases else f"part {min(self.finished + 1, self.phases)} of {self.phases}"


def clock(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> clock(4.2), clock(75.0), clock(3700.0)
    ('4 s', '1:15', '1:01:40')
    """
    whole = max(round(seconds), 0)
    minutes, rest = divmod(whole, 60)
    if whole < 60:
        return f"{max(whole, 1)} s"
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Progress:
    """Quiet progress, and the base of the others: keeps the phases, shows nothing.

    >>> progress = Progress.make("quiet")
    >>> with progress.phase("fit", total=2):
    ...     progress.update(loss=0.5)
    """

    def __init__(self) -> None:
        self._phases: list[OpenPhase] = []
        self._run: RunClock | None = None

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
        from attnlearn.engine._bar import Bar, Notebook

        kinds = {"bar": Bar, "notebook": Notebook, "plain": Plain, "quiet": Progress}
        require(spec in kinds, "progress", f"must be one of {', '.join(kinds)}", spec)
        return kinds[spec]()

    @contextmanager
    def run(self, name: str, phases: int | None = None) -> Iterator[None]:
        """Everything inside is one run of `phases` phases (None: nobody knows); a run inside a run belongs to the outer one.

        >>> with Progress().run("recover"):
        ...     pass
        """
        if self._run is not None:
            yield
            return
        self._run = RunClock(name, phases)
        self._began(self._run)
        try:
            yield
        finally:
            self._ended(self._run)
            self._run = None

    def expect(self, seconds: float) -> None:
        """The run should take so many more seconds.

        >>> Progress().expect(3.0)
        """
        if self._run is not None:
            self._run.planned = self._run.seconds + seconds

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[None]:
        """Everything inside belongs to the phase `name` of `total` steps (None: nobody knows).

        >>> with Progress().phase("separate", total=3):
        ...     pass
        """
        phase = OpenPhase(name, total)
        self._phases.append(phase)
        self._opened(phase)
        try:
            yield
        except BaseException:
            self._phases.remove(phase)
            self._closed(phase, whole=False)
            raise
        self._phases.remove(phase)
        if self._run is not None and not self._phases:
            self._run.finished += 1
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

    def _began(self, run: RunClock) -> None: ...

    def _ended(self, run: RunClock) -> None: ...

    def _opened(self, phase: OpenPhase) -> None: ...

    def _moved(self, phase: OpenPhase) -> None: ...

    def _closed(self, phase: OpenPhase, whole: bool) -> None: ...


class Plain(Progress):
    """Lines without escape codes, at most one every few seconds and one at each end of a phase.

    >>> import io
    >>> log = io.StringIO()
    >>> with Plain(log).phase("fit"):
    ...     pass
    >>> log.getvalue().splitlines()[0]
    'refining: started'
    """

    def __init__(self, stream: TextIO | None = None, interval: float = PLAIN_INTERVAL_SECONDS) -> None:
        super().__init__()
        self._stream = stream
        self._interval = interval
        self._last = time.monotonic()

    def _line(self, phase: OpenPhase, what: str) -> None:
        path = ", ".join(
            [*(doing(outer.name) for outer in self._phases if outer is not phase), doing(phase.name)]
        )
        figures, left = (
            phase.describe(),
            self._run.left() if self._run is not None and what[0].isdigit() else "",
        )
        parts = [part for part in (f"{path}: {what}", figures, left) if part]
        print("; ".join(parts), file=self._stream or sys.stderr, flush=True)
        self._last = time.monotonic()

    def _opened(self, phase: OpenPhase) -> None:
        self._line(phase, "started")

    def _moved(self, phase: OpenPhase) -> None:
        if time.monotonic() - self._last >= self._interval:
            so_far = f"{phase.seconds:.0f} s"
            self._line(phase, f"{so_far}, {phase.done:,} of {phase.total:,}" if phase.total else so_far)

    def _closed(self, phase: OpenPhase, whole: bool) -> None:
        self._line(phase, f"{'done in' if whole else 'left after'} {phase.seconds:.1f} s")


def _on_terminal() -> bool:
    import os

    return (
        sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    )


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell is not None else None
    return type(instance).__name__ == "ZMQInteractiveShell"
