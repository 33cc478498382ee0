"""More of what Celery's user guide shows: calling, canvas, results, control and commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import StampingVisitor
from celery.exceptions import TaskRevokedError
from kombu.exceptions import EncodeError

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
    with WorkerProcess(place, home / "log", "--autoscale", "4,2", "--task-events") as started:
        yield started.ready()
        assert started.stop() == 0, started.log


def dead(place: str) -> Any:
    return broker_of(place).client.queue("celery").dead_letters()


@pytest.fixture
def inspect(worker: WorkerProcess) -> Any:
    return app.control.inspect(["one@test"], timeout=DEADLINE_SECONDS)


@pytest.fixture
def to_worker(worker: WorkerProcess) -> dict[str, Any]:
    return {"destination": ["one@test"], "reply": True, "timeout": DEADLINE_SECONDS}


# --- calling --------------------------------------------------------------------------------------


def test_signatures_are_immutable_linked_and_called_on_errors(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    assert get(chain(add.s(1, 1), echo.si(5))()) == 5
    journal = tmp_path / "journal"
    tasks.fail.apply_async(link_error=tasks.slowly.si(str(journal)))
    eventually("the error is noted", journal.exists)


def test_a_task_that_has_expired_is_not_run(worker: WorkerProcess) -> None:
    with pytest.raises(TaskRevokedError):
        get(echo.apply_async((1,), expires=-1))


def test_a_result_that_is_ignored_is_not_kept(worker: WorkerProcess, tmp_path: Path) -> None:
    # What is linked is called after a result would have been kept.
    linked = tasks.slowly.si(str(tmp_path / "journal"))
    ignored = echo.apply_async((1,), ignore_result=True, link=linked)
    eventually("it has run", (tmp_path / "journal").exists)
    assert app.AsyncResult(ignored.id).state == "PENDING"


def test_a_failed_task_is_tried_again_by_itself(worker: WorkerProcess) -> None:
    assert get(tasks.flaky.delay()) == 1


def test_a_serialiser_of_ones_own(worker: WorkerProcess) -> None:
    assert get(echo.apply_async(({"a": "ä"},), serializer="reversed")) == {"a": "ä"}


def test_a_router_chooses_the_queue(worker: WorkerProcess, place: str) -> None:
    def route(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
        return {"queue": "mails"} if name.endswith(".echo") else None

    before = app.conf.task_routes
    app.conf.task_routes = (route,)
    app.amqp.flush_routes()
    app.amqp.__dict__.pop("router", None)
    try:
        assert get(echo.delay("routed")) == "routed"
    finally:
        app.conf.task_routes = before
        app.amqp.flush_routes()
        app.amqp.__dict__.pop("router", None)
    assert broker_of(place).client.queue("mails").stats().pushed == 1


# --- canvas and results ---------------------------------------------------------------------------


def test_tasks_replace_themselves_in_chords_too(worker: WorkerProcess) -> None:
    assert get(tasks.replaced.delay(3)) == 4
    assert get(chord([tasks.replaced.s(1), add.s(2, 2)], total.s())()) == 2 + 4


def test_a_skewed_group_returns_its_results(worker: WorkerProcess) -> None:
    assert sorted(get(group(add.s(n, n) for n in range(3)).skew(0, 0.2, 0.1)())) == [0, 2, 4]


def test_stamped_tasks_are_revoked_by_their_stamp(
    worker: WorkerProcess, to_worker: dict[str, Any]
) -> None:
    class Stamp(StampingVisitor):
        def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
            return {"order": "o1", "stamped_headers": ["order"]}

    stamped, plain = add.s(1, 1), add.s(1, 2)
    stamped.stamp(Stamp())
    app.control.revoke_by_stamped_headers({"order": "o1"}, **to_worker)
    with pytest.raises(TaskRevokedError):
        get(stamped.apply_async())
    assert get(plain.apply_async()) == 3


def test_a_state_of_ones_own_is_seen(worker: WorkerProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    result = tasks.progresses.delay(str(gate))
    eventually("it is seen", lambda: result.state == "PROGRESS")
    assert result.info == {"done": 3}
    gate.touch()
    assert get(result) == "done"


def test_the_result_of_a_group_is_saved_and_restored(worker: WorkerProcess) -> None:
    result = group(add.s(n, 1) for n in range(3))()
    result.save()
    assert get(app.GroupResult.restore(result.id)) == [1, 2, 3]
    result.delete()
    assert app.GroupResult.restore(result.id) is None


def test_results_end_by_themselves(place: str) -> None:
    backend = Backend(url=place, app=app, expires=0.05)
    Backend(url=place, app=app).store_result("long", 1, "SUCCESS")
    backend.store_result("short", 1, "SUCCESS")
    eventually("it has ended", lambda: backend.get_state("short") == "PENDING")
    assert backend.get_state("long") == "SUCCESS"


# --- what cannot be done --------------------------------------------------------------------------


def test_a_task_that_no_worker_knows_is_a_dead_letter(worker: WorkerProcess, place: str) -> None:
    before = len(dead(place).peek())
    app.send_task("tests.of.another.version", (1,))
    eventually("it is a dead letter", lambda: len(dead(place).peek()) == before + 1)


def test_what_cannot_be_decoded_is_a_dead_letter(worker: WorkerProcess, place: str) -> None:
    sent = {"task": "tests.integration.celery.tasks.echo", "id": "broken"}
    with app.producer_or_acquire() as producer:
        producer.publish(
            "{broken",
            content_type="application/json",
            content_encoding="utf-8",
            headers=sent,
            routing_key="celery",
        )

    def errors() -> list[str]:
        return [str(letter.death["error"]) for letter in dead(place).peek()]

    eventually("it is a dead letter", lambda: any("decoded" in each for each in errors()))


def test_a_result_that_cannot_be_kept_is_a_failure_of_its_task(worker: WorkerProcess) -> None:
    with pytest.raises(EncodeError):
        get(tasks.unkept.delay())


# --- control, inspection, commands ----------------------------------------------------------------


def test_the_pool_grows_and_shrinks(inspect: Any, to_worker: dict[str, Any]) -> None:
    def size() -> int:
        return len(inspect.stats()["one@test"]["pool"]["processes"])

    app.control.autoscale(max=4, min=3, **to_worker)
    eventually("it has grown", lambda: size() >= 3)
    app.control.autoscale(max=2, min=2, **to_worker)
    eventually("it has shrunk", lambda: size() == 2)


def test_inspection(inspect: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    result = tasks.progresses.delay(str(gate))
    eventually("it runs", lambda: result.state == "PROGRESS")

    def query() -> tuple[str, str]:
        (state, what) = inspect.query_task(result.id)["one@test"][result.id]
        return state, what["name"]

    eventually("it is active", lambda: query() == ("active", tasks.progresses.name))
    gate.touch()
    get(result)
    app.control.revoke("some-id")
    eventually("it is revoked", lambda: "some-id" in inspect.revoked()["one@test"])
    assert inspect.conf()["one@test"]["task_default_queue"] == "celery"
    assert inspect.stats()["one@test"]["broker"]["transport"] == "cassq"


def test_more_commands(worker: WorkerProcess, place: str) -> None:
    to_one = ["--destination", "one@test", "--timeout", str(DEADLINE_SECONDS)]
    assert "1 node online" in commanded(place, "status", *to_one)
    called = commanded(place, "call", add.name, "--args", json.dumps([1, 2])).strip()
    assert get(app.AsyncResult(called)) == 3
    assert commanded(place, "result", called).strip() == "3"
