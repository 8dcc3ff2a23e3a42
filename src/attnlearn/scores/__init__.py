"""How a head scores a pair of tokens: one small protocol, and one file for each member.

Softmax, values, the elimination of W, Gauss-Newton and the certificate know the protocol (`_protocol`) and no member.
"""

from attnlearn.scores._bilinear import Bilinear
from attnlearn.scores._capped import Capped
from attnlearn.scores._frequencies import Frequencies, frequencies, frequencies_of
from attnlearn.scores._kinds import blurred, build, describe, words
from attnlearn.scores._normalised import Normalised
from attnlearn.scores._offsets import Offsets, alibi_slopes
from attnlearn.scores._protocol import Curvature, Held, Preconditioner, Scores, Shown
from attnlearn.scores._relative import Relative
from attnlearn.scores._rotary import Rotary
from attnlearn.scores._rotation import Rotation
from attnlearn.scores._sinks import Sinks
from attnlearn.scores._visible import Visible, as_visible, value_directions

__all__ = [
    "Bilinear",
    "Capped",
    "Curvature",
    "Frequencies",
    "Held",
    "Normalised",
    "Offsets",
    "Preconditioner",
    "Relative",
    "Rotary",
    "Rotation",
    "Scores",
    "Shown",
    "Sinks",
    "Visible",
    "alibi_slopes",
    "as_visible",
    "blurred",
    "build",
    "describe",
    "frequencies",
    "frequencies_of",
    "value_directions",
    "words",
]
