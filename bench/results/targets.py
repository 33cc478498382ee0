"""What cassq must reach, and whether it did: decided here, from the figures alone."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bench.plan import SIZES
from bench.results.scores import DISK, Scores
from bench.scenarios.cassandra.through import OWN
from bench.scenarios.gateway.scenario import OWN as GATEWAY
from bench.scenarios.sidecars.through import OWN as ON_SIDECARS

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "≥": operator.ge,
    ">": operator.gt,
    "<": operator.lt,
    "≤": operator.le,
}


class Verdict(Enum):
    """How a target ended."""

    REACHED = "reached"
    MISSED = "not reached"
    # A peer was missing, a scenario left out, or a measurement failed.
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class Target:
    """A figure, which side of a limit it must be on, and how it follows from the scores."""

    title: str
    comparison: str
    limit: float
    measured: Callable[[Scores], float | None]
    unit: str = "×"

    def verdict(self, value: float | None) -> Verdict:
        if value is None:
            return Verdict.UNKNOWN
        met = COMPARISONS[self.comparison](value, self.limit)
        return Verdict.REACHED if met else Verdict.MISSED


@dataclass(frozen=True)
class Judgement:
    """A target with what was measured for it."""

    target: Target
    value: float | None
    verdict: Verdict


def against(
    case_key: str, peer: str, figure: str, cassq: str = "cassq"
) -> Callable[[Scores], float | None]:
    """cassq's figure over a peer's."""
    return lambda scores: scores.ratio(case_key, cassq, peer, figure)


def within(
    case_key: str, over: str, under: str, cassq: str = "cassq"
) -> Callable[[Scores], float | None]:
    """One of cassq's figures over another."""
    return lambda scores: scores.ratio(case_key, cassq, cassq, over, under)


def own(case_key: str, figure: str, cassq: str = "cassq") -> Callable[[Scores], float | None]:
    """A figure of cassq's by itself."""
    return lambda scores: scores.median(case_key, cassq, figure)


# (peer, what it is called, comparison, limit)
THROUGH_LIMITS = (
    ("sqlite", "SQLite rows in transactions of 5,000", "≥", 4.0),
    ("sqlite-unleased", "SQLite rows without leases", "≥", 2.5),
    ("redis", "Redis Streams", "≥", 10.0),
    ("postgresql", "PostgreSQL, SKIP LOCKED with leases", "≥", 10.0),
    ("postgresql-held", "PostgreSQL, SKIP LOCKED with locks held until the ack", "≥", 10.0),
    ("kafka-synced", "Kafka, synced", "≥", 1.5),
    ("kafka", "Kafka, page cache", ">", 1.0),
)


def through_targets() -> list[Target]:
    """The headline, messages of varied length that are read one by one, comes first."""
    cases = (("varied", "of varied length"), *((str(size), f"{size:,} B") for size in SIZES))
    return [
        Target(
            f"through, {what}: cassq over {title}",
            comparison,
            limit,
            against(f"through/{key}", peer, "through"),
        )
        for key, what in cases
        for peer, title, comparison, limit in THROUGH_LIMITS
    ]


def reap_targets() -> list[Target]:
    made = []
    for key, what in (("reap/queues", "queues"), ("reap/pipes", "pipes of one queue")):
        title = f"many {what}, nothing to reap"
        longest, kept = own(key, "pass_s"), own(key, "kept")
        made.append(Target(f"{title}: the longest pass", "<", 2.0, longest, unit=" s"))
        made.append(Target(f"{title}: pushes kept beside the daemon", "≥", 0.95, kept))
    return made


def engine_targets() -> list[Target]:
    made = [
        Target(
            f"a sidecar's engine, frames of {title}: over RocksDB written plainly",
            *("≥", 0.8),
            own(key, "over_plain"),
        )
        for key, title in (("engine/100k", "100 KB"), ("engine/1000k", "1 MB"))
    ]
    opened = "a sidecar's engine, 10,000 open extents"
    return [
        *made,
        Target(f"{opened}: appends over those to 10", "≥", 0.8, own("engine/open", "kept")),
        Target(f"{opened}: memory", "≤", 1024.0, own("engine/open", "rss_mib"), unit=" MiB"),
    ]


def on_cassandra(title: str, comparison: str, limit: float, key: str, figure: str) -> Target:
    unit = "/s" if figure in ("through", "acks", "commits") else "×"
    measured = own(key, figure, OWN)
    return Target(f"on Cassandra, {title}", comparison, limit, measured, unit)


# (case, what it is called): those of the next list apart
CASSANDRA_OVER_ROWS = (
    ("three/100", "three nodes, 100 B"),
    ("three/1000", "three nodes, 1,000 B"),
    ("1000", "one node, synced, 1,000 B"),
    ("periodic/1000", "one node, not synced, 1,000 B"),
)
# (case, what it is called, the Kafka that promises as much)
CASSANDRA_CASES = (
    ("cassandra/100", "one node, synced, 100 B", "kafka-synced"),
    ("cassandra/periodic/100", "one node, not synced, 100 B", "kafka"),
)


def cassandra_targets() -> list[Target]:
    def over(title: str, comparison: str, limit: float, key: str, peer: str, figure: str) -> Target:
        measured = against(key, peer, figure, OWN)
        return Target(f"on Cassandra, {title}", comparison, limit, measured)

    rows, through, single = "cassandra-rows", "through", "cassandra-single"
    poppers = "cassandra-poppers"
    made = [
        over(f"{what}: cassq over a row per message", "≥", 50, f"cassandra/{key}", rows, through)
        for key, what in CASSANDRA_OVER_ROWS
    ]
    for key, what, kafka in CASSANDRA_CASES:
        made += [
            over(f"{what}: cassq over a row per message", "≥", 50, key, rows, through),
            on_cassandra(f"{what}: cassq, messages a second", "≥", 200_000, key, through),
            over(f"{what}: cassq over one Kafka broker (the aim)", ">", 1, key, kafka, through),
        ]
    for key, what in (("100", "one node"), ("1000", "one node, 1 KB"), ("three", "three nodes")):
        title = f"frames of 400 KB, {what}: pushes to ap over pushes to cp"
        made.append(on_cassandra(title, "≤", 3, f"cassandra-cp/{key}", "times"))
    title = "one node, 1,000 B: batches of 5,000 over those of 50,000"
    made.append(on_cassandra(title, "≥", 0.8, "cassandra-batches/1000", "share"))
    return [
        *made,
        over("a message at a time: push p50 over a row's", "≤", 1.5, single, rows, "push_p50_ms"),
        over("a message at a time: push p99 over a row's", "≤", 1.5, single, rows, "push_p99_ms"),
        *(
            over(
                f"{where}, a message at a time: push, pop and commit, p{share} over a row's",
                *("≤", 2, f"{single}{key}", rows, f"turn_p{share}_ms"),
            )
            for where, key in (("one node", ""), ("three nodes", "/three"))
            for share in (50, 99)
        ),
        *(
            on_cassandra(
                f"{count} poppers on one pipe, tasks of 10 ms: over the ideal rate",
                *("≥", share, poppers, f"busy@{count}"),
            )
            for count, share in ((10, 0.9), (100, 0.7))
        ),
        *(
            on_cassandra(
                f"{where}, 8 workers that {what} at a time, 5 ms each: messages a second",
                *("≥", least, f"cassandra-workers{key}", figure),
            )
            for where, key, limits in (
                ("one node", "", (1000, 300)),
                ("three nodes", "/three", (800, 60)),
            )
            for figure, what, least in zip(
                ("acks", "commits"), ("ack one", "commit one"), limits, strict=True
            )
        ),
        Target(
            "on Cassandra, a pop behind 100,000 retired pipes over one behind 10",
            *("≤", 1.25),
            within("cassandra-retired", "pop@100000", "pop@10", OWN),
        ),
    ]


def spark_targets() -> list[Target]:
    """Writes and reads of Spark's over the library's own, and over Kafka's."""
    made = []
    for key, peer, library, by_rows, where in (
        ("spark", "cassq-spark", "cassq", "cassq-spark-rows", "from Spark"),
        (
            *("spark-cassandra", "cassq-spark-cassandra", "cassq-cassandra"),
            *("cassq-spark-rows-cassandra", "from Spark, on Cassandra"),
        ),
    ):
        made += [
            Target(f"{where}, {what}: over the library itself", "≥", 0.7, measured)
            for what, measured in (
                ("a write", against(key, library, "write", peer)),
                ("a read", against(key, library, "read", peer)),
            )
        ]
        measured = against(key, by_rows, "write", peer)
        made.append(Target(f"{where}, a write: over a push for each row", "≥", 5.0, measured))
    for figure, what in (("write", "a write"), ("read", "a read"), ("stream", "a stream read")):
        for kafka, mode in (("kafka-spark", "page cache"), ("kafka-spark-synced", "synced")):
            measured = against("spark", kafka, figure, "cassq-spark")
            title = f"from Spark, {what}: over Spark's own on Kafka, {mode}"
            made.append(Target(title, "≥", 1.0, measured))
    return made


# (case, what it is called, peer, what that is called, limit)
SIDECAR_LIMITS = (
    ("one", "one, synced", "kafka-synced", "one Kafka broker, synced", 1.5),
    ("three", "three replicas, synced", "kafka", "three Kafka brokers", 1.2),
    ("three", "three replicas, synced", "nats", "three NATS servers", 10.0),
    ("three", "three replicas, synced", "nats-lean", "three NATS servers, lean client", 10.0),
)


def sidecar_targets() -> list[Target]:
    """Both ways to read "through": all pushed and then all popped, and both at once."""
    made = [
        Target(
            f"on sidecars, {what}, {size:,} B, {how}: cassq over {title}",
            *("≥", limit),
            against(f"sidecars/{key}/{size}", peer, figure, ON_SIDECARS),
        )
        for key, what, peer, title, limit in SIDECAR_LIMITS
        for figure, how in (("through", "through"), ("both", "both at once"))
        for size in SIZES
    ]
    waited = own("sidecar-failover", "p99_s", ON_SIDECARS)
    title = "on sidecars, one of four killed: from the kill to the next acknowledged push, p99"
    return [*made, Target(title, "<", 1.0, waited, unit=" s")]


# (figure, what it is called, comparison, limit, unit)
GATEWAY_LIMITS = (
    ("send", "SendMessage", "≥", 8_000, "/s"),
    ("batch", "messages in batches of ten", "≥", 50_000, "/s"),
    ("receive", "messages received and deleted in tens", "≥", 30_000, "/s"),
    ("plain_push", "messages pushed by plain HTTP", "≥", 300_000, "/s"),
    ("p99_ms", "send to long poll at 500/s, p99", "≤", 5.0, " ms"),
    (
        "leave_ms",
        "until another has what a client that left waited for, the most",
        "≤",
        100.0,
        " ms",
    ),
)


def gateway_targets() -> list[Target]:
    """Of one process of the gateway on one core."""
    made = [
        Target(f"by SQS, {what}", comparison, limit, own("gateway", figure, GATEWAY), unit=unit)
        for figure, what, comparison, limit, unit in GATEWAY_LIMITS
    ]
    made += [
        Target(
            f"by SQS, FIFO: {what}", comparison, limit, own("gateway-fifo", figure, GATEWAY),
            unit=unit,
        )
        for figure, what, comparison, limit, unit in GATEWAY_LIMITS[:3]
    ]  # fmt: skip
    backlogs = {"received": "gateway-backlog", "FIFO: received": "gateway-fifo-backlog"}
    return made + [
        Target(
            f"by SQS, {what}: deepest backlog over shallowest", "≥", 0.9, own(key, "held", GATEWAY)
        )
        for what, key in backlogs.items()
    ]


# (case, figure, what it is called, comparison, limit, unit, whether it holds on servers too)
KEY_LIMITS = (
    ("10,000 keys", "keyed", "10,000 keys: messages a second", "≥", 200_000, "/s", True),
    ("100 keys", "kept_even", "100 keys: over pops as large without order", "≥", 0.6, "×", True),
    ("one of 1,000", "beside", "one key of 1,000 stuck: over none", "≥", 0.95, "×", True),
    ("first", "first_ms", "a million messages in 30 keys: the first", "≤", 50.0, " ms", True),
    ("work", "gained", "8 lanes, 2 processes: over one lane", "≥", 1.7, "×", False),
    ("pushes", "many_kept", "8 lanes: pushes of many over one lane's", "≥", 0.8, "×", False),
    ("pushes", "single_kept", "8 lanes: single pushes over one lane's", "≥", 1 / 3, "×", False),
    ("fair", "p99_ms", "fair, behind a million of another's: p99", "≤", 1000.0, " ms", False),
    ("fair", "kept_cpu", "fair: what the owner of those keeps", "≥", 0.95, "×", False),
)

KEY_PEERS = {
    "cassq": "in the order of keys",
    "cassq-cassandra": "on Cassandra, in the order of keys",
    "cassq-sidecars": "on sidecars, in the order of keys",
}


def key_targets() -> list[Target]:
    return [
        Target(f"{where}, {title}", comparison, limit, own(case, figure, peer), unit=unit)
        for peer, where in KEY_PEERS.items()
        for case, figure, title, comparison, limit, unit, there in KEY_LIMITS
        if there or peer == "cassq"
    ]


TARGETS: tuple[Target, ...] = (
    *through_targets(),
    Target(
        "through, 100 B, on one core: cassq, messages a second (the aim)",
        "≥",
        1_500_000,
        own("through/100/one-core", "through"),
        unit="/s",
    ),
    Target(
        "single pushes, 1 thread: the disk's synced appends over cassq",
        "≤",
        1.3,
        lambda scores: scores.ratio("single", DISK, "cassq", "one"),
    ),
    Target(
        "single pushes, 1 thread: the disk's synced overwrites, which are faster, over cassq",
        "≤",
        1.3,
        lambda scores: scores.ratio("single", DISK, "cassq", "overwrite", "one"),
    ),
    Target("single pushes: 16 threads over 1", "≥", 5.0, within("single", "sixteen", "one")),
    Target("single pushes: 2 processes over 1", "≥", 1.7, within("single", "two_processes", "one")),
    Target(
        "four processes that take one message at a time: cassq over SQLite rows",
        "≥",
        1.5,
        against("workers", "sqlite", "rate"),
    ),
    Target(
        "latency p99 at 500/s: cassq over Redis Streams",
        "≤",
        1.0,
        against("latency", "redis", "p99_ms"),
    ),
    Target(
        "pop + ack: rate at the deepest backlog over that at the shallowest",
        "≥",
        0.9,
        own("backlog", "held"),
    ),
    Target(
        "endurance: peak of the directory, last third over the one before",
        "≤",
        1.1,
        own("endurance", "disk_growth"),
    ),
    Target(
        "endurance: peak of the memory, last third over the one before",
        "≤",
        1.1,
        own("endurance", "rss_growth"),
    ),
    Target(
        "1 % of the messages fail three times: throughput over that without failures",
        "≥",
        0.85,
        own("failing", "kept"),
    ),
    Target("delayed messages pushed a second", "≥", 100_000, own("delayed", "push"), unit="/s"),
    Target(
        "delayed messages delivered a second, once due",
        "≥",
        50_000,
        own("delayed", "pop"),
        unit="/s",
    ),
    Target(
        "delayed messages: memory at the end over that at the start",
        "≤",
        1.5,
        own("delayed", "memory"),
    ),
    Target(
        "messages forwarded a second from an outbox in SQLite",
        "≥",
        50_000,
        own("outbox", "relayed"),
        unit="/s",
    ),
    Target(
        "async tasks pushed, run and acked a second, one process",
        "≥",
        20_000,
        own("tasks", "both"),
        unit="/s",
    ),
    Target(
        "async tasks: cassq over huey in threads",
        "≥",
        10.0,
        own("tasks", "async_times"),
    ),
    Target(
        "Celery: tasks of a group a second, cassq synced over Redis unsynced",
        "≥",
        2.0,
        own("celery", "times"),
    ),
    Target(
        "Celery: a task and its result, p99, cassq synced over Redis unsynced",
        "≤",
        1.0,
        own("celery", "p99_times"),
    ),
    *key_targets(),
    *reap_targets(),
    *engine_targets(),
    *cassandra_targets(),
    *spark_targets(),
    *sidecar_targets(),
    *gateway_targets(),
)


def judge(scores: Scores, targets: tuple[Target, ...] = TARGETS) -> list[Judgement]:
    """Every target with its verdict."""
    judgements = []
    for target in targets:
        value = target.measured(scores)
        judgements.append(Judgement(target, value, target.verdict(value)))
    return judgements
