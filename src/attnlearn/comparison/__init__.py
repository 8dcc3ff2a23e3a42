"""Two layers side by side: how far their weights are apart, and a certificate of how far their outputs are."""

from attnlearn.comparison._certify import certify
from attnlearn.comparison._compare import Comparison, compare

__all__ = ["Comparison", "certify", "compare"]
