"""Constants of the oracles, each with its reason."""

BATCH_SIZE = 256
"""Sequences in one call: enough to keep a matrix product busy, few enough that a lost call is cheap."""

RETRIES = 2
"""Calls after a failed one. Three failures in a row are an outage, not a hiccup."""

BACKOFF_SECONDS = 0.2
BACKOFF_CAP_SECONDS = 10.0
"""Waits of 0.2, 0.4, 0.8, ... seconds, never above the cap: long against a hiccup, short against a run."""

REMOTE_TIMEOUT_SECONDS = 60.0
"""For one call of a process or a server: a batch of 256 sequences of 8 tokens (d = 128, 8 heads) took 0.3 s on
two cores shared by a dozen processes, so this leaves a factor of a hundred for networks and larger layers."""

MAX_HEADER_BYTES = 64 * 1024
"""A header names a dtype and a shape: 100 bytes. The rest is room for an error message."""

MAX_BODY_BYTES = 256 * 1024 * 1024
"""256 sequences of 256 tokens of dimension 512 in float64: more than any query here, small against memory."""

END_SECONDS = 5.0
"""For a killed program to be gone: the kernel needs milliseconds, a program in a disk's queue seconds."""

LONGEST_MESSAGE = 300
"""Characters that are shown of what a stranger says: three lines on a terminal."""

SHORTEST_SECRET = 4
"""Arguments of fewer letters are not taken out of messages: they are part of too many words."""

SERVE_TOKENS = 4096
SERVE_SCORE_BYTES = 256 * 1024 * 1024
"""The longest sequence that the example servers answer: `SERVE_TOKENS`, or as many as keep the scores of all heads
within `SERVE_SCORE_BYTES`. 20,000 tokens (a request of 640 kB) took 6.5 GB and 37 s without a limit."""

SERVE_CLIENTS = 16
SERVE_BODY_BYTES = 256 * 1024 * 1024
"""Clients at once, and the bytes that all their queries may have together: more would wait for two cores anyway."""

SERVE_SECONDS = 60.0
"""From the first byte of a connection to the last byte of its answer. 256 MB take 2 s on loopback."""

SERVE_RETRY_SECONDS = 1
"""How long a busy server asks to wait."""

PROBE_SEQUENCES = 2
"""Fixed queries that recognise an oracle. One sequence already separates layers whose parameters differ in a
generic direction; the second is for a change that the first happens not to see."""

PROBE_TOKENS = 4096
PROBE_SIZE = 1 << 24
"""The longest and the largest probe that is taken from a cache's file: a damaged file that named a million tokens made the oracle
work on them. A probe has the length of a run's first query, a few tokens."""

PROBE_NOISE_FACTOR = 8.0
PROBE_STEP_FACTOR = 16.0
"""An answer to a probe may move by 8 standard deviations of the oracle's noise (two-sided normal tail 1e-15)
plus 16 rounding steps (another BLAS or thread count reorders sums of at most a few hundred terms)."""

NOISE_SEQUENCES = 4
NOISE_TOKENS = 3
NOISE_REPEATS = 3
"""24 sequences (half of them asked one by one): in 100 trials with outputs of dimension 8 the measured sigma was
within 7 % of the true one, with a standard deviation of 3 %."""

DISTINCT_FOR_ROUNDING = 8
"""Fewer different magnitudes than this say nothing of rounding: a layer may answer 0 and 2 exactly. Eight
random float32 values all end in a zero bit with probability 2^-8, in three zero bits with 2^-24."""

DIGITS_DECADES = 0.5
"""Answers that fit both a number of decimals and a number of digits count as digits only if those are coarser
by half a decade on average: a single 1.00 among thousandths fits three digits too, and proves nothing."""
