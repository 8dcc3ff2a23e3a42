"""Learn multi-head attention layers from examples or queries, and certify what was learned.

    solution = attnlearn.recover(x, y)     # random examples
    solution = attnlearn.extract(oracle)   # chosen queries
    solution = attnlearn.train.fit(x, labels, num_heads=8)

Everything is imported on first use, so that `import attnlearn` and `attnlearn --help` answer at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attnlearn._version import __version__

if TYPE_CHECKING:  # every name again, so that editors know its type
    from attnlearn import convert as convert
    from attnlearn import data as data
    from attnlearn import hard as hard
    from attnlearn import oracle as oracle
    from attnlearn import train as train
    from attnlearn._canonical import Support as Support
    from attnlearn._certificate import Certificate as Certificate
    from attnlearn._certificate import Check as Check
    from attnlearn._certificate import Claim as Claim
    from attnlearn._certificate import Status as Status
    from attnlearn._distance import Distance as Distance
    from attnlearn._distance import distance as distance
    from attnlearn._errors import AttnlearnError as AttnlearnError
    from attnlearn._errors import NotEstablished as NotEstablished
    from attnlearn._errors import OracleError as OracleError
    from attnlearn._layer import AttentionLayer as AttentionLayer
    from attnlearn._linear import LinearAttentionLayer as LinearAttentionLayer
    from attnlearn._outcome import Outcome as Outcome
    from attnlearn._result import Phase as Phase
    from attnlearn._result import Solution as Solution
    from attnlearn.comparison import Comparison as Comparison
    from attnlearn.comparison import certify as certify
    from attnlearn.comparison import compare as compare
    from attnlearn.compat import MultiHeadAttentionClassifier as MultiHeadAttentionClassifier
    from attnlearn.compression import CompressConfig as CompressConfig
    from attnlearn.compression import compress as compress
    from attnlearn.convert._safetensors import load as load
    from attnlearn.diagnosis import Conditions as Conditions
    from attnlearn.diagnosis import conditions as conditions
    from attnlearn.extraction import ExtractConfig as ExtractConfig
    from attnlearn.extraction import Leak as Leak
    from attnlearn.extraction import extract as extract
    from attnlearn.extraction import leak as leak
    from attnlearn.recovery import Explanation as Explanation
    from attnlearn.recovery import SpectralConfig as SpectralConfig
    from attnlearn.recovery import explain as explain
    from attnlearn.recovery import recover as recover
    from attnlearn.recovery.linear import LinearConfig as LinearConfig
    from attnlearn.recovery.sculpt import SculptConfig as SculptConfig
    from attnlearn.reporting import report as report

_EXPORTS = {
    "AttentionLayer": "attnlearn._layer",
    "AttnlearnError": "attnlearn._errors",
    "Certificate": "attnlearn._certificate",
    "Check": "attnlearn._certificate",
    "Claim": "attnlearn._certificate",
    "Comparison": "attnlearn.comparison",
    "CompressConfig": "attnlearn.compression",
    "Conditions": "attnlearn.diagnosis",
    "Distance": "attnlearn._distance",
    "Explanation": "attnlearn.recovery",
    "ExtractConfig": "attnlearn.extraction",
    "Leak": "attnlearn.extraction",
    "LinearAttentionLayer": "attnlearn._linear",
    "LinearConfig": "attnlearn.recovery.linear",
    "MultiHeadAttentionClassifier": "attnlearn.compat",
    "NotEstablished": "attnlearn._errors",
    "OracleError": "attnlearn._errors",
    "Outcome": "attnlearn._outcome",
    "Phase": "attnlearn._result",
    "SculptConfig": "attnlearn.recovery.sculpt",
    "Solution": "attnlearn._result",
    "SpectralConfig": "attnlearn.recovery",
    "Status": "attnlearn._certificate",
    "Support": "attnlearn._canonical",
    "certify": "attnlearn.comparison",
    "compare": "attnlearn.comparison",
    "compress": "attnlearn.compression",
    "conditions": "attnlearn.diagnosis",
    "distance": "attnlearn._distance",
    "explain": "attnlearn.recovery",
    "extract": "attnlearn.extraction",
    "leak": "attnlearn.extraction",
    "load": "attnlearn.convert._safetensors",
    "recover": "attnlearn.recovery",
    "report": "attnlearn.reporting",
}
_MODULES = ("convert", "data", "hard", "oracle", "train")

__all__ = ["__version__", *sorted([*_EXPORTS, *_MODULES])]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"attnlearn.{name}")
    else:
        raise AttributeError(f"module 'attnlearn' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
