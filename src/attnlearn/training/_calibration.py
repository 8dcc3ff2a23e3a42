"""Every constant of this package, with the derivation or the measurement that set it."""

from __future__ import annotations

import math

CHUNK_ELEMENTS = 600_000
"""Floats in the temporaries of one chunk (`chunk_shape`). Larger chunks leave the cache, smaller ones pay per call.
Measured on two cores, float32, fastest ms a step at (n,T,d,H) = (100,10,50,8), (500,10,50,64), (200,32,64,16): 1.58,
46.7, 32.5 at 0.3e6; 1.13, 41.4, 28.3 at 0.45e6; 1.07, 40.5, 25.1 at 0.6e6; 1.08, 37.8, 31.0 at 0.8e6; 1.11, 37.0,
30.3 at 1.2e6. What fits into one chunk is not split for the sake of a second thread: at n = 50 and 25 of the first
shape that took 0.78 and 0.49 ms instead of 0.70 and 0.39."""

MOST_SIDE_BY_SIDE = 8
"""Chunks in one pass of the loop at most, because each is compiled anew. A choice: more than two threads were not at
hand."""

CONCURRENT = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_enable_concurrency_optimized_scheduler": True}
"""Options of XLA for the loop of steps: a product stays on one thread, and whatever does not wait for another runs beside
it. The products of a chunk are too small to be shared. Measured on two cores, ms a step at (500,10,50,64) and
(200,32,64,16): 50.5 and 35.0 with one chunk at a time and XLA's own threads, 45.3 and 33.9 with two chunks side by side,
39.0 and 25.4 with these options as well; a run confined to one core takes 66.5 and 44.7."""

QUERY_MULTIPLE = 4
"""The query side of the packed scores is filled with zeros to a multiple of this many coordinates: XLA's product of
one example runs over them, and handles a rest slowly. Measured on one core, 100 products of (72, d) and (d, 10) in
float32: 0.16 ms at d = 48, 0.25 ms at 50, 0.31 ms at 51, 0.18 ms at 52, 0.32 ms at 54."""

SEGMENT_STEPS = 100
"""Steps in one call of the compiled loop; progress, checkpoints and interrupts happen between calls. A choice,
not tuned: the cost of a call has not been measured."""

THIRD_MOMENT = 4 / (3 * math.sqrt(3))
"""Largest third central moment of a variable in [-1, 1]: 8 p (1-p) (1-2p) at its maximum over p, 0.7698."""

RADIUS_FACTOR = math.sqrt(13 / 3)
"""Iterates stay within this many D of the comparator (training theorem)."""

HEADS_FACTOR = 169 / 24
"""sqrt(H) >= HEADS_FACTOR beta2 D^2 makes (beta2 / sqrt H) (13/3) D^2 <= 8/13, which makes the curvature term
of the quasi-convexity inequality at most max(L_k, L*) / 3."""

CURVATURE_ALLOWANCE = 12 / 169
"""s in the realizability radius: under the heads condition (beta2 / sqrt H) D^2 <= 24/169 = 2 s."""

ABSORBED = 0.01
"""Share of the run-verified bound of any steps that may absorb violations of quasi-convexity. A choice: the bound holds whatever the
share is, but a bound made of violations says that the comparator explains nothing."""

HEADS_RATIO = 26 / 3
"""c in sqrt(H) = c beta2 D^2 of the test-loss corollary: C = exp(8.5 / (c - 13/6)) is 3.7 there. It exceeds `HEADS_FACTOR`."""

TRAIN_SHARE = 1 / 8
"""L* of the test-loss corollary as a share of the loss: the training loss is at most 4 L*, half of it (derived)."""

GENERALIZATION_FACTOR = 8.5
"""2 * 17/4: eta sum L_k <= (17/4) D^2, and the stability bound has a factor 2."""

RADII = 48
"""Radii > 0 tried for the comparator theta_0 + radius v, spaced evenly in logarithm; radius 0 is tried as well. A choice,
at least six in a decade: any radius gives a valid bound, and how much a finer grid would tighten it has not been
measured."""

RADIUS_RANGE = (1e-2, 1e3)
"""The least radius in units of 1 over the gradients' root mean square, which is below 1 / margin, and the largest in
units of 1 / margin. A lower end in units of 1 / margin was too large for labels that nothing separates."""

TANGENT_EXAMPLES = 1000
"""Examples of which the tangent kernel is formed at once. Of larger sets the margin is found with working sets of this
many examples. The hard-margin QP costs the cube of this number."""

MARGIN_ROUNDS = 20
"""Working sets tried at most. A choice: the margin that is reported is attained on all examples after any number of
them."""

HOLDING = 1e-6
"""Examples whose share of a direction is at least this share of the largest stay in the working set. A choice: the solver
leaves about 1e-10 on the others."""

MARGIN_TOLERANCE = 1e-3
"""Working sets are exchanged until the margin on all examples is within this share of the margin on the working set,
which no direction exceeds. A choice: three digits are shown."""

MARGIN_RIDGE = 1e-10
"""Added to the diagonal of the scaled kernel (trace n) so that the QP solver's factorization exists. A choice;
the margin reported is computed from the kernel itself, so it is a valid lower bound for any ridge."""

SEPARABLE = 1e-9
"""A hull whose squared distance from 0 is below this share of the mean squared gradient counts as containing 0.
A choice, ten times the ridge: differences below the ridge cannot mean anything."""

SMALLEST_MARGIN = 1e-3
"""The radii of the comparator are in units of 1 / margin, or of 1000 over the gradients' root mean square where
the margin is smaller than that. A choice that keeps the radii finite; not measured."""

ROUNDING_UNITS = 16
"""A descent or quasi-convexity violation below this many rounding units of the terms it is made of counts as
rounding; what it overlooks is still added to the bound. Measured, float32 against float64 at the same weights on
the mixture (T=10, d=32; n=300 with H=8 and 32, n=2000 with H=8; three weight sizes each): loss off by at most 1.15
units, squared gradient norm by 1.59, inner product by 0.04 of ‖grad‖ ‖theta‖. Larger n was not measured."""

MAX_HALVINGS = 12
"""How often step="auto" halves its step after a step that did not descend: 4096 times below the first guess. A
choice."""

DIVERGED = 1e30
"""Distances of the leave-one-out recursion above this count as infinite (float32 holds up to 3e38)."""

LARGEST_TOKEN = 0.25
"""The largest entry of a token, as a power of the largest number of its dtype (1e77 in float64, 4e9 in float32): a score multiplies
two tokens, and its square is still finite."""

RADIUS_ROUNDING = 1e-6
"""A token norm may exceed a given bound R by this share before it is refused: rounding of float32 tokens that were
scaled to the bound (eps 1.2e-7, a norm of a few hundred squares)."""

REPLAYS = 8
"""Leave-one-out runs that are replayed by default."""

ADAM = (0.9, 0.999, 1e-8)
"""Decay rates and epsilon of Adam, its authors' defaults."""

ADAM_STEP = 1e-2
"""Adam's step when none is given."""

NORMALIZED_STEP = 0.1
"""Length of a normalized step when none is given."""

INTERVAL_CONFIDENCE = 0.95
"""Confidence of each held-out interval: Clopper-Pearson for the error, Chernoff for the loss."""

LOSS_CAP = 1.0
"""Without a bound on the loss its lower end is that of min(loss, LOSS_CAP), which is never larger. A choice: any number
gives a valid lower end."""

INFORMATIVE = 0.01
"""A bound says something when it is below the loss at the start and below the loss of guessing by this share. Derivation:
bounds are shown with three digits, so a bound nearer than 0.5 % can look equal; twice that also covers float32 rounding,
16 units of 1.2e-7."""

PLAN_TARGETS = (0.5, 0.1, 0.01)
"""Losses for which a plan predicts the number of steps."""

THEORY_ROUNDS = 5
"""Rounds in which step="theory" and the comparator settle on each other. A choice; convergence is not measured."""

CURVE_POINTS = 400
"""Points of a training curve kept in a result; display data only."""

SWEEP_HEADS = 400
"""Heads of a block of runs that stand side by side. Measured on one core, float32: 1000 runs of 50 steps at
(n,T,d,H) = (30,4,8,4) take 0.36, 0.32, 0.34, 0.34, 0.33 s with 200, 400, 500, 1000, 2000 heads; 64 runs of 20 steps
at (100,10,16,8) 0.44, 0.42, 0.39, 0.44, 0.45 s with 32, 64, 128, 256, 512; 32 runs of 10 steps at (100,10,32,32)
1.1, 1.0, 1.0, 1.1, 1.2, 3.6 s with 32, 64, 128, 256, 512, 1024."""
