"""What the groups of Celery's publish shares its syncs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from celery import chord, group
from celery.canvas import group as canvas_group

from cassq.celery.groups import publish_in_batches
from cassq.errors import UsageError
from cassq.kombu.brokers import broker_of
from cassq.producer.pusher import Pusher
from tests.integration.celery.tasks import app, echo, total
from tests.integration.celery.workers import connected

pytestmark = [
    pytest.mark.embedded_only(reason="the tests' app is connected to a directory"),
    pytest.mark.xdist_group("celery"),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    with connected(f"file://{tmp_path}/data") as url:
        yield url


def refused(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError("a task of a group is pushed by itself")


def pushed(place: str) -> int:
    return broker_of(place).client.queue("celery").stats().pushed


def test_a_group_is_durable_when_its_call_returns_and_nothing_is_synced_by_itself(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pusher, "push", refused)
    group(echo.s(number) for number in range(50)).apply_async()
    assert pushed(place) == 50


def test_the_header_of_a_chord_is_published_in_a_batch(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pusher, "push", refused)
    chord([echo.s(number) for number in range(20)], total.s()).apply_async()
    assert pushed(place) == 20


def test_an_error_of_one_task_is_raised_by_the_group(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Pusher.push_soon

    def broken(self: Pusher, payload: bytes, **how: object) -> object:
        future = whole(self, payload, **how)  # type: ignore[arg-type]
        future.exception()
        future._exception = UsageError("no such task")
        return future

    monkeypatch.setattr(Pusher, "push_soon", broken)
    with pytest.raises(UsageError, match="no such task"):
        group(echo.s(number) for number in range(3)).apply_async()


def test_groups_at_other_brokers_are_published_as_before(place: str) -> None:
    app.conf.broker_url = "memory://"
    app.amqp._producer_pool = None
    group(echo.s(number) for number in range(3)).apply_async()
    with app.connection_for_read() as connection:
        assert connection.SimpleQueue("celery").qsize() == 3


def test_celery_is_changed_once() -> None:
    before = canvas_group._apply_tasks
    publish_in_batches()
    assert canvas_group._apply_tasks is before
