"""attnlearn behind other libraries' interfaces."""

from attnlearn.compat._sklearn import MultiHeadAttentionClassifier

__all__ = ["MultiHeadAttentionClassifier"]
