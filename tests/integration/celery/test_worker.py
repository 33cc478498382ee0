"""What Celery's user guide shows, run by one worker with two processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError, TimeLimitExceeded, TimeoutError

from cassq.celery.results import Backend
from cassq.kombu.brokers import broker_of
from tests.integration.celery import tasks
from tests.integration.celery.tasks import add, app, echo, total
from tests.integration.celery.workers import WorkerProcess, commanded, get, home, place
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

__all__ = ["home", "place"]

pytestmark = [
    pytest.mark.embedded_only(reason="the worker's command opens a directory"),
    pytest.mark.xdist_group("celery"),
]


@pytest.fixture(scope="module")
def worker(place: str, home: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess(place, home / "log", "--concurrency", "2", "--task-events") as started:
        yield started.ready()
        assert started.stop() == 0, started.log


def test_canvas(worker: WorkerProcess) -> None:
    assert get(echo.delay({"a": [1, None, "ä"]})) == {"a": [1, None, "ä"]}
    assert get(chain(add.s(1, 2), add.s(3), add.s(4))()) == 10
    assert get(group(add.s(i, i) for i in range(10))()) == [2 * i for i in range(10)]
    assert get(chord((add.s(i, i) for i in range(10)), total.s())()) == 90
    assert get(chord([add.s(1, 1)], total.s())()) == 2
    nested = [group(add.s(1, 1), add.s(2, 2)), chain(add.s(1, 1), add.s(1))]
    assert get(chord(nested, total.s())()) == 9
    assert get(chord([chord([add.s(1, 1)], total.s()), add.s(1, 2)], total.s())()) == 5
    assert get(total.map([[1], [2, 3]]).delay()) == [1, 5]
    assert get(add.starmap([(1, 1), (2, 2)]).delay()) == [2, 4]
    chunked = get(add.chunks(zip(range(10), range(10), strict=True), 5)())
    assert chunked == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]
    assert get((add.s(1, 1) | group(add.s(1), add.s(2)) | total.s())()) == 7


def test_failures_are_raised_and_call_what_was_linked(worker: WorkerProcess) -> None:
    with pytest.raises(ValueError, match="no such address"):
        get(tasks.fail.delay())
    with pytest.raises((ChordError, ValueError), match="no such address"):
        get(chord([add.s(1, 1), tasks.fail.s()], total.s())())
    result = echo.apply_async((3,), link=add.s(4))
    assert get(result) == 3
    eventually("the linked task is done", lambda: result.children and result.children[0].ready())
    assert get(result.children[0]) == 7


def test_retries_rejections_and_limits(worker: WorkerProcess, place: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    assert get(tasks.third_time.delay()) == 2
    assert get(tasks.rejects.delay(str(journal), True)) == "again"
    tasks.rejects.delay(str(journal), False)
    letters = broker_of(place).client.queue("celery").dead_letters()
    eventually("it is a dead letter", lambda: len(letters.peek()) == 1)
    assert journal.read_text().count("called") == 3
    assert get(tasks.too_long.delay()) == "soft"
    with pytest.raises(TimeLimitExceeded):
        get(tasks.hangs.delay())
    for _ in range(5):
        tasks.slowly.delay(str(tmp_path / "rate"))
    rated = tmp_path / "rate"
    eventually("all ran", lambda: rated.exists() and rated.read_text().count("called") == 5)


def test_routes_serialisers_and_priorities(worker: WorkerProcess, place: str) -> None:
    assert get(tasks.send.delay("ann")) == "ann"
    assert broker_of(place).client.queue("mails").stats().pushed == 1
    assert get(total.apply_async(({1, 2},), serializer="pickle")) == 3
    assert get(echo.apply_async((1,), serializer="msgpack", priority=9)) == 1
    assert get(echo.apply_async((1,), compression="zlib", queue="mails")) == 1


def test_a_task_with_a_countdown_waits_in_its_queue(worker: WorkerProcess, place: str) -> None:
    assert get(echo.apply_async((1,), countdown=0.1)) == 1
    result = echo.apply_async((2,), countdown=3600)
    stats = broker_of(place).client.queue("celery").stats().groups["default"]
    assert stats.delayed == 1
    (scheduled,) = app.control.inspect(["one@test"], timeout=DEADLINE_SECONDS).scheduled().values()
    assert scheduled == []
    result.revoke()
    stats = broker_of(place).client.queue("celery").stats().groups["default"]
    assert stats.delayed == 0


def test_remote_control(worker: WorkerProcess, tmp_path: Path) -> None:
    inspect = app.control.inspect(["one@test"], timeout=DEADLINE_SECONDS)
    assert inspect.ping() == {"one@test": {"ok": "pong"}}
    assert "tests.integration.celery.tasks.add" in inspect.registered()["one@test"]
    assert {queue["name"] for queue in inspect.active_queues()["one@test"]} == {"celery", "mails"}
    to_worker: dict[str, Any] = {
        "destination": ["one@test"],
        "reply": True,
        "timeout": DEADLINE_SECONDS,
    }
    gate = tmp_path / "gate"
    result = tasks.waits.delay(str(tmp_path / "journal"), str(gate))
    eventually("it runs", (tmp_path / "journal").exists)
    (active,) = inspect.active()["one@test"]
    assert active["id"] == result.id
    result.revoke(terminate=True, signal="SIGKILL")
    with pytest.raises(TaskRevokedError):
        get(result)
    app.control.cancel_consumer("mails", **to_worker)
    assert {queue["name"] for queue in inspect.active_queues()["one@test"]} == {"celery"}
    app.control.add_consumer("mails", **to_worker)
    assert get(tasks.send.delay("bo")) == "bo"


def test_events_reach_a_monitor(worker: WorkerProcess) -> None:
    seen: set[str] = set()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda e: seen.add(e["type"])})
        with receiver.consumer_context() as (listening, _, _):
            result = echo.delay(1)

            def complete() -> bool:
                try:
                    listening.drain_events(timeout=0.05)
                except OSError:  # kombu's timeout, for which Celery has another class
                    return False
                return {"task-received", "task-started", "task-succeeded"} <= seen

            eventually("its events come", complete)
            assert get(result) == 1


def test_results_end_and_can_be_forgotten(worker: WorkerProcess) -> None:
    result = echo.delay(1)
    assert get(result) == 1
    result.forget()
    assert result.state == "PENDING"
    backend = app.backend
    backend.set("some", b"1")
    backend.expire("some", 0.001)
    eventually("it has ended", lambda: backend.get("some") is None)
    with pytest.raises(TimeoutError):
        app.AsyncResult("unknown").get(timeout=0.01)
    with pytest.raises(TimeoutError):
        app.GroupResult("g", [app.AsyncResult("unknown")]).get(timeout=0.01)


def test_the_commands_of_celery(worker: WorkerProcess, place: str) -> None:
    echo.apply_async((1,), countdown=3600)

    shown = commanded(place, "cassq")
    assert "celery" in shown
    assert len({len(line) for line in shown.splitlines()}) == 1, "long names break no column"
    assert "Purged 1 message" in commanded(place, "purge", "-f", "-Q", "celery")


def test_the_report_names_the_url_without_its_password() -> None:
    found = Backend(url="cassandra://me:secret@host/space", app=app)
    assert found.as_uri() == "cassq+cassandra://me:**@host/space"
