"""Constants of the data package, each with the derivation or the measurement behind it."""

from __future__ import annotations

BLOCK_VALUES = 2**16
"""Values drawn from one counter-based generator. Whoever asks for one example pays for one block, about 1 ms
for Gaussian tokens; larger blocks gained at most a third in throughput on a busy 2-core machine (Gaussian
8 x 32: 36, 37, 50 million values a second at 2^14, 2^16, 2^18) and cost that first example 8 ms."""

SHARD_BYTES = 64 * 2**20
"""Payload after which the writer starts a new shard: what it holds in memory, and the unit that is rewritten
when a later sequence turns out to be longer."""

MAX_MANIFEST_BYTES = 16 * 2**20
"""A manifest line per shard is about 130 bytes, so this is room for 100,000 shards (6 TB at SHARD_BYTES)."""

WORDED = 512
"""Sequences whose tokens are kept as text: a report shows three of them, and those it may show are about a tenth."""

MAX_HEADER_BYTES = 2**20
"""A shard's header names at most three tensors, about 200 bytes; the rest is room for foreign metadata."""

MAX_DEFLATE_RATIO = 1032
"""Deflate cannot expand further than 1032 : 1 (258 bytes a match, two bits each at best)."""

SCAN_BYTES = 8 * 2**20
"""Bytes touched at a time when all data is scanned or hashed: bounded memory, and large enough that the
Python overhead (microseconds) vanishes."""

COVARIANCE_TOLERANCE = 1e-10
"""Relative asymmetry, and relative size of a negative eigenvalue, that rounding may leave in a covariance
(1e-16 times the dimension, with room for a covariance that was itself estimated in float64)."""

ORTHOGONALITY_TOLERANCE = 1e-6
"""Relative error of a Gram matrix that still counts as orthogonal and of equal norm: signals given in
float32 reach about 1e-7 times the square root of the dimension."""

PEEK_VALUES = 4096
"""Values looked at to tell tokens from outputs: attention puts out averages, so 4096 of them that are all
exactly ±1 are no accident, and the look costs microseconds."""

MAX_SIZE = 2**48
"""No count in a manifest may exceed this, the address space of one process: larger ones are not data."""

HIDDEN = -1e4
"""An additive mask this low hides a key in every precision: exp(-1e4) is zero even in float64."""

PLANTED_EXAMPLES = 4096
"""Examples from which the size of a planted teacher's Phi is taken: known to 1 %."""

PLANTED_SHARE = 0.01
"""Least share of the examples that a planted margin may leave: below it a sample costs a hundred times its size."""
