"""Celery's groups publish their tasks in batches."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group
from celery.canvas import group as canvas_group
from celery.signals import after_task_publish
from kombu.exceptions import OperationalError

import cassq
from cassq.celery.groups import publish_in_batches
from cassq.errors import MessageTooLargeError
from tests.integration.celery.tasks import app, echo, total
from tests.integration.celery.workers import connected
from tests.integration.deadlines import DEADLINE_SECONDS

pytestmark = [
    pytest.mark.embedded_only(reason="the tests' app is connected to a directory"),
    pytest.mark.xdist_group("celery"),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    with connected(f"file://{tmp_path}/data") as url:
        yield url


class HeldDisk:
    """A disk that syncs nothing until it is let; `syncs` counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let, self.syncs, self._sync = threading.Event(), 0, os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._held)

    def _held(self, fd: int) -> None:
        assert self.let.wait(DEADLINE_SECONDS)
        self.syncs += 1
        self._sync(fd)


@pytest.fixture
def disk(place: str, monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    """The disk of a queue that exists, held."""
    echo.delay(0)
    return HeldDisk(monkeypatch)


def apply(canvas: Any, count: int, disk: HeldDisk) -> None:
    """Publish so many tasks, which must not return before they are synced."""
    sent, returned, numbers = threading.Event(), threading.Event(), itertools.count(1)

    def note(**_: Any) -> None:
        if next(numbers) == count:
            sent.set()

    def publish() -> None:
        canvas.apply_async()
        returned.set()

    after_task_publish.connect(note)
    try:
        thread = threading.Thread(target=publish)
        thread.start()
        assert sent.wait(DEADLINE_SECONDS), "all are sent, though none is synced"
        assert not returned.wait(0.1)
        disk.let.set()
        thread.join(DEADLINE_SECONDS)
        assert returned.is_set()
    finally:
        disk.let.set()
        after_task_publish.disconnect(note)


def pushed(place: str) -> int:
    with cassq.connect(place) as other:
        return other.queue("celery").stats().pushed


def test_a_group_is_durable_when_its_call_returns_and_shares_its_syncs(
    place: str, disk: HeldDisk
) -> None:
    apply(group(echo.s(number) for number in range(50)), 50, disk)
    assert 0 < disk.syncs < 25
    assert pushed(place) == 51


def test_the_header_of_a_chord_shares_its_syncs(place: str, disk: HeldDisk) -> None:
    apply(chord([echo.s(number) for number in range(50)], total.s()), 50, disk)
    assert 0 < disk.syncs < 25
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


def test_without_confirmation_a_group_does_not_wait_for_the_disk(disk: HeldDisk) -> None:
    app.conf.broker_transport_options = {"confirm_publish": False}
    app.amqp._producer_pool = None
    try:
        group([echo.s(1)]).apply_async()
        assert not disk.syncs
    finally:
        disk.let.set()
        app.conf.broker_transport_options = {}


def test_groups_at_other_brokers_are_published_as_before(place: str) -> None:
    app.conf.broker_url = "memory://"
    app.amqp._producer_pool = None
    group(echo.s(number) for number in range(3)).apply_async()
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        assert queue.qsize() == 3
        queue.clear()


def test_celery_is_changed_once() -> None:
    before = canvas_group._apply_tasks
    publish_in_batches()
    assert canvas_group._apply_tasks is before
