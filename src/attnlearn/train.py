"""Training multi-head attention with guarantees: the public names of `attnlearn.training`.

from attnlearn.train import fit
"""

from attnlearn.training import *  # noqa: F403
from attnlearn.training import __all__ as __all__
