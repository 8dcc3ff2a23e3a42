"""Where examples come from: data models to sample, recorded activations to stream, torch models to record.

    data.Boolean(tokens, dim), data.Gaussian(tokens, dim, mean, covariance), data.TokenizedMixture(tokens, dim),
    data.Planted(tokens, dim)
    data.Recorded(path), data.RecordedWriter(folder), data.as_examples(x, y)
    data.attention_blocks(model), data.record(model, module, batches, folder)

Only the last two need torch, and import it when called.
"""

from attnlearn.data._base import DataModel as DataModel
from attnlearn.data._blocks import Block as Block
from attnlearn.data._blocks import attention_blocks as attention_blocks
from attnlearn.data._boolean import Boolean as Boolean
from attnlearn.data._examples import Chunk as Chunk
from attnlearn.data._examples import Examples as Examples
from attnlearn.data._gaussian import Gaussian as Gaussian
from attnlearn.data._intake import as_examples as as_examples
from attnlearn.data._mixture import TokenizedMixture as TokenizedMixture
from attnlearn.data._planted import Planted as Planted
from attnlearn.data._record import record as record
from attnlearn.data._recorded import Recorded as Recorded
from attnlearn.data._writer import RecordedWriter as RecordedWriter

__all__ = [
    "Block",
    "Boolean",
    "Chunk",
    "DataModel",
    "Examples",
    "Gaussian",
    "Planted",
    "Recorded",
    "RecordedWriter",
    "TokenizedMixture",
    "as_examples",
    "attention_blocks",
    "record",
]
