"""The papers' claims as figures with numbers beside them."""

from attnlearn.reproduce._optimization import optimization, plot_optimization

__all__ = ["optimization", "plot_optimization"]
