"""The identity at the zero start: H heads are one head with step eta for U and eta/H for W."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlearn.data import TokenizedMixture
from attnlearn.training import TrainConfig, fit

STEPS, STEP = 30, 1.0


def one_head(x, y, heads):
    """Descent of the one-head model by automatic differentiation, with the steps that the identity names."""

    def loss(u, w):
        scores = jnp.einsum("nad,de,nbe->nab", x, w, x)
        phi = jnp.einsum("ad,nab,nbd->n", u, jax.nn.softmax(scores, axis=-1), x)
        return jnp.mean(jnp.logaddexp(0.0, -y * phi))

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    u, w = np.zeros(x.shape[1:]), np.zeros((x.shape[2], x.shape[2]))
    for _ in range(STEPS):
        du, dw = gradient(u, w)
        u, w = u - STEP * np.asarray(du), w - STEP / heads * np.asarray(dw)
    return u, w


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 32])
def test_heads_stay_equal_and_are_one_head(heads, seed):
    x, y = TokenizedMixture(tokens=5, dim=6, noise=0.3, signal=1.5).sample(40, seed=seed)
    trained = fit(
        x, y, num_heads=heads, init="zero", step=STEP, max_steps=STEPS,
        config=TrainConfig(replays=0), raise_on_failure=False,
    ).layer  # fmt: skip
    assert np.abs(trained.w - trained.w[:1]).max() <= 1e-14
    assert np.abs(trained.u - trained.u[:1]).max() <= 1e-14
    with jax.enable_x64(True):
        u, w = one_head(x, y, heads)
    assert np.abs(w).max() > 1e-3  # attention has moved, so the identity says something
    assert np.abs(np.sqrt(heads) * trained.u[0] - u).max() <= 1e-14 * max(1, np.abs(u).max())
    assert np.abs(trained.w[0] - w).max() <= 1e-14 * max(1, np.abs(w).max())
