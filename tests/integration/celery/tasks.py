"""The app of the tests: its tasks do what the tests of Celery's user guide need."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import celery
from celery.exceptions import Reject, SoftTimeLimitExceeded
from celery.schedules import crontab
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.serialization import register

import cassq.celery

assert cassq.celery

URL = os.environ.get("CASSQ_TEST_URL", "file:cassq-data")

register(
    "reversed",
    lambda value: json.dumps(value)[::-1],
    lambda text: json.loads(text[::-1]),
    content_type="application/x-reversed",
    content_encoding="utf-8",
)
app = celery.Celery("tests.integration.celery.tasks", broker=f"cassq+{URL}", backend=f"cassq+{URL}")
# Each worker has a queue of its own for these, if it is asked to.
broadcast = [Broadcast("everyone")] if "CASSQ_TEST_BROADCAST" in os.environ else []
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("CASSQ_TEST_TRANSPORT", "{}")),
    task_queues=[
        Queue("celery"),
        Queue("mails", Exchange("mails", "topic"), routing_key="mail.#"),
        *broadcast,
    ],
    task_default_queue="celery",
    task_routes={"mails.*": {"exchange": "mails", "routing_key": "mail.out"}},
    accept_content=["json", "pickle", "msgpack", "reversed"],
    beat_schedule={
        "often": {"task": f"{__name__}.echo", "schedule": 0.1, "args": ("tick",)},
        "rarely": {
            "task": f"{__name__}.fail",
            "schedule": crontab(month_of_year="2", day_of_month="29"),
        },
    },
    worker_max_tasks_per_child=10_000,
)


def note(path: str, line: object) -> None:
    """Append a line, in one write."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


@app.task
def echo(value: Any = None) -> Any:
    return value


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def fail() -> None:
    raise ValueError("no such address")


@app.task(bind=True, max_retries=3)
def third_time(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.01)
    return int(self.request.retries)


@app.task(bind=True, acks_late=True)
def rejects(self: Any, path: str, requeue: bool) -> str:
    note(path, "called")
    if not self.request.delivery_info["redelivered"]:
        raise Reject("not now", requeue=requeue)
    return "again"


@app.task(soft_time_limit=0.3)
def too_long() -> str:
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "soft"


@app.task(time_limit=0.5)
def hangs() -> None:
    while True:
        time.sleep(0.01)


@app.task(bind=True, autoretry_for=(KeyError,), retry_backoff=True, retry_jitter=False)
def flaky(self: Any) -> int:
    if not self.request.retries:
        raise KeyError("not yet")
    return int(self.request.retries)


@app.task(bind=True)
def progresses(self: Any, gate: str) -> str:
    self.update_state(state="PROGRESS", meta={"done": 3})
    while not Path(gate).exists():
        time.sleep(0.01)
    return "done"


@app.task(bind=True)
def replaced(self: Any, number: int) -> Any:
    raise self.replace(add.s(number, 1))


@app.task
def unkept() -> Any:
    return object()


@app.task(rate_limit="100/s")
def slowly(path: str) -> None:
    note(path, "called")


@app.task(name="mails.send")
def send(to: str) -> str:
    return to


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def waits(self: Any, path: str, gate: str) -> int:
    """Runs until there is a file at `gate`."""
    note(path, f"{os.getpid()} {self.request.delivery_info['redelivered']}")
    while not Path(gate).exists():
        time.sleep(0.01)
    return os.getpid()


@app.task(acks_late=True)
def marks(path: str, number: int) -> None:
    note(path, number)


@app.task(acks_late=True, reject_on_worker_lost=True)
def poison(path: str) -> None:
    note(path, "called")
    os.kill(os.getpid(), 9)
