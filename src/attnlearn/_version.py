"""The version of attnlearn, read by the build and by provenance records."""

__version__ = "0.1.0"
