"""Constants of the linear route."""

from __future__ import annotations

# Changes answers

SAME = 1.01
"""A low-rank layer stands for the regression if its select error is at most this many times the regression's, or rounding."""
LOOKS = 10
"""Steps of alternating least squares between two looks at its progress."""
STALLED = 1e-3
"""Alternating least squares stops when `LOOKS` steps shorten the residual by less than this fraction."""
CONVERGED = 1e-14
"""Relative residual of a decomposition that is exact to rounding: the entries are sums of m products."""
CANDIDATES = 4
"""Regressions among which the outputs choose: causal or not, on some or on all fit examples (derived)."""
BLOCKS = 6
"""Most blocks for the population's bound: its factor is (1e-6 / 4) to the power 1 / BLOCKS = 0.08. Each block has to determine the features."""
ROWS_PER_BLOCK = 3
"""Rows per feature that a block has at least, where there are several."""

# Sizes and budgets

ROWS_PER_FEATURE = 8
"""Rows per feature of the first regression. All fit rows follow when its residual is not rounding. Rows of one sequence share G,
so fewer may leave the normal matrix singular."""
CHUNK_BYTES = 2**25
"""Features of one chunk of rows (32 MiB)."""
DEFLATIONS = 12
"""Steps of swap deflation before alternating least squares: each costs an SVD of a (d+1)d x d d_out matrix."""
ALTERNATIONS = 400
"""Most steps of alternating least squares from one start: d = 8 to 16 and m = 1 to 16 heads took 1 to 197."""
STARTS = 6
"""Starts of a decomposition: swap deflation first, then random ones. Heads of rank one need a second one in one case of six."""
POLISHES = 6
"""Most Gauss-Newton steps from an answer in other coordinates: three were enough for tokens of condition number 1,000."""
INNER = 4
"""Most inner steps of one of them, as a multiple of the unknowns."""
DIRECTIONS = 16
"""Random directions a whose matrices M(a) bound the number of heads from below."""
WIDEST = 2
"""Heads that are looked for, as a multiple of the coordinates. Functions that need more are given as many as their D has."""
COPIES = 5
"""Matrices of P x P that are alive at once: normal matrix, block, eigenvectors and LAPACK's workspace."""
SCALE_SEQUENCES = 2_000
"""Fit sequences from which scales are taken."""
MEMORY_MOST = 8 * 10**9
"""Bytes that a run may take where no `memory` is given: d = 24 needs 2.5 GB, d = 32 12 GB."""
