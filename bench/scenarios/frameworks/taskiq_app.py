"""What a worker of taskiq runs: an async task that does nothing."""

from __future__ import annotations

import os

from taskiq_redis import RedisStreamBroker

from bench.scenarios.frameworks.working import BROKER, Calls

broker = RedisStreamBroker(url=os.environ[BROKER])
calls = Calls()


@broker.task(task_name="nothing")  # type: ignore[untyped-decorator]
async def nothing(number: int) -> None:
    """Do nothing."""
    calls.one()
