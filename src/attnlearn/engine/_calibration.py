"""Constants of the engine, each with its reason."""

DASK_CONNECT_SECONDS = 10.0
"""Long enough for a scheduler on a busy network, short enough that a mistyped address is noticed."""

DASK_NO_WORKER_SECONDS = 30.0
"""Workers under a nanny are back in a few seconds; a cluster without any for half a minute has none, and the
promise is an error within a minute."""

DASK_LOOK_SECONDS = 1.0
"""Between two looks at a cluster that one waits for: one small message a second."""

DASK_BLOCKS_PER_THREAD = 2
"""Blocks on their way for each thread of the cluster: one under way, one waiting, so that no worker is idle."""

SEAT_WORK = 1e9
"""Multiplications, rows x columns x outputs, of a whole sum below which it stays in this process: 4e8 (d = 128, 6,400 rows) take 18 ms.
An empty sum on two workers took 21 ms of processor time here, scheduler included, and 10 ms on each worker; with a megabyte sent and
a megabyte returned 36 and 19 (100 sums each, beside much other work on the same two cores)."""

THREAD_WORK = 2e7
"""Multiplications, rows x columns x outputs, of a chunk below which chunks run one after another. Threads wait for each other
between NumPy's calls: with 5e6 (d = 32) a product takes 1.6 ms on two threads and 1.5 on one, with 5e7 (d = 64) 12 and 20."""

WORKER_DEATHS = 3
"""Pools in a row that may lose a worker without giving one answer: Dask allows a block as many. A single kill is an
accident; a block that kills three workers would kill a fourth."""

PARENT_LOOK_SECONDS = 0.5
"""How often a worker looks whether its parent lives: one system call, and half a second more of an orphan's life."""

PLAIN_INTERVAL_SECONDS = 2.0
"""Between two lines of one phase when the progress is piped: a log of an hour stays below 2,000 lines."""

NAME_COLUMNS, BAR_COLUMNS = 26, 16
"""Columns of a phase's name and of its bar: with the time they leave 29 of 80 for the figures."""

BAR_REFRESH_PER_SECOND = 4.0
"""Redraws of the bar; one took 0.54 ms of processor time, so four a second stay below half a percent."""

CHECKPOINTS_KEPT = 2
"""The newest, and the one before it in case a disk damages the newest."""

IDENTITY_BYTES = 2**20
"""An identity is hashes, settings and a seed, about a kilobyte; a configuration printed in full may add some."""
