"""Constants of the engine, each with its reason."""

DASK_CONNECT_SECONDS = 10.0
"""Long enough for a scheduler on a busy network, short enough that a mistyped address is noticed."""

PLAIN_INTERVAL_SECONDS = 2.0
"""Between two lines of one phase when the progress is piped: a log of an hour stays below 2,000 lines."""

BAR_REFRESH_PER_SECOND = 4.0
"""Redraws of the bar; one took 0.54 ms of processor time, so four a second stay below half a percent."""

CHECKPOINTS_KEPT = 2
"""The newest, and the one before it in case a disk damages the newest."""

IDENTITY_BYTES = 2**20
"""An identity is hashes, settings and a seed, about a kilobyte; a configuration printed in full may add some."""
