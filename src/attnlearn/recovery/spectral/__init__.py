"""The spectral route: phases that find the heads' span in a moment of the data and the heads inside it.

PHASES                      prepare, moment, count, unmix as (name, function) pairs for the pipeline
Problem, State              what they take and what they build up
"""

from attnlearn.recovery.spectral._assemble import PHASES as PHASES
from attnlearn.recovery.spectral._state import Problem as Problem
from attnlearn.recovery.spectral._state import State as State

__all__ = ["PHASES", "Problem", "State"]
