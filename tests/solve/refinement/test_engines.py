"""Refine on a cluster: the same bytes from one worker, from two, and from two of which one is lost on the way."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from attnlearn import AttentionLayer
from attnlearn.engine import Engine
from attnlearn.engine import _calibration as engine_calibration
from attnlearn.solve import _chunks
from attnlearn.solve.refinement import RefineConfig, refine


@contextmanager
def cluster(workers: int):
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="tcp"
    ) as found:
        yield found


# Dask and tornado close sockets late when a worker is lost; nothing a caller could do about it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_lost_in_the_middle_of_refine_changes_nothing(monkeypatch, rng):
    monkeypatch.setattr(engine_calibration, "SEAT_WORK", 0.0)
    monkeypatch.setattr(_chunks, "CHUNK_ROWS", 64)
    layer = AttentionLayer.random(num_heads=2, dim=4, seed=0)
    x = rng.standard_normal((100, 5, 4))
    start, y = layer.replace(theta=1.1 * layer.theta), layer(x)
    config = RefineConfig(max_steps=3)
    found = []
    for workers, lost in ((1, False), (2, False), (2, True)):
        with cluster(workers) as there, Engine.parse(f"dask:{there.scheduler_address}").summing():

            def after(_step, there=there, left=[lost]) -> None:  # noqa: B006
                if left.pop() if left else False:
                    there.sync(there.workers[0].close, timeout=5, reason="lost")

            found.append(refine(start, x, y, config=config, on_step=after))
    here = refine(start, x, y, config=config)
    for other in found:
        np.testing.assert_array_equal(other.layer.theta, found[0].layer.theta)
        assert len(other.steps) == len(here.steps)
    np.testing.assert_allclose(found[0].layer.theta, here.layer.theta, rtol=1e-4)
