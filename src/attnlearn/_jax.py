"""JAX, which every other module takes from here: Ctrl-C waits until it is imported whole.

An interrupt inside the import ended the process with a segmentation fault (see `_interrupts.py`), or left half a module that no
later import could mend. Cost: nothing after the first import.
"""

from __future__ import annotations

from attnlearn._interrupts import deferred_interrupts

with deferred_interrupts():
    import jax
    import jax.numpy as jnp

__all__ = ["jax", "jnp"]
