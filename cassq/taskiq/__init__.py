"""The broker for taskiq: `Broker("file:cassq-data")`."""

from __future__ import annotations

from cassq.taskiq.broker import Broker

__all__ = ["Broker"]
