"""attnlearn behind other libraries' interfaces."""

from attnlearn._extras import require_extra

require_extra("MultiHeadAttentionClassifier", "sklearn")

from attnlearn.compat._sklearn import MultiHeadAttentionClassifier

__all__ = ["MultiHeadAttentionClassifier"]
