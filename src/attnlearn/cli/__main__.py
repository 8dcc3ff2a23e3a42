"""`attnlearn` and `python -m attnlearn.cli`: arguments in, exit code out.

Exit codes: 0 done (and certified, or on target, where that applies), 1 internal error or lost workers, 2 bad usage or input, 3
finished, not achieved, 4 the oracle failed, 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

LEAVE_SECONDS = 10.0
"""For what an interrupted command does at its end: temporary folders and programs need well under a second."""
DONE, INTERNAL, USAGE, NOT_ACHIEVED, ORACLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one line on standard error.

    >>> main(["--version"])
    0.1.0
    0
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if (answer := _at_once(words)) is not None:
        try:
            print(answer, flush=True)
        except BrokenPipeError:
            _nobody_reads()
        return DONE
    import warnings

    from cyclopts import CycloptsError

    from attnlearn._errors import AttnlearnError, OracleError
    from attnlearn._interrupts import noticed_interrupts

    try:
        with noticed_interrupts(), warnings.catch_warnings():
            warnings.showwarning = _warn
            return _command(words)
    except CycloptsError as error:
        return complain(_misused(error), USAGE)
    except ValueError as error:
        return complain(str(error), USAGE)
    except OracleError as error:
        return complain(str(error), ORACLE)
    except AttnlearnError as error:
        from attnlearn.engine import EngineError

        # Where the workers failed nothing was finished, so that is not "finished, not achieved".
        return complain(str(error), INTERNAL if isinstance(error, EngineError) else NOT_ACHIEVED)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _nobody_reads()
        return DONE
    except Exception as error:
        if os.environ.get("ATTNLEARN_DEBUG"):
            raise
        return complain(f"{type(error).__name__}: {error} (ATTNLEARN_DEBUG=1 shows where)", INTERNAL)


def _misused(error: Any) -> str:
    """What is wrong with the words of a command; where one is missing, an example that has it."""
    from cyclopts import MissingArgumentError

    from attnlearn.cli._overview import EXAMPLES

    command = " ".join(error.command_chain or ())
    missing = isinstance(error, MissingArgumentError) and error.keyword is None
    if missing and error.argument is not None and command in EXAMPLES:
        return f"{error.argument.name}: must be given, for example {EXAMPLES[command][0]}"
    return str(error)


def _at_once(words: list[str]) -> str | None:
    """What is answered before the parser is imported: help about everything, and the version."""
    if words in ([], ["--help"], ["-h"]):
        from attnlearn.cli._overview import overview

        return overview()
    if words == ["--version"]:
        from attnlearn._version import __version__

        return __version__
    return None


def _nobody_reads() -> None:
    """The reader of our output went away, which is not our error: what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(words: list[str]) -> int:
    from attnlearn.cli._app import app
    from attnlearn.cli._console import arguments

    keep_compiled()
    arguments.set(tuple(words))
    result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    return result if isinstance(result, int) else DONE


def keep_compiled() -> None:
    """Let JAX keep what it compiles on disk, so that the next run starts at once.

    Only environment variables of this process, and only those the user left alone: a library call never does this.
    """
    from pathlib import Path

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnlearn" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def complain(text: str, code: int) -> int:
    """Print one line on standard error, and return the code."""
    if os.environ.get("ATTNLEARN_DEBUG") and code == USAGE:
        import traceback

        traceback.print_exc()
    from attnlearn._errors import one_line

    print(f"attnlearn: {one_line(text, 10_000)}", file=sys.stderr)
    return code


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the place in the code that says nothing to a user."""
    from attnlearn._errors import one_line

    print(f"attnlearn: warning: {one_line(str(message), 10_000)}", file=sys.stderr)


def run() -> None:
    """The console script; Ctrl-C ends it with 130 however often it is pressed, and without a traceback."""
    report = sys.unraisablehook
    # Ctrl-C inside a destructor cannot go on from there; the pipeline notices it, and nobody needs to read of it.
    sys.unraisablehook = lambda failure: None if failure.exc_type is KeyboardInterrupt else report(failure)
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    exec(
        ""
    )  # CPython remembers an interrupt inside any exec of a text until the next one, and would end by the signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a handler of ours would be gone before the interpreter is
    if code == INTERRUPTED:
        _leave()
    sys.exit(code)


def _leave() -> None:
    """End now, with 130: modules in C that were interrupted while they were imported may crash when they are torn down.

    Workers that wait for the next task would be waited for, so they are ended first. Nothing may take longer than `LEAVE_SECONDS`.
    """
    import atexit
    import threading

    late = threading.Timer(LEAVE_SECONDS, os._exit, (INTERRUPTED,))
    late.daemon = True
    late.start()
    if "multiprocessing" in sys.modules:
        import multiprocessing
        import signal

        at_once = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has but one
        for child in multiprocessing.active_children():
            if child.pid is not None:
                with suppress(OSError):
                    os.kill(child.pid, at_once)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
