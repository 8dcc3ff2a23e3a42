"""The spectral route: phases that find the heads' span in a moment of the data and the heads inside it.

spectral_phases(config)     prepare, moment, count, unmix as (name, function) pairs for the pipeline
Problem, State              what they take and what they build up
"""

from attnlearn.recovery.spectral._assemble import SpectralConfig as SpectralConfig
from attnlearn.recovery.spectral._assemble import spectral_phases as spectral_phases
from attnlearn.recovery.spectral._scale import choose_scale as choose_scale
from attnlearn.recovery.spectral._state import Problem as Problem
from attnlearn.recovery.spectral._state import State as State

__all__ = ["Problem", "SpectralConfig", "State", "choose_scale", "spectral_phases"]
