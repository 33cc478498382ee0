"""Beat's scheduler: of several beats one sends each tick, and no file is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import celery
import pytest

from cassq.celery import Scheduler
from cassq.celery.beats import CLAIM_SECONDS
from cassq.kombu.brokers import broker_of
from tests.integration.deadlines import eventually, in_threads

pytestmark = pytest.mark.embedded_only(reason="the texts that beats share are the same elsewhere")


@pytest.fixture
def app(url: str) -> Iterator[Any]:
    made = celery.Celery("beats", broker=f"cassq+{url}", set_as_current=False)
    made.conf.beat_schedule = {
        "often": {"task": "often", "schedule": 0.05},
        "rarely": {"task": "rarely", "schedule": timedelta(days=1)},
    }
    yield made
    made.close()
    broker_of(url).client.close()


def pushed(url: str) -> int:
    queue = broker_of(url).find("celery")
    return 0 if queue is None else queue.stats().pushed


def test_each_tick_is_sent_by_one_of_two_beats(app: Any, url: str) -> None:
    beats = [Scheduler(app=app, lazy=True) for _ in range(2)]
    for beat in beats:
        beat.setup_schedule()
    entries = [beat.schedule["rarely"] for beat in beats]

    def send(number: int) -> None:
        for _ in range(3):
            beats[number].apply_entry(entries[number], producer=beats[number].producer)

    in_threads(2, send)
    assert pushed(url) == 1


def test_a_beat_that_stands_by_goes_on_where_the_other_ended(app: Any, url: str) -> None:
    first = Scheduler(app=app)
    eventually("it sends ticks", lambda: first.tick() is not None and pushed(url) >= 3)
    first.close()
    second = Scheduler(app=app)
    last = second.schedule["often"].last_run_at
    assert abs((last - first.schedule["often"].last_run_at).total_seconds()) < 60
    before = pushed(url)
    eventually("it sends ticks", lambda: second.tick() is not None and pushed(url) > before)
    second.close()


def test_a_tick_that_a_killed_beat_noted_is_sent_by_the_next(app: Any, url: str) -> None:
    first = Scheduler(app=app, lazy=True)
    first.setup_schedule()
    entry = first.schedule["rarely"]
    assert first._may_send(entry)  # and then it was killed
    second = Scheduler(app=app)
    del second.schedule["often"]
    second.tick()
    assert pushed(url) == 0  # the first may be about to send it
    noted = json.loads(second._read(entry))
    earlier = datetime.fromisoformat(noted["at"]) - timedelta(seconds=CLAIM_SECONDS)
    old = json.dumps({**noted, "at": earlier.isoformat()})
    assert second._leases.swap(second._name(entry), second._read(entry), old)
    third = Scheduler(app=app)
    del third.schedule["often"]
    for _ in range(3):
        third.tick()
    assert pushed(url) == 1
    second.close()
    third.close()
