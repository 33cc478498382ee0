"""What became of requests to servers: what is counted, noted and told."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cassandra")

from cassq.base.clock import ManualClock
from cassq.base.counters import REQUESTS, Requests, Tally
from cassq.cassandra.contact import HELD_UP
from cassq.cassandra.errors import OverloadedError
from cassq.cassandra.tries import is_held_up, note_answer, note_error
from cassq.cli.ops.stats import _trouble_lines
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError
from cassq.inspect import degradation
from cassq.inspect.degradation import NOTE_REQUESTS_MS, Notebook, requests_of, troubles_of
from cassq.inspect.metrics import request_metrics
from cassq.inspect.stats import QueueStats
from cassq.model.rows import Sample


def counted(requests: Requests) -> dict[str, int]:
    return {name: count for name in REQUESTS if (count := getattr(requests, name))}


def answer(hosts: str, *warnings: str) -> Any:
    """A request that was answered after these hosts were asked."""
    return SimpleNamespace(attempted_hosts=[*hosts], warnings=[*warnings] or None)


@pytest.mark.parametrize(
    ("future", "expected"),
    [
        (answer("a"), {}),
        (answer("ab"), {"doubled": 1}),
        (answer("aa"), {}),  # it was prepared there anew
        (answer("a", f"{HELD_UP} limit(s) on bytes"), {"held_up": 1}),
        (answer("a", "a large batch"), {}),
    ],
)
def test_an_answer_shows_a_slow_or_busy_server(future: Any, expected: dict[str, int]) -> None:
    requests = Requests()
    note_answer(requests, future)
    assert counted(requests) == expected
    assert is_held_up(future) == ("held_up" in expected)


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (OverloadedError("too much"), {"overloaded": 1}),
        (BackendTimeoutError("late"), {"unanswered": 1}),
        (BackendTimeoutError("late", outcome_unknown=True), {"unanswered": 1, "unknown": 1}),
        (BackendUnavailableError("cut", outcome_unknown=True), {"unanswered": 1, "unknown": 1}),
        (BackendUnavailableError("nobody is there"), {}),
    ],
)
def test_an_error_is_counted_by_what_it_means(exc: BackendError, expected: dict[str, int]) -> None:
    requests = Requests()
    note_error(requests, exc)
    assert counted(requests) == expected


class Samples:
    """A catalog that keeps samples. It is its own records."""

    def __init__(self) -> None:
        self.records = self
        self.kept: list[Sample] = []

    def now_ms(self) -> int:
        return 1_000_000

    def add_samples(self, samples: list[Sample]) -> None:
        self.kept += samples

    def samples(self, subject: str, step_ms: int, since_ms: int) -> list[Sample]:
        return [s for s in self.kept if s.subject == subject and s.at_ms >= since_ms]


def test_what_all_clients_have_counted_is_added_up_and_noted_once() -> None:
    catalog = Samples()
    for client in ("one", "other"):
        requests = Requests()
        clock = ManualClock()
        ids = SimpleNamespace(client=client)
        ports: Any = SimpleNamespace(catalog=catalog, requests=requests, ids=ids, clock=clock)
        notebook = Notebook(clock)
        requests.count("repeated", "unanswered")
        requests.count("repeated")
        before = len(catalog.kept)
        notebook.maintain(ports)
        assert len(catalog.kept) == before, "not yet"
        clock.advance(NOTE_REQUESTS_MS / 1000)
        for _ in range(2):
            notebook.maintain(ports)
        assert len(catalog.kept) == before + 1
        requests.count("held_up")
        for _ in range(2):
            notebook.close(ports)
    reported = {"repeated": 4, "held_up": 2, "unanswered": 2}
    found: Any = catalog
    assert requests_of(found) == reported
    assert troubles_of(found, "") == {}
    lines = _trouble_lines(QueueStats("jobs", "ap", requests=reported))
    assert lines[1].split("  ")[0] == "REQUESTS"
    assert [line.split()[0] for line in lines[2:]] == ["4", "2", "2"]
    assert _trouble_lines(QueueStats("jobs", "ap")) == []


def test_counts_for_which_no_millisecond_is_free_are_noted_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog: Any = Samples()
    clock, requests, tally = ManualClock(), Requests(), Tally()
    ports: Any = SimpleNamespace(
        catalog=catalog, requests=requests, ids=SimpleNamespace(client="one"), clock=clock
    )
    notebook = Notebook(clock)
    notebook.add("queue", tally)
    tally.lost = 2
    tally.over = True
    requests.count("repeated")
    monkeypatch.setattr(degradation, "SPREAD_MS", 0)
    notebook.close(ports)
    monkeypatch.undo()
    assert catalog.kept == []
    for _ in range(2):
        notebook.close(ports)
    assert troubles_of(catalog, "queue") == {"lost": 2}
    assert requests_of(catalog) == {"repeated": 1}
    assert len(catalog.kept) == 2


def test_every_count_has_a_metric() -> None:
    requests = Requests()
    for name in REQUESTS:
        requests.count(name)
    metrics = request_metrics(requests)
    assert {m.name for m in metrics} == {f"cassq_client_{n}_requests_total" for n in REQUESTS}
    assert all(list(metric.values) == [({}, 1)] for metric in metrics)


def test_the_driver_says_nothing_of_what_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    warned = logging.getLogger("cassandra.protocol").warning
    warned("Server warning: %s", f"{HELD_UP} global limit of 10 requests/second")
    logging.getLogger("cassandra.cluster").warning("Host %s error: %s.", "a", "overloaded")
    assert not caplog.records
    warned("Server warning: %s", "a large batch")
    assert [record.getMessage() for record in caplog.records] == ["Server warning: a large batch"]
