"""How much a run measures: rounds, messages, seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

SIZES = (100, 1_000)
# Messages for a peer that syncs every one of them, as a share of what the others get.
UNBATCHED_SHARE = 500
UNBATCHED_MIN = 200


@dataclass(frozen=True)
class Plan:
    """The amounts of one run."""

    rounds: int = 3
    # How long the machine is given to become quiet before each measurement, at most.
    quiet_s: float = 3.0
    # Messages of 100 B that pass through; a quarter of it at 1 KB.
    messages: int = 1_000_000
    # How long each peer warms its server up with messages in bulk.
    warm_s: float = 20.0
    # How long single pushes go on, for each count of threads and processes.
    single_s: float = 1.5
    # How long processes take one message at a time.
    workers_s: float = 4.0
    # How long messages come at the given rate, and how long an idle popper is watched.
    latency_s: float = 6.0
    idle_s: float = 3.0
    latency_rate: int = 500
    # Waiting messages at which popping is measured, and for how long in each round.
    backlogs: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)
    backlog_window: int = 10_000
    backlog_s: float = 0.4
    backlog_rounds: int = 7
    # Messages that pass, for at least so long: what is over has to be cleared away several times
    # before it shows whether anything grows. A run too short for that (0 s) does not judge it.
    endurance_messages: int = 30_000_000
    endurance_s: float = 24.0
    endurance_backlog: int = 100_000

    # How long messages pass a queue with failures, and one without.
    failing_s: float = 4.0
    # Messages with keys, which pass each group.
    keys_messages: int = 200_000
    # Fair groups: for how long consumers work, and behind how many messages of one key.
    fair_s: float = 30.0
    fair_backlog: int = 1_000_000
    # Messages for each of which a function is called, in each way.
    handler_messages: int = 40_000
    task_count: int = 16_000
    # Tasks of Celery in a group, and single ones whose results are waited for, at each broker.
    celery_tasks: int = 10_000
    celery_trips: int = 1_000
    # Tasks that each framework pushes and runs.
    framework_tasks: int = 4_000
    # Messages pushed ahead of their time.
    delayed_messages: int = 1_000_000
    # Messages that are written into an outbox, and forwarded.
    outbox_messages: int = 400_000
    # Queues, or pipes of one, over which the reaper passes; how often its daemon does. A pusher is
    # watched in turn with and without passes: in short windows, and in some whole periods.
    reap_count: int = 10_000
    reap_every_s: float = 10.0
    reap_window_s: float = 1.0
    reap_windows: int = 30
    reap_periods: int = 3

    # How much the engine writes at a time in turn with RocksDB by itself, how often, and how many
    # extents it has open.
    engine_window_bytes: int = 128_000_000
    engine_windows: int = 9
    engine_extents: int = 10_000

    # Messages that Spark writes and reads, embedded and on Cassandra, and those of them that it
    # pushes a row at a time.
    spark_messages: int = 5_000_000
    spark_rows: int = 20_000
    spark_cassandra_messages: int = 1_000_000
    spark_cassandra_rows: int = 5_000

    # By the protocol of SQS: how long each kind of request is repeated, how many wait, and how many
    # of these are received at a time.
    gateway_s: float = 4.0
    gateway_backlogs: tuple[int, ...] = (10_000, 1_000_000)
    gateway_window: int = 5_000

    # Beside sidecars: how long messages come at the given rate; how often one of them is killed,
    # and for how long pushes are watched before and after.
    sidecar_latency_s: float = 4.0
    kills: int = 30
    kill_watch_s: float = 1.0

    # On Cassandra: how long messages go one at a time, or two kinds of queue take turns, or many
    # poppers work.
    alternating_s: float = 6.0
    # How long each kind of queue takes turns, and worker processes work, before anything is
    # counted. Servers go on compiling for minutes what only these call: single requests, and
    # conditional writes to one partition.
    turns_warm_s: float = 120.0
    workers_warm_s: float = 240.0
    # How many pipes are retired before a pop is timed, how many pops that are, and for how long
    # pipes are retired at most: what is not reached by then is not measured.
    retired: tuple[int, ...] = (10, 1_000, 100_000)
    retired_pops: int = 200
    retired_fill_s: float = 600.0

    @classmethod
    def quick(cls) -> Self:
        """Enough to see that all works and where the figures lie."""
        return cls(
            rounds=1,
            messages=100_000,
            warm_s=3.0,
            single_s=0.4,
            workers_s=1.0,
            latency_s=1.5,
            idle_s=1.0,
            backlogs=(10_000, 100_000),
            backlog_s=0.1,
            backlog_rounds=3,
            endurance_messages=1_000_000,
            endurance_s=0.0,
            endurance_backlog=50_000,
            failing_s=1.0,
            keys_messages=50_000,
            fair_s=5.0,
            fair_backlog=200_000,
            handler_messages=8_000,
            task_count=2_000,
            celery_tasks=1_000,
            celery_trips=200,
            framework_tasks=2_000,
            delayed_messages=100_000,
            outbox_messages=100_000,
            reap_count=2_000,
            reap_every_s=2.0,
            reap_window_s=0.3,
            reap_windows=10,
            reap_periods=1,
            engine_window_bytes=48_000_000,
            engine_windows=3,
            engine_extents=5_000,
            spark_messages=500_000,
            spark_rows=4_000,
            spark_cassandra_messages=100_000,
            spark_cassandra_rows=1_000,
            gateway_s=1.5,
            gateway_backlogs=(10_000, 100_000),
            sidecar_latency_s=1.5,
            kills=5,
            alternating_s=1.5,
            turns_warm_s=2.0,
            workers_warm_s=2.0,
            retired=(10, 1_000),
            retired_pops=50,
            retired_fill_s=20.0,
        )

    def small(self) -> Self:
        """Next to nothing, for trying the comparison itself."""
        return replace(
            self,
            messages=4_000,
            quiet_s=0.0,
            warm_s=0.0,
            single_s=0.1,
            workers_s=0.1,
            latency_s=0.4,
            idle_s=0.2,
            backlogs=(1_000, 4_000),
            backlog_window=1_000,
            backlog_s=0.02,
            backlog_rounds=2,
            endurance_messages=40_000,
            endurance_s=0.0,
            endurance_backlog=4_000,
            failing_s=0.1,
            keys_messages=5_000,
            fair_s=0.5,
            fair_backlog=10_000,
            handler_messages=1_000,
            task_count=400,
            celery_tasks=40,
            celery_trips=10,
            framework_tasks=400,
            delayed_messages=4_000,
            outbox_messages=2_000,
            reap_count=20,
            reap_every_s=0.2,
            reap_window_s=0.1,
            reap_windows=2,
            engine_window_bytes=400_000,
            engine_windows=1,
            engine_extents=100,
            spark_messages=4_000,
            spark_rows=200,
            spark_cassandra_messages=4_000,
            spark_cassandra_rows=200,
            gateway_s=0.1,
            gateway_backlogs=(500, 2_000),
            gateway_window=200,
            sidecar_latency_s=0.4,
            kills=2,
            kill_watch_s=0.3,
            alternating_s=0.3,
            turns_warm_s=0.0,
            workers_warm_s=0.0,
            retired=(2, 20),
            retired_pops=10,
        )

    def messages_for(self, size: int, batches: bool) -> int:
        """How many messages of a size pass through a peer."""
        count = self.messages if size <= 100 else self.messages // 4
        return count if batches else max(UNBATCHED_MIN, count // UNBATCHED_SHARE)
