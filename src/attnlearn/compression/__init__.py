"""Fewer heads: the best smaller layer on given activations, and what it costs."""

from attnlearn.compression._compress import CompressConfig, compress

__all__ = ["CompressConfig", "compress"]
