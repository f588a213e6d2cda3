"""The version, which pyproject.toml repeats; a test compares the two."""

__version__ = "0.1.0"
