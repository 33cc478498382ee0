"""Tallies and metrics: what is counted, added up, and named."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

from cassq.base.counters import COUNTS, LATENCY_SECONDS, Latencies, Tallies, Tally
from cassq.errors import BackendTimeoutError, ClaimLostError
from cassq.inspect.metrics import (
    COUNTER,
    Labels,
    Metric,
    client_metrics,
    queue_metrics,
    request_latency,
    schedule_metrics,
)
from cassq.inspect.prometheus import as_text
from cassq.inspect.stats import GroupStats, QueueStats
from cassq.model.schedules import ScheduleRow, TickPlace

QUEUE = "messaging_destination_name"
GROUP = "messaging_consumer_group_name"


def values(metrics: list[Metric], name: str) -> list[tuple[Labels, float]]:
    (found,) = (metric for metric in metrics if metric.name == name)
    return list(found.values)


def tally(group: str = "", **counts: int) -> Tally:
    made = Tally(group)
    for name, count in counts.items():
        setattr(made, name, count)
    return made


# --- tallies ----------------------------------------------------------------------------------


def test_tallies_add_up_by_queue_and_group() -> None:
    tallies = Tallies()
    tallies.add("mail", tally(pushed=3))
    tallies.add("mail", tally(pushed=4))
    tallies.add("mail", tally("g", popped=5))
    tallies.add("other", tally(pushed=6))
    totals = tallies.totals()
    assert totals["mail", ""].pushed == 7
    assert totals["mail", "g"].popped == 5
    assert totals["other", ""].pushed == 6


def test_a_tally_that_is_over_is_not_lost_nor_kept() -> None:
    tallies = Tallies()
    for _ in range(100):
        one = tally("g", **dict.fromkeys(COUNTS, 1))
        one.failures["pop", "X"] += 1
        tallies.add("mail", one)
        one.over = True
    total = tallies.totals()["mail", "g"]
    assert [getattr(total, name) for name in COUNTS] == [100] * len(COUNTS)
    assert total.failures == {("pop", "X"): 100}
    assert len(tallies._present["mail", "g"]) == 1
    assert tallies.totals()["mail", "g"].popped == 100, "reading adds nothing"


def test_a_failed_push_counts_what_was_pushed_nevertheless() -> None:
    one = Tally()
    one.push_failed(10, BackendTimeoutError("late", pushed=3))
    one.push_failed(2, ValueError("no"))
    assert one.pushed == 3
    assert one.push_failures == {"BackendTimeoutError": 7, "ValueError": 2}


def test_ways_of_giving_back_are_counted_apart() -> None:
    one = Tally()
    one.given(1, counted=True, doomed=False)
    one.given(2, counted=False, doomed=False)
    one.given(4, counted=True, doomed=True)
    assert (one.rolled_back, one.released, one.dead) == (1, 2, 4)


def test_errors_are_counted_by_operation_and_kind() -> None:
    one = Tally("g")
    for _ in range(2):
        one.failed("commit", ClaimLostError())
    one.failed("pop", OSError())
    assert one.failures == {("commit", "ClaimLostError"): 2, ("pop", "OSError"): 1}


def test_tallies_can_be_read_while_others_come_and_go() -> None:
    tallies, seen = Tallies(), [0]

    def come_and_go() -> None:
        for _ in range(2000):
            one = tally(pushed=1)
            tallies.add("mail", one)
            one.over = True

    thread = threading.Thread(target=come_and_go)
    thread.start()
    while thread.is_alive():
        seen.append(tallies.totals().get(("mail", ""), Tally()).pushed)
    thread.join()
    assert seen == sorted(seen), "a total never falls"
    assert tallies.totals()["mail", ""].pushed == 2000


# --- metrics ----------------------------------------------------------------------------------


def test_pushes_and_pops_have_the_names_of_opentelemetry() -> None:
    pushed = tally(pushed=3, written_bytes=300)
    pushed.push_failures["StorageFullError"] = 2
    metrics = client_metrics({("mail", ""): pushed, ("mail", "g"): tally("g", popped=4)})
    common = {"messaging_system": "cassq", QUEUE: "mail"}
    push = {**common, "messaging_operation_name": "push"}
    assert values(metrics, "messaging_client_sent_messages_total") == [
        ({**push, "error_type": ""}, 3),
        ({**push, "error_type": "StorageFullError"}, 2),
    ]
    assert values(metrics, "messaging_client_consumed_messages_total") == [
        ({**common, "messaging_operation_name": "pop", GROUP: "g"}, 4)
    ]
    assert values(metrics, "cassq_client_written_bytes_total") == [({QUEUE: "mail"}, 300)]


def test_what_poppers_did_is_reported_by_group() -> None:
    one = tally("g", redelivered=1, committed=2, rolled_back=3, released=4, dead=5, lost=6)
    one.limited = 8
    one.failures["pop", "BackendTimeoutError"] = 7
    metrics = client_metrics({("mail", "g"): one})
    for number, name in enumerate(
        ("redelivered", "committed", "rolled_back", "released", "dead", "lost"), 1
    ):
        found = values(metrics, f"cassq_client_{name}_messages_total")
        assert found == [({QUEUE: "mail", GROUP: "g"}, number)]
    assert values(metrics, "cassq_client_limited_pops_total") == [({QUEUE: "mail", GROUP: "g"}, 8)]
    ((labels, count),) = values(metrics, "cassq_client_failures_total")
    assert count == 7
    assert labels["messaging_operation_name"] == "pop"
    assert labels["error_type"] == "BackendTimeoutError"


def test_depths_are_reported_by_queue_and_group() -> None:
    group = GroupStats(waiting=5, delayed=1, pending=2, committed=9, dead=3, oldest_age=2.5)
    group.expired, group.purged, group.merged, group.deliveries = 1, 2, 3, {0: 4, 2: 3}
    pipes = {"open": 1, "sealed": 2, "retired": 30}
    stats = QueueStats("mail", "ap", pushed=25, pipes=pipes, groups={"g": group})
    metrics = queue_metrics([stats])
    labels = {QUEUE: "mail", GROUP: "g"}
    assert values(metrics, "cassq_queue_pushed_messages_total") == [({QUEUE: "mail"}, 25)]
    for name, count in (("waiting", 5), ("delayed", 1), ("pending", 2)):
        assert values(metrics, f"cassq_group_{name}_messages") == [(labels, count)]
    totals = (("committed", 9), ("dead", 3), ("expired", 1), ("purged", 2), ("merged", 3))
    for name, count in totals:
        assert values(metrics, f"cassq_group_{name}_messages_total") == [(labels, count)]
    assert values(metrics, "cassq_group_oldest_message_age_seconds") == [(labels, 2.5)]
    assert values(metrics, "cassq_group_open_messages") == [
        ({**labels, "deliveries": "0"}, 4),
        ({**labels, "deliveries": "2"}, 3),
    ]
    states = {found["state"] for found, _ in values(metrics, "cassq_queue_pipes")}
    assert states == {"open", "sealed"}


def test_schedules_are_reported_by_queue() -> None:
    row = ScheduleRow("s", "tidy", "q", "mail", "@every 1h", "UTC", 0, next_ms=1000)
    rows = [row, replace(row, next_ms=4000), replace(row, paused=True)]
    rows += [replace(row, queue="other", firing=TickPlace(500, "p", 0))]
    metrics = schedule_metrics(rows, 3500)
    assert values(metrics, "cassq_schedule_late_seconds") == [
        ({QUEUE: "mail"}, 2.5),
        ({QUEUE: "other"}, 3.0),
    ]
    assert values(metrics, "cassq_schedule_paused") == [({QUEUE: "mail"}, 1), ({QUEUE: "other"}, 0)]


def test_metrics_are_named_by_the_rules_of_prometheus() -> None:
    one = tally("g")
    one.failures["pop", "X"] = 1
    metrics = client_metrics({("mail", ""): Tally(), ("mail", "g"): one})
    metrics += queue_metrics([QueueStats("mail", "ap", groups={"g": GroupStats()})])
    metrics += schedule_metrics([], 0)
    names = [metric.name for metric in metrics]
    assert len(names) == len(set(names))
    for metric in metrics:
        assert re.fullmatch(r"(messaging|cassq)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == COUNTER), metric.name
        assert metric.help.endswith(".")
        assert len({tuple(labels) for labels, _ in metric.values}) <= 1, metric.name


def test_what_pushers_had_trouble_with_is_reported() -> None:
    one = tally(pushed=9, spilled=4, forwarded=3, found=1, carried_over=2, doubtful=1)
    one.push_failed(5, BackendTimeoutError())
    found = client_metrics({("mail", ""): one})
    reported = {
        "spilled": 4,
        "forwarded": 3,
        "found": 1,
        "carried_over": 2,
        "doubtful": 1,
        "refused": 5,
    }
    for name, count in reported.items():
        assert values(found, f"cassq_client_{name}_messages_total") == [({QUEUE: "mail"}, count)]


def test_answers_are_counted_by_what_was_done_and_how_long_it_took() -> None:
    latencies = Latencies()
    for seconds in (0.0005, 0.001, 0.03, 99.0):
        latencies.note(("read", "frames"), seconds)
    latencies.note(("conditional write", "claims"), 0.004)
    histogram = request_latency(latencies)
    assert [labels["table"] for labels, *_ in histogram.values] == ["claims", "frames"]
    _, counts, seconds = histogram.values[1]
    at = dict(zip([*LATENCY_SECONDS, None], counts, strict=True))
    assert (at[0.001], at[0.05], at[None]) == (2, 1, 1), "a bound belongs to its bucket"
    assert sum(counts) == 4
    assert round(seconds, 4) == 99.0315
    text = as_text(lambda: [histogram]).decode()
    kind = 'operation="read",table="frames"'
    assert f'cassq_client_request_seconds_bucket{{le="0.05",{kind}}} 3.0' in text, "they add up"
    assert f'cassq_client_request_seconds_bucket{{le="+Inf",{kind}}} 4.0' in text
    assert f"cassq_client_request_seconds_count{{{kind}}} 4.0" in text
