"""Running things: one ordered map, checkpoints, progress, the pipeline of phases, and the scaffold of every learner. Knows no
mathematics.
"""

from attnlearn.engine._checkpoint import Checkpoint, CheckpointError, CheckpointWarning, array_hash
from attnlearn.engine._encode import storable
from attnlearn.engine._failure import EngineError
from attnlearn.engine._learner import Learner, Options, handed_over, learn
from attnlearn.engine._map import Engine, blocks
from attnlearn.engine._pipeline import PhaseFailed, Record, Run, Stop, Tools, run_phases
from attnlearn.engine._progress import Progress

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointWarning",
    "Engine",
    "EngineError",
    "Learner",
    "Options",
    "PhaseFailed",
    "Progress",
    "Record",
    "Run",
    "Stop",
    "Tools",
    "array_hash",
    "blocks",
    "handed_over",
    "learn",
    "run_phases",
    "storable",
]
