"""`python -m benchmarks render`: docs/benchmarks.md, its figures and the README's table, from the result lines alone."""

from benchmarks.render._document import render, rendered

__all__ = ["render", "rendered"]
