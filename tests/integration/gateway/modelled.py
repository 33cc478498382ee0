"""What models of a queue of SQS share: two services over one directory, a clock that the test sets,
and how a model is run."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    run_state_machine_as_test,
)

from cassq.aio.client import Connecting
from cassq.gateway.actions.service import service_of
from tests.integration.gateway.asking import ARN, Asker
from tests.integration.stage import LaterClock, client_on

COUNT_MAX = 3
KEPT_MS = 1_100_000_000  # less than the retention: nothing expires
PICKS = st.integers(0, 1 << 16)  # of what there is, which depends on time
AT = st.integers(0, 1)  # which of the services


class ModelledQueue(RuleBasedStateMachine):
    """Does what clients may do with a queue, and compares.

    name, dead_name: of the queue and of its dead letters. attributes: of both. slack_ms: the clock
    runs on meanwhile, so at the edge of a time the model leaves both open.
    """

    name: ClassVar[str]
    dead_name: ClassVar[str]
    attributes: ClassVar[dict[str, str]] = {}
    slack_ms: ClassVar[int]
    asked: ClassVar[int] = 0  # requests in all runs

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.clock = LaterClock(0)
        self.run = self.runner.run

    @initialize()
    def open(self) -> None:
        directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.askers: list[Asker] = []
        for _ in range(2):
            connecting = Connecting(lambda: client_on(directory, clock=self.clock))
            service = self.run(self.stack.enter_async_context(service_of(connecting)))
            self.askers.append(Asker(service))
        sqs = self.askers[0]
        self.run(sqs.create(self.dead_name, **self.attributes))
        redrive = {"deadLetterTargetArn": f"{ARN}:{self.dead_name}", "maxReceiveCount": COUNT_MAX}
        kept = {"RedrivePolicy": json.dumps(redrive), "MessageRetentionPeriod": "1209600"}
        self.run(sqs.create(self.name, **self.attributes, **kept))

    def now_ms(self) -> int:
        return self.clock.boot_ms()

    def ask(self, at: int, action: str, **parameters: Any) -> dict[str, Any]:
        type(self).asked += 1
        return self.run(self.askers[at].ask(action, self.name, **parameters))

    def pass_time(self, seconds: int) -> None:
        if self.clock.later_ms < KEPT_MS:
            self.clock.later_ms += seconds * 1000 + 2 * self.slack_ms

    def teardown(self) -> None:
        if not hasattr(self, "askers"):
            return
        queue = self.askers[0].service.host.client
        findings = self.run(queue.call(lambda: queue.sync.queue(self.name).audit().findings))
        self.run(self.stack.aclose())
        self.runner.close()
        assert findings == []


def run_model_for(machine: type[ModelledQueue], requests: int) -> None:
    """Run a model until it has made so many requests."""
    machine.asked = 0
    while machine.asked < requests:
        run_model(machine, 20, 100)


def run_model(machine: type[ModelledQueue], examples: int, steps: int) -> None:
    quiet = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(machine, settings=quiet)
