"""What can be said of a fit whose outputs carry errors: a test of fit, spread of the parameters, claims at the accuracy of the data."""

from attnlearn.solve.noise._bits import bits_in_use, in_half_precision, precision_of
from attnlearn.solve.noise._certify import NoisyCertificate, certify_noisy
from attnlearn.solve.noise._test_of_fit import Fitness, TestOfFit, some_sequences
from attnlearn.solve.noise._unrelated import unrelated

__all__ = [
    "Fitness",
    "NoisyCertificate",
    "TestOfFit",
    "bits_in_use",
    "certify_noisy",
    "in_half_precision",
    "precision_of",
    "some_sequences",
    "unrelated",
]
