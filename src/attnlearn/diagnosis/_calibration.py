"""Constants of the diagnosis, with the derivation or the measurement that set them."""

from __future__ import annotations

# --- what is looked at -----------------------------------------------------------------------------------
TOKENS = 8
"""Tokens a sequence when only a layer is given."""
SEQUENCES = 4_096
"""Sequences on which a layer is measured."""
MOST_SEQUENCES = 20_000
"""Sequences of given data that are looked at; floors are extrapolated from them."""
PATTERN_SEQUENCES = 1_024
"""Sequences on which attention patterns are averaged: means over 1,024 sequences are right to a few per cent."""
IDENTIFY_SEQUENCES = 1_000
"""Sequences for the certificate of the true layer itself: enough for the Jacobian (512) and for C1 at 98 %."""

# --- what the theory wants -------------------------------------------------------------------------------
# [CL] asks for effective ranks "large", incoherence "small", norms "not tiny", without numbers for finite sizes. The
# numbers below mark where the learners of this package begin to care; the advice rests on computed needs, not on them.
SCORES_LEAST = 0.05
"""Standard deviation of the weakest head's scores. Refine works in float32 products: of random layers (d = 8, k = 4,
m = 3) those with 0.026 ended BELOW_NOISE_FLOOR, those with 0.087 were certified."""
INDEPENDENCE = 0.05
"""Smallest singular value of the heads' unit vectors (Theta_i, c_i), and of the W_i; 1 when they are orthogonal."""
CONDITION = 1e3
"""Condition number of a W, or of their sum, on its own rank: refine's products in float32 resolve its square, 1e6."""
ONE_HOT = 0.99
"""Weight of the first key above which a row counts as saturated."""
SATURATED = 0.9
"""Share of saturated rows above which hardly any row shows a score."""

# --- what the routes need --------------------------------------------------------------------------------
LARGEST_NEED = 1_000_000
"""More examples than this are called out of reach when only a layer is given."""
SEEN_AT = 0.95
"""Expected value of the weakest head over the floor from which on the spectral route is expected to succeed: by a guess of
the count that the fit proves, if not by sight. The smallest numbers of examples that were enough correspond to 0.8 to 0.9
(d = 52 to 128, m = 2 to 12, five layers, to within a tenth or two)."""
HIDDEN = 2
"""Heads that need not be seen, because growing the answer finds them: two of three with parallel W, one of three that is
flat or nearly so, in 13 of 13 layers (d = 12); the last three of eight (d = 5) in two of two."""
HIDDEN_EFFECT = 0.05
"""Relative distance of two heads below which the one that is missing leaves so little that it passes for noise: at 0.1 close
heads were found, at 0.01 they ended BELOW_NOISE_FLOOR (d = 8, m = 3). A faint head is found however faint, because the
moment of what the others leave shows it: certified at relative sizes 0.01 (d = 8, m = 3) and 0.001 (d = 6, m = 2)."""
IMPOSSIBLE = 1e12
"""Examples beyond which the weakest value is the rounding of a zero, and no number suffices."""
SCULPT_SEQUENCES = 16_384
"""Sequences in which agreeing rows are counted."""
SCULPT_NUMBERS = 2**20
"""Numbers for each of half a dozen arrays over the pairs of tokens of the rows that are looked at together."""
SCULPT_HEADS = 3
"""Heads up to which sculpting was seen to end; the yield falls by two orders of magnitude with each."""
QUERIES_APART = 0.03
"""Relative distance of the closest two heads: at 0.1 `extract` recovered them, at 0.01 it did not (d = 8, m = 3)."""
QUERIES_PARALLEL = 0.999
QUERIES_SEARCHED = 9
QUERIES_INDEPENDENT = 1e-6
"""Heads whose W have such a cosine, or that outnumber the outputs, are searched for together. `extract` certified two of
three and of four heads with parallel W (d = 8), three and five that all write alike (d = 8), 5, 6 and 9 heads with 3, 4
and 6 outputs, a parity of two bits. It did not find a parity of four bits, whose four score matrices span two dimensions."""
QUERIES_STRONG = 30.0
"""Largest singular value of a Theta above which heads that are searched for together are found but not certified: parities
of two bits (52) left errors of 8e-13 and 1e-12 where 3e-13 counts as exact, a square wave (122) 1e-11; at 2 all were."""
MODERATE_SCORES = 0.5, 4.0
"""Standard deviations of scores at which a Jacobian at the tokens given says the same as one at the scale of queries."""
NOISE_SEQUENCES = 28
"""Sequences with which `extract` measures noise (24) and finds out whether the layer is causal (4)."""
