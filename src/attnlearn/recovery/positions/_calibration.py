"""Limits of the search for layers with positions, with the measurement behind each (d = 12 and 32, two and four heads of width 8, base
1e4, 16 tokens, causal)."""

WIDTHS = (4, 8, 16, 32, 64, 128)
"""Widths of rotary heads that are tried."""
HEADS_MOST = 16
"""Heads that share the directions of the tokens at most: narrower ones are not tried. Models in 64 to 576 dimensions have 4 to 12."""
ROUGH_STEPS, ROUGH_INNER = 24, 40
"""Steps and inner steps of the wide fit. Six heads for four in 32 dimensions leave 1.4 % of the outputs after that many, three for two in
twelve 2 and 6 %: enough for the cost of a drop to tell which heads are needed."""
FINE_STEPS, FINE_INNER = 4, 120
"""Steps of one round of the fit without needless heads. In the right piece it is exact after one to three rounds."""
GAINED = 0.7
"""Error of a round relative to the one before, above which orientations are tried: in the wrong piece errors stay at 1e-3."""
TURN_STEPS = 2
"""Steps after a pair was conjugated. When that was right, the error falls by the share of this head: tenfold if it is the last one."""
ROUNDS = 2
"""Rounds over all heads: what is left after the first shows clearly in the second."""
HOPELESS = 0.3
"""Select error of a wide fit above which another start is tried: local optima leave 0.6."""
NEARLY = 0.03
"""Select error below which orientations are tried: a wrong one leaves 1e-3 to 1e-2."""
RIGHT = 0.003
"""Select error of the first round below which no other kind is tried: a wrong base left 0.01 to 0.06, the right one less than 0.002."""
STARTS = 2
"""Random starts of every family where the signals chose it, a limit of time; where the caller did, there are as many as of any search."""
