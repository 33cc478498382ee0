"""What a worker of procrastinate runs: an async task that does nothing."""

from __future__ import annotations

import os

import procrastinate

from bench.scenarios.frameworks.working import BROKER, Calls

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ[BROKER]))
calls = Calls()


@app.task(name="nothing")  # type: ignore[untyped-decorator]
async def nothing(number: int) -> None:
    """Do nothing."""
    calls.one()
