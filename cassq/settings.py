"""Types for settings of queues, groups and schedules, and for choices in other calls' arguments.

`cassq.model.queues` says what they mean and has the defaults; a test checks that names and types
agree.
Arguments accept any sequence where the policy has a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypedDict

Consistency = Literal["ap", "cp"]
Compression = Literal["none", "zstd", "lz4"]
Overflow = Literal["reject", "drop-oldest"]
Order = Literal["any", "key"]
OnDead = Literal["continue", "hold"]

# Choices of other calls: `connect`, `Queue.create_group`, `Queue.peek`, `Queue.history` and
# `Client.create_schedule`.
Durability = Literal["disk", "os"]
Start = Literal["beginning", "now"]
State = Literal["waiting", "pending", "delayed", "dead"]
Step = Literal["minute", "hour", "day"]
TaskState = Literal["waiting", "delayed", "running", "sleeping", "signal", "dead"]
# Why a message became a dead letter, or how it last failed: `Queue.dead_letters`.
DeathReason = Literal["delivery_limit", "rejected", "maxlen", "expired"]
Missed = Literal["once", "all", "skip"]
Overlap = Literal["allow", "skip"]


class ScheduleSettings(TypedDict, total=False):
    """What `Schedule.update` can change; see `Client.create_schedule`. headers, key: None removes
    them."""

    queue: str
    cron: str
    every: float | timedelta
    tz: str
    payload: bytes
    headers: Mapping[str, str] | None
    key: bytes | None
    missed: Missed
    overlap: Overlap
    priority: int


class QueueSettings(TypedDict, total=False):
    """The fields of `cassq.model.queues.QueuePolicy`, times in seconds."""

    consistency: Consistency
    claim_timeout: float
    max_deliveries: int
    retry_schedule: Sequence[float]
    retry_jitter: float
    sick_check: bool
    sick_hold: float
    max_pop_width: int
    priority_share: int
    min_open_pipes: int
    max_open_pipes: int
    key_lanes: int
    max_claim_messages: int
    max_pushes_per_pipe: int
    max_push_time_of_pipe: float
    max_bytes_per_pipe: int
    lease: float
    idle_seal: float
    compression: Compression
    message_ttl: float | None
    retain_consumed: float
    retain_unconsumed: float | None
    max_length: int | None
    overflow: Overflow
    push_paused: bool
    pop_paused: bool
    dedup_window: float
    rate: str | None
    concurrency: int | None
    dead_letters: str
    attributes: str
    owner: str
    alert_no_consumer: float | None
    alert_oldest_age: float | None
    alert_dead_growth: int | None
    alert_stalled: float | None


class GroupSettings(TypedDict, total=False):
    """The fields of `cassq.model.queues.GroupPolicy`, times in seconds. None means the queue's
    value; for `limit_per_key` and `rate_per_key` no limit, and for `group_expires` never."""

    exclusive: bool
    claim_timeout: float | None
    max_deliveries: int | None
    retry_schedule: Sequence[float] | None
    retry_jitter: float | None
    sick_check: bool | None
    sick_hold: float | None
    rate: str | None
    concurrency: int | None
    order: Order
    on_dead: OnDead
    limit_per_key: int | None
    rate_per_key: str | None
    fair: bool
    group_expires: float | None


class WorkerSettings(TypedDict, total=False):
    """The arguments of `Queue.worker`, times in seconds."""

    group: str
    concurrency: int | None
    grace: float
    time_limit: float | None
    max_tasks: int | None
