"""Limits of the search for layers with positions, with the measurement behind each (d = 12 and 32, two and four heads of width 8, base
1e4, 16 tokens, causal)."""

ROUGH_STEPS, ROUGH_INNER = 24, 40
"""Steps and inner steps of the wide fit. Six heads for four in 32 dimensions leave 1.4 % of the outputs after that many, three for two in
twelve 2 and 6 %: enough for the cost of a drop to tell which heads are needed."""
FINE_STEPS, FINE_INNER = 12, 120
"""Steps of the fit without needless heads, before orientations are tried. From there a fit in the right piece is exact or nearly so; in the
wrong one more steps are wasted (40 of them took 30 of 44 CPU seconds)."""
TURN_STEPS = 6
"""Steps after a pair was conjugated: the error falls by a third or more within four of them when that was right."""
LAST_STEPS = 40
"""Steps of the last fit. From 1 % off along slow frequencies eight were enough."""
HOPELESS = 0.3
"""Select error of a wide fit above which another start is tried: local optima leave 0.6."""
NEARLY = 0.03
"""Select error below which orientations are tried: a wrong one leaves 1e-3 to 1e-2."""
