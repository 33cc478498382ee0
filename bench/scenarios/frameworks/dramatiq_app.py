"""What a worker of Dramatiq runs: an actor that does nothing."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.scenarios.frameworks.working import BROKER, Calls

dramatiq.set_broker(RedisBroker(url=os.environ[BROKER]))
calls = Calls()


@dramatiq.actor  # type: ignore[untyped-decorator]
def nothing(number: int) -> None:
    """Do nothing."""
    calls.one()
