"""Groups of Celery's publish their tasks in batches."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import chord, group
from celery.canvas import group as canvas_group
from kombu.exceptions import OperationalError

import cassq
from cassq.celery.groups import publish_in_batches
from cassq.errors import MessageTooLargeError
from tests.integration.celery.tasks import app, echo, total
from tests.integration.celery.workers import connected

pytestmark = [
    pytest.mark.embedded_only(reason="the tests' app is connected to a directory"),
    pytest.mark.xdist_group("celery"),
]
SYNC_SECONDS = 0.02


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    with connected(f"file://{tmp_path}/data") as url:
        yield url


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files synced since, on a disk that takes long for it."""
    found, sync = list[int](), os.fdatasync

    def slowly(fd: int) -> None:
        time.sleep(SYNC_SECONDS)
        sync(fd)
        found.append(fd)

    monkeypatch.setattr(os, "fdatasync", slowly)
    return found


def pushed(place: str) -> int:
    with cassq.connect(place) as other:
        return other.queue("celery").stats().pushed


def test_a_group_is_durable_when_its_call_returns_and_shares_its_syncs(
    place: str, syncs: list[int]
) -> None:
    echo.delay(0)  # creates the queue
    syncs.clear()
    group(echo.s(number) for number in range(50)).apply_async()
    assert 0 < len(syncs) < 25
    assert pushed(place) == 51


def test_the_header_of_a_chord_shares_its_syncs(place: str, syncs: list[int]) -> None:
    echo.delay(0)
    syncs.clear()
    chord([echo.s(number) for number in range(50)], total.s()).apply_async()
    assert 0 < len(syncs) < 25
    assert pushed(place) == 51


def test_a_group_that_is_not_stored_raises_what_a_task_would(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    echo.delay(0)
    monkeypatch.setattr(os, "fdatasync", fails)
    for publish in (lambda: echo.delay(1), lambda: group(echo.s(1), echo.s(2)).apply_async()):
        with pytest.raises(OperationalError):
            publish()


def test_a_task_that_is_too_large_fails_its_group_as_it_would_by_itself(place: str) -> None:
    large = "x" * 20_000_000
    for publish in (lambda: echo.delay(large), lambda: group([echo.s(large)]).apply_async()):
        with pytest.raises(MessageTooLargeError):
            publish()


def test_nobody_waits_for_a_group_where_nobody_waits_for_a_task(
    place: str, syncs: list[int]
) -> None:
    echo.delay(0)
    syncs.clear()
    app.conf.broker_transport_options = {"confirm_publish": False}
    app.amqp._producer_pool = None
    try:
        group([echo.s(1)]).apply_async()
        assert not syncs
    finally:
        app.conf.broker_transport_options = {}


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
