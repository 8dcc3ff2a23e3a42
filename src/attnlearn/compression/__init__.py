"""Smaller layers: fewer or narrower heads, shared keys and values, one latent, and what each costs on given activations."""

from attnlearn.compression._compress import CompressConfig, compress

__all__ = ["CompressConfig", "compress"]
