"""Extraction: a layer from answers to chosen queries, one file per phase."""

from attnlearn.extraction._extract import extract
from attnlearn.extraction._leak import Leak, leak
from attnlearn.extraction._state import ExtractConfig

__all__ = ["ExtractConfig", "Leak", "extract", "leak"]
