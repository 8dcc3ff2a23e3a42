"""Where examples come from: data models to sample, recorded activations to stream, torch models to record.

    data.Boolean(tokens, dim), data.Gaussian(tokens, dim, mean, covariance), data.TokenizedMixture(tokens, dim)
    data.Recorded(path), data.RecordedWriter(folder), data.as_examples(x, y)
    data.attention_blocks(model), data.record(model, module, batches, folder)

Only the last two need torch, and import it when called.
"""

from attnlearn.data._base import DataModel as DataModel
from attnlearn.data._boolean import Boolean as Boolean
from attnlearn.data._gaussian import Gaussian as Gaussian
from attnlearn.data._mixture import TokenizedMixture as TokenizedMixture

__all__ = ["Boolean", "DataModel", "Gaussian", "TokenizedMixture"]
