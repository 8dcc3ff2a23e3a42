"""Training multi-head attention with guarantees; public as `attnlearn.train`.

`plan` says what the theory predicts, `fit` trains and certifies, `fit_many` sweeps seeds and head counts,
`loss_and_gradient` is the closed form. The bounds are in `bounds`, proved in docs/guarantees.md. The package needs the extra
`train`, and says so where it is imported without.
"""

from attnlearn._extras import require_extra

require_extra("attnlearn.train", "train")

from attnlearn.training import _bounds as bounds
from attnlearn.training._fit import fit
from attnlearn.training._gradient import loss_and_gradient
from attnlearn.training._model import AttentionModel, Model, Weights
from attnlearn.training._plan import Plan, Target, plan
from attnlearn.training._problem import TrainConfig
from attnlearn.training._readout import ReadoutModel
from attnlearn.training._sweep import Sweep, fit_many
from attnlearn.training._trained import TrainedClassifier

__all__ = [
    "AttentionModel",
    "Model",
    "Plan",
    "ReadoutModel",
    "Sweep",
    "Target",
    "TrainConfig",
    "TrainedClassifier",
    "Weights",
    "bounds",
    "fit",
    "fit_many",
    "loss_and_gradient",
    "plan",
]
