"""The broker and the results backend for Dramatiq: `Broker("file:cassq-data")`."""

from __future__ import annotations

from cassq.dramatiq.broker import Broker
from cassq.dramatiq.results import Results

__all__ = ["Broker", "Results"]
