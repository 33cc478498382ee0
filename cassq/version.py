"""The version of this package: its only place."""

__version__ = "0.1.0"
