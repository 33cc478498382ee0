"""Metrics: what a client reports to a monitoring system, as plain data.

Names are OpenTelemetry's for messaging where it has one, in Prometheus's spelling (dots become
underscores, counters end in `_total`); the others begin with `cassq_`. The adapter that serves
them is `cassq.inspect.prometheus`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cassq.base.counters import LATENCY_SECONDS, Latencies, Requests, Tallies, Tally
from cassq.errors import CassqError
from cassq.inspect.stats import GroupStats, QueueStats, queue_stats
from cassq.lifecycle.ports import Ports
from cassq.model.schedules import ScheduleRow, late_ms

logger: logging.Logger = logging.getLogger("cassq")

COUNTER, GAUGE = "counter", "gauge"

# OpenTelemetry's attribute names.
SYSTEM = "messaging_system"
OPERATION = "messaging_operation_name"
QUEUE = "messaging_destination_name"
GROUP = "messaging_consumer_group_name"
ERROR = "error_type"

Labels = Mapping[str, str]
Values = Sequence[tuple[Labels, float]]
# How many actions of the reaper there were, by (pass, outcome).
Actions = Callable[[], Mapping[tuple[str, str], int]]


class Metric(NamedTuple):
    """One metric with its values; all have the same labels."""

    name: str
    kind: str
    help: str
    values: Values


class Histogram(NamedTuple):
    """One metric that counts events by how long they took. bounds: the upper bounds of the buckets,
    in seconds. values: labels, how many events are in each bucket and beyond the last, and the sum
    of their seconds."""

    name: str
    help: str
    bounds: Sequence[float]
    values: Sequence[tuple[Labels, Sequence[int], float]]


class Meter:
    """Reads all metrics of one client, and of the queues it can see.

    ports: raises BackendUnavailableError until a server has answered. queues: whether to report
    the depths of all queues; one client that does is enough.
    """

    def __init__(
        self,
        ports: Callable[[], Ports],
        requests: Requests | None,
        tallies: Tallies,
        actions: Actions,
        *,
        queues: bool,
    ) -> None:
        self._ports = ports
        self._requests = requests
        self._tallies = tallies
        self._actions = actions
        self._queues = queues

    def read(self) -> list[Metric | Histogram]:
        """The metrics now. Cost: if depths are reported, the same as `queue_stats` for each queue,
        and a read of the schedules."""
        metrics: list[Metric | Histogram] = [*client_metrics(self._tallies.totals())]
        if self._requests is not None:
            metrics += request_metrics(self._requests)
            metrics.append(request_latency(self._requests.latencies))
        actions = [({"pass": p, "outcome": o}, n) for (p, o), n in self._actions().items()]
        metrics.append(
            Metric("cassq_reaper_actions_total", COUNTER, "What the reaper's passes did.", actions)
        )
        if self._queues:
            readable = True
            try:
                ports = self._ports()
                ports.life.check()
                rows = ports.catalog.queues.listed()
                metrics += queue_metrics([queue_stats(ports, row) for row in rows])
                live = {row.id for row in rows}
                schedules = [s for s in ports.catalog.records.schedules() if s.queue_id in live]
                metrics += schedule_metrics(schedules, ports.catalog.wall_ms())
            except CassqError as exc:
                logger.warning("the metrics do not include the depths of queues: %s", exc)
                readable = False
            help_text = "Whether the catalog could be read."
            metrics.append(
                Metric("cassq_catalog_readable", GAUGE, help_text, [({}, float(readable))])
            )
        return metrics


# --- what this client did ------------------------------------------------------------------------

# Message counters of pushers: tally attribute (also part of the metric's name), help.
_OF_PUSHERS = (
    ("spilled", "Messages pushed into the local spool because no quorum answered."),
    ("forwarded", "Messages forwarded from the local spool."),
    ("found", "Forwarded messages that had arrived before."),
    ("carried_over", "Messages written to another pipe because a write had failed."),
    ("doubtful", "Messages carried over that may have been written twice."),
    ("refused", "Messages not pushed because the storage did not answer."),
)
# The same of poppers.
_OF_POPPERS = (
    ("redelivered", "Messages claimed that were delivered before."),
    ("committed", "Messages acked, durably."),
    ("rolled_back", "Messages given back as failed."),
    ("released", "Messages given back untried."),
    ("dead", "Messages given up by their consumer."),
    ("lost", "Messages whose claim was lost to another popper."),
)


def client_metrics(totals: Mapping[tuple[str, str], Tally]) -> list[Metric]:
    """The counters of a client. totals: by (queue, group); the group is empty for pushers."""
    pushers = {queue: tally for (queue, group), tally in totals.items() if not group}
    poppers = {key: tally for key, tally in totals.items() if key[1]}
    sent: list[tuple[Labels, float]] = []
    failed: list[tuple[Labels, float]] = []
    for queue, tally in pushers.items():
        labels = {SYSTEM: "cassq", OPERATION: "push", QUEUE: queue}
        sent.append(({**labels, ERROR: ""}, tally.pushed))
        sent += [({**labels, ERROR: e}, n) for e, n in dict(tally.push_failures).items()]
    for (queue, group), tally in poppers.items():
        labels = {SYSTEM: "cassq", QUEUE: queue, GROUP: group}
        for (operation, error), count in dict(tally.failures).items():
            failed.append(({**labels, OPERATION: operation, ERROR: error}, count))
    consumed: Values = [
        ({SYSTEM: "cassq", OPERATION: "pop", QUEUE: queue, GROUP: group}, tally.popped)
        for (queue, group), tally in poppers.items()
    ]
    written: Values = [({QUEUE: q}, t.written_bytes) for q, t in pushers.items()]
    metrics = [
        Metric(
            "messaging_client_sent_messages_total",
            COUNTER,
            "Messages pushed; with an error_type, those that failed.",
            sent,
        ),
        Metric(
            "messaging_client_consumed_messages_total", COUNTER, "Messages handed out.", consumed
        ),
        Metric("cassq_client_written_bytes_total", COUNTER, "Bytes of messages written.", written),
        Metric(
            "cassq_client_failures_total", COUNTER, "Operations of poppers that failed.", failed
        ),
    ]
    of_pushers = [({QUEUE: queue}, tally) for queue, tally in pushers.items()]
    of_poppers = [({QUEUE: queue, GROUP: group}, t) for (queue, group), t in poppers.items()]
    messages = "cassq_client_{}_messages_total"
    metrics += _of_each(_OF_PUSHERS, messages, COUNTER, of_pushers)
    limited = [("limited", "Pops that returned less because of their group's limits.")]
    metrics += _of_each(limited, "cassq_client_{}_pops_total", COUNTER, of_poppers)
    return metrics + _of_each(_OF_POPPERS, messages, COUNTER, of_poppers)


def _of_each(
    attributes: Iterable[tuple[str, str]],
    metric: str,
    kind: str,
    sources: Sequence[tuple[Labels, object]],
) -> list[Metric]:
    """A metric for each attribute of the sources. attributes: name, help. metric: has {} for the
    name."""
    return [
        Metric(
            metric.format(name), kind, help_text, [(on, getattr(of, name)) for on, of in sources]
        )
        for name, help_text in attributes
    ]


# Counters of requests to servers: attribute (also part of the metric's name), help.
_OF_REQUESTS = (
    ("repeated", "Requests sent again because a try had failed."),
    ("doubled", "Requests sent to a second server too because the first was slow."),
    ("overloaded", "Requests refused by an overloaded server."),
    ("held_up", "Requests after which an overloaded server stopped reading for a while."),
    ("unanswered", "Requests not answered in time."),
    ("unknown", "Unanswered conditional writes that may have been applied."),
    ("changed_over", "Reads that switched replicas: one was damaged or did not answer."),
    ("under_replicated", "New pipes with fewer replicas than they should have."),
)


def request_metrics(requests: Requests) -> list[Metric]:
    """The counters of a client's requests to its servers."""
    return _of_each(_OF_REQUESTS, "cassq_client_{}_requests_total", COUNTER, [({}, requests)])


def request_latency(latencies: Latencies) -> Histogram:
    """How long answered requests took, by what they did to which table."""
    return Histogram(
        "cassq_client_request_seconds",
        "Time from sending a request to Cassandra to its answer.",
        LATENCY_SECONDS,
        [
            ({"operation": operation, "table": table}, counts, seconds)
            for (operation, table), (counts, seconds) in sorted(latencies.by_kind().items())
        ],
    )


# --- what is in the queues -----------------------------------------------------------------------

_DEPTHS = (
    ("waiting", "Messages not claimed, delayed ones included."),
    ("delayed", "Waiting messages that are not yet due."),
    ("pending", "Messages claimed and not acked."),
)
_TOTALS = (
    ("committed", "Messages acked."),
    ("dead", "Messages moved to the group's dead letters."),
    ("expired", "Messages that became too old."),
    ("purged", "Messages purged or cancelled."),
    ("merged", "Dead letters that are back in their queue."),
    ("lost", "Damaged messages that were given up by a command."),
)


def _key_metrics(groups: Sequence[tuple[dict[str, str], GroupStats]]) -> list[Metric]:
    """What holds the keys of keyed groups."""
    return [
        Metric(
            "cassq_group_held_keys",
            GAUGE,
            "Keys held by dead letters, so that their later messages wait.",
            [(labels, group.held_keys) for labels, group in groups],
        ),
        Metric(
            "cassq_group_stuck_keys",
            GAUGE,
            "Messages that failed for more than 15 minutes, whose keys wait for them.",
            [(labels, group.stuck_keys) for labels, group in groups],
        ),
        Metric(
            "cassq_group_stuck_in_hand",
            GAUGE,
            "Messages in hand for more than 15 minutes, whose keys wait for them.",
            [(labels, group.stuck_in_hand) for labels, group in groups],
        ),
    ]


def _permit_metrics(groups: Sequence[tuple[dict[str, str], GroupStats]]) -> list[Metric]:
    """The concurrency of groups that have such a limit, and how much of it they use."""
    limited = [(labels, group) for labels, group in groups if group.concurrency is not None]
    return [
        Metric(
            "cassq_group_permits",
            GAUGE,
            "Messages that consumers have or are about to take, of groups with concurrency.",
            [(labels, group.permits or 0) for labels, group in limited],
        ),
        Metric(
            "cassq_group_concurrency",
            GAUGE,
            "How many messages consumers may have at once, of groups with concurrency.",
            [(labels, group.concurrency or 0) for labels, group in limited],
        ),
    ]


def queue_metrics(found: Iterable[QueueStats]) -> list[Metric]:
    """The depths and totals of queues and their groups."""
    found = list(found)
    groups = [
        ({QUEUE: stats.name, GROUP: name}, group)
        for stats in found
        for name, group in stats.groups.items()
    ]
    pushed: Values = [({QUEUE: s.name}, s.pushed) for s in found]
    pipes: Values = [
        ({QUEUE: stats.name, "state": state}, count)
        for stats in found
        for state, count in stats.pipes.items()
        if state != "retired"
    ]
    ages: Values = [(labels, g.oldest_age or 0.0) for labels, g in groups]
    open_by_deliveries: Values = [
        ({**labels, "deliveries": str(times)}, count)
        for labels, group in groups
        for times, count in sorted(group.deliveries.items())
    ]
    by_priority: Values = [
        ({**labels, "priority": str(priority)}, count)
        for labels, group in groups
        for priority, count in group.priorities.items()
    ]
    metrics = [
        Metric("cassq_queue_pushed_messages_total", COUNTER, "Messages pushed.", pushed),
        Metric("cassq_queue_pipes", GAUGE, "Pipes by state, without retired ones.", pipes),
        Metric(
            "cassq_group_oldest_message_age_seconds",
            GAUGE,
            "Age of the oldest message not committed; 0 if there is none.",
            ages,
        ),
        *_key_metrics(groups),
        *_permit_metrics(groups),
        Metric(
            "cassq_group_open_messages",
            GAUGE,
            "Messages waiting or pending, by how often they were delivered.",
            open_by_deliveries,
        ),
        Metric(
            "cassq_group_priority_waiting_messages",
            GAUGE,
            "Messages waiting, by priority, of groups with messages of a priority besides 0.",
            by_priority,
        ),
    ]
    metrics += _of_each(_DEPTHS, "cassq_group_{}_messages", GAUGE, groups)
    return metrics + _of_each(_TOTALS, "cassq_group_{}_messages_total", COUNTER, groups)


def schedule_metrics(rows: Iterable[ScheduleRow], now_ms: int) -> list[Metric]:
    """For each queue with schedules: how late the latest of them is at the wall time `now_ms`, and
    how many are paused."""
    late: dict[str, float] = {}
    paused: dict[str, int] = {}
    for row in rows:
        late[row.queue] = max(late.get(row.queue, 0.0), late_ms(row, now_ms) / 1000)
        paused[row.queue] = paused.get(row.queue, 0) + row.paused
    return [
        Metric(
            "cassq_schedule_late_seconds",
            GAUGE,
            "Age of the oldest tick that is due and was not pushed; 0 if there is none.",
            [({QUEUE: queue}, seconds) for queue, seconds in late.items()],
        ),
        Metric(
            "cassq_schedule_paused",
            GAUGE,
            "Schedules that are paused.",
            [({QUEUE: queue}, count) for queue, count in paused.items()],
        ),
    ]
