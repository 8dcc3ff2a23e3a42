"""Whole models: every attention block recovered or made smaller in turn, put back, and the model compared with itself."""

from attnlearn.whole._compress_model import SmallerBlock, SmallerModel, compress_model
from attnlearn.whole._put_back import outputs_of, with_blocks
from attnlearn.whole._recover_model import BlockResult, WholeModel, recover_model

__all__ = [
    "BlockResult",
    "SmallerBlock",
    "SmallerModel",
    "WholeModel",
    "compress_model",
    "outputs_of",
    "recover_model",
    "with_blocks",
]
