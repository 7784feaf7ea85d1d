"""The version of the package; the build reads it from here, so that it stands in one place."""

__version__ = "0.1.0"
