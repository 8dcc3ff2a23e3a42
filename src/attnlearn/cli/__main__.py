"""`attnlearn` and `python -m attnlearn.cli`: arguments in, exit code out.

Exit codes: 0 done (and certified where that applies), 1 internal error or lost workers, 2 bad usage or input, 3 finished but not
certified, 4 the oracle failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

DONE, INTERNAL, USAGE, NOT_CERTIFIED, ORACLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are one line on standard error.

    >>> main(["--version"])
    0.1.0
    0
    """
    from cyclopts import CycloptsError

    from attnlearn._errors import AttnlearnError, OracleError
    from attnlearn.cli._app import app
    from attnlearn.cli._console import arguments

    keep_compiled()
    words = sys.argv[1:] if argv is None else list(argv)
    arguments.set(tuple(words))
    try:
        result = app(
            words,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        return result if isinstance(result, int) else DONE
    except CycloptsError as error:
        return _complain(str(error), USAGE)
    except ValueError as error:
        return _complain(str(error), USAGE)
    except OracleError as error:
        return _complain(str(error), ORACLE)
    except AttnlearnError as error:
        from attnlearn.engine import EngineError

        # Where the workers failed nothing was finished, so that is not "finished but not certified".
        return _complain(str(error), INTERNAL if isinstance(error, EngineError) else NOT_CERTIFIED)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output went away: not our error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if os.environ.get("ATTNLEARN_DEBUG"):
            raise
        return _complain(f"{type(error).__name__}: {error} (ATTNLEARN_DEBUG=1 shows where)", INTERNAL)


def keep_compiled() -> None:
    """Let JAX keep what it compiles on disk, so that the next run starts at once.

    Only environment variables of this process, and only those the user left alone: a library call never does this.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnlearn" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def _complain(text: str, code: int) -> int:
    if os.environ.get("ATTNLEARN_DEBUG") and code == USAGE:
        import traceback

        traceback.print_exc()
    print(f"attnlearn: {' '.join(text.split())}", file=sys.stderr)
    return code


def run() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
