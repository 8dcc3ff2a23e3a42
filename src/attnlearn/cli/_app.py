"""The table of commands. Each lives in a file of its own and imports what it needs when it runs."""

from __future__ import annotations

from cyclopts import App

from attnlearn._version import __version__
from attnlearn.cli import (
    _compress,
    _conditions,
    _convert,
    _doctor,
    _explain,
    _extract,
    _inspect,
    _leak,
    _record,
    _recover,
    _report,
    _reproduce,
    _sample,
    _train,
)

app = App(
    name="attnlearn",
    help="Learn multi-head attention layers from examples or queries, and prove what was learned.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` says that the command was interrupted, and returns its code
)
app.command(_inspect.inspect)
app.command(_convert.convert)
app.command(_sample.sample)
app.command(_record.record)
app.command(_explain.explain)
app.command(_recover.recover)
app.command(_extract.extract)
app.command(_leak.leak)
app.command(_compress.compress)
app.command(_conditions.conditions)
app.command(_train.train)
app.command(_reproduce.reproduce)
app.command(_report.report)
app.command(_doctor.doctor)
