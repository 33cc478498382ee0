"""What workers of Celery run: a task that does nothing."""

from __future__ import annotations

import os

import celery

import cassq.celery
from bench.scenarios.frameworks.working import BROKER, RESULTS, Calls

assert cassq.celery


def made(broker: str, results: str | None) -> celery.Celery:
    """An app at a broker, with the task `nothing`."""
    app = celery.Celery("bench", broker=broker, backend=results, set_as_current=False)
    app.conf.broker_connection_retry_on_startup = True
    app.conf.task_ignore_result = results is None
    calls = Calls()

    @app.task(name="nothing", shared=False)  # type: ignore[untyped-decorator]
    def nothing(number: int) -> int:
        """Do nothing."""
        calls.one()
        return number

    return app


if BROKER in os.environ:
    app = made(os.environ[BROKER], os.environ.get(RESULTS))
