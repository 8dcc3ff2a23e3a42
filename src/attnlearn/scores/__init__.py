"""How a head scores a pair of tokens: one small protocol, and one file for each member.

Softmax, values, the elimination of W, Gauss-Newton and the certificate know the protocol (`_protocol`) and no member.
"""

from attnlearn.scores._bilinear import Bilinear
from attnlearn.scores._protocol import Preconditioner, Scores, Shown

__all__ = ["Bilinear", "Preconditioner", "Scores", "Shown"]
