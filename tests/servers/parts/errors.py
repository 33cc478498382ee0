"""What can go wrong with a server: it is not to be had here, or it failed although it is."""

from __future__ import annotations


class MissingServerError(Exception):
    """Java, Maven, the download or a right is missing; the message says what to do about it."""


class ServerFailedError(Exception):
    """A server ended, or did not answer in time, although it is installed."""
