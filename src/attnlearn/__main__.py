"""`python -m attnlearn`: the command line."""

from attnlearn.cli.__main__ import run

if __name__ == "__main__":
    run()
