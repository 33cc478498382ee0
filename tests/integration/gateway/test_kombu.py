"""Kombu's own SQS transport against a gateway, unchanged: by itself, and under a Celery worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

import cassq
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.gateway.test_command import endpoint, gateway, home
from tests.integration.worker.processes import Home

__all__ = ["home"]

TASKS = 20
APP = """
from celery import Celery

app = Celery("jobs", broker="sqs://any:any@")
app.conf.broker_transport_options = {
    "region": "us-east-1",
    "visibility_timeout": 60,
    "wait_time_seconds": 5,
}
app.conf.worker_enable_remote_control = False

@app.task(bind=True, max_retries=3)
def note(self, number):
    if number == 7 and self.request.retries < 1:
        raise self.retry(countdown=0)
    with open("noted", "a") as file:
        file.write(f"{number}\\n")
"""


@pytest.fixture
def address(home: Home) -> Iterator[str]:
    """Where a gateway serves."""
    with gateway(home) as process:
        yield endpoint(process)


def connected(address: str) -> Connection:
    place = address.removeprefix("http://")
    options = {
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 5,
        "visibility_timeout": 60,
    }
    return Connection(f"sqs://any:any@{place}", transport_options=options)


@pytest.mark.needs("module:pycurl", "module:boto3")
@pytest.mark.long(reason="starts a gateway")
def test_messages_pass_kombus_transport(address: str, home: Home) -> None:
    with connected(address) as connection, connection.SimpleQueue("letters") as letters:
        for number in range(TASKS):
            letters.put({"number": number})
        found: list[Any] = []
        rejected = False
        while len(found) < TASKS:
            message = letters.get(timeout=DEADLINE_SECONDS)
            if message.payload["number"] == 3 and not rejected:
                message.requeue()
                rejected = True
                continue
            found.append(message.payload["number"])
            message.ack()
        assert sorted(found) == list(range(TASKS))
    with cassq.connect(home.url) as client:
        group = client.queue("letters").stats().groups["default"]
        eventually("all is deleted", lambda: group_left(client) == 0)
        assert group.committed >= 1


def group_left(client: cassq.Client) -> int:
    group = client.queue("letters").stats().groups["default"]
    return group.waiting + group.pending


@pytest.mark.needs("module:pycurl", "module:boto3", "module:celery")
@pytest.mark.long(reason="starts a gateway and a Celery worker")
def test_a_celery_worker_runs_tasks_from_a_gateway(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    environ = {**os.environ, "AWS_ENDPOINT_URL_SQS": address, "PYTHONPATH": str(tmp_path)}
    sending = f"import jobs; [jobs.note.delay(number) for number in range({TASKS})]"
    subprocess.run([sys.executable, "-c", sending], cwd=tmp_path, env=environ, check=True)
    command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "-P", "solo"]
    noted = tmp_path / "noted"

    def numbers() -> list[int]:
        return sorted(map(int, noted.read_text().split())) if noted.exists() else []

    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log) as worker,
    ):
        try:
            eventually("all tasks ran", lambda: len(numbers()) >= TASKS)
        finally:
            worker.terminate()
    assert numbers() == list(range(TASKS)), (tmp_path / "log").read_text()
