"""The commands of the parser. Each lives in a file of its own, which is imported when its command is called."""

from __future__ import annotations

from cyclopts import App

from attnlearn._version import __version__
from attnlearn.cli._overview import ABOUT, COMMANDS, EXAMPLES

app = App(
    name="attnlearn",
    help=ABOUT,
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # `main` says that the command was interrupted, and returns its code
)
for name in COMMANDS:
    shown = "\n".join(f"  {line}" for line in EXAMPLES[name])
    app.command(f"attnlearn.cli._{name}:{name}", help_epilogue=f"Examples:\n{shown}")
app.register_install_completion_command(help="Let your shell complete commands and options.")
