"""Rivals of the trainer: PyTorch eager autograd, JAX jit of autodiff, jacrev for the tangent kernel.

Each is the plain way to write the same full-batch gradient step: a forward pass by einsum or matmul, the loss of
the library, its autodiff, one update. The parameters stay on the rival's side between steps. Threads are those
of the process for both sides.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def torch_step(u: np.ndarray, w: np.ndarray, x: np.ndarray, y: np.ndarray, step: float) -> Callable[[], None]:
    """One eager step of gradient descent, as a function to call again and again."""
    import torch

    u_, w_, x_, y_ = (torch.tensor(value) for value in (u, w, x, y))
    u_.requires_grad_()
    w_.requires_grad_()
    optimizer = torch.optim.SGD([u_, w_], lr=step)
    keys = x_[:, None]

    def once() -> None:
        optimizer.zero_grad()
        queries = torch.einsum("nta,hab->nhtb", x_, w_)
        attention = torch.softmax(queries @ keys.transpose(-1, -2), -1)
        phi = torch.einsum("nhtb,htb->n", attention @ keys, u_) / len(u_) ** 0.5
        torch.nn.functional.softplus(-y_ * phi).mean().backward()
        optimizer.step()

    return once


def jax_step(u: np.ndarray, w: np.ndarray, x: np.ndarray, y: np.ndarray, step: float) -> Callable[[], None]:
    """One compiled step: jit of value_and_grad and the update, weights donated."""
    import jax
    import jax.numpy as jnp

    tokens, labels = jnp.asarray(x), jnp.asarray(y)

    def loss(weights, x, y):
        u, w = weights
        attention = jax.nn.softmax(jnp.einsum("nta,hab,nsb->nhts", x, w, x), -1)
        phi = jnp.einsum("nhts,nsd,htd->n", attention, x, u) / len(u) ** 0.5
        return jnp.mean(jax.nn.softplus(-y * phi))

    @jax.jit
    def update(weights, x, y):
        _, gradient = jax.value_and_grad(loss)(weights, x, y)
        return jax.tree.map(lambda p, g: p - step * g, weights, gradient)

    state = [(jnp.asarray(u), jnp.asarray(w))]

    def once() -> None:
        state[0] = jax.block_until_ready(update(state[0], tokens, labels))

    return once


def jacrev_kernel(u: np.ndarray, w: np.ndarray, x: np.ndarray) -> Callable[[], np.ndarray]:
    """The tangent kernel by `jax.jacrev` and contraction."""
    import jax
    import jax.numpy as jnp

    tokens = jnp.asarray(x)

    def phi(weights, x):
        u, w = weights
        attention = jax.nn.softmax(jnp.einsum("nta,hab,nsb->nhts", x, w, x), -1)
        return jnp.einsum("nhts,nsd,htd->n", attention, x, u) / len(u) ** 0.5

    @jax.jit
    def kernel(weights, x):
        parts = [part.reshape(len(x), -1) for part in jax.jacrev(phi)(weights, x)]
        return sum(part @ part.T for part in parts)

    weights = (jnp.asarray(u), jnp.asarray(w))
    return lambda: np.asarray(kernel(weights, tokens))
