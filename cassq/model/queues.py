"""Queues and consumer groups: their names and policies.

Times are seconds as floats here and in the public API; `*_ms` properties give the integer
milliseconds that are stored and computed with.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar, get_args

from cassq import frozen
from cassq.errors import ConfigError, InvalidNameError
from cassq.settings import Compression, Consistency, OnDead, Order, Overflow

NAME_LENGTH_MAX = 200
ATTRIBUTES_LENGTH_MAX = 64 * 1024
DEFAULT_GROUP = "default"
RETRY_STEPS_MAX = 100
RETRY_SECONDS_MAX = 365 * 86400
_POLICIES_KEPT = 1024
KEY_LANES_MAX = 64
KEPT_SECONDS_MAX = 10 * 365 * 86400
# A popper that died without closing counts as alive for up to 15 seconds.
EXPIRES_SECONDS_MIN = 15.0
CONSISTENCIES: tuple[Consistency, ...] = get_args(Consistency)
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)
# The settings of a queue, and those of a group, that cannot be changed.
FIXED_QUEUE_SETTINGS = ("consistency", "key_lanes")
FIXED_SETTINGS = ("exclusive", "order", "on_dead", "limit_per_key", "rate_per_key", "fair")
ORDERS: tuple[Order, ...] = get_args(Order)
ON_DEADS: tuple[OnDead, ...] = get_args(OnDead)
# Not compiled here, which would slow down the start of each process: they are seldom used.
_PART = r"[A-Za-z0-9._-]+"
_QUEUE_NAME = rf"{_PART}|(?:/{_PART})+"
_RATE = r"([1-9][0-9]{0,6})/([smh])"
_RATE_MS = {"s": 1000, "m": 60_000, "h": 3_600_000}
# Joins the parts of cassq's own names; users' names may not contain it.
OWN = "~"


def check_queue_name(name: str) -> str:
    """`name`, if valid for a user's queue; else raises InvalidNameError."""
    return _checked("queue", name, _QUEUE_NAME)


def check_group_name(name: str) -> str:
    """`name`, if valid for a consumer group; else raises InvalidNameError."""
    return _checked("group", name, _PART)


def check_schedule_name(name: str) -> str:
    """`name`, if valid for a schedule; else raises InvalidNameError. The same names are allowed as
    for queues."""
    return _checked("schedule", name, _QUEUE_NAME)


def _checked(noun: str, name: str, pattern: str) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(f"a {noun}'s name must be a str, not {type(name).__name__}")
    if len(name) > NAME_LENGTH_MAX or not re.fullmatch(pattern, name):
        raise InvalidNameError(f"{name[:220]!r} is not a valid {noun} name")
    if any(part in (".", "..") for part in name.split("/")):
        raise InvalidNameError(f"{name!r} is not a valid {noun} name: no part may be '.' or '..'")
    return name


def dead_letter_name(queue: str, group: str) -> str:
    """The name of the queue that holds a group's dead letters."""
    return f"{queue}{OWN}{group}{OWN}dead"


def origin_of(name: str) -> tuple[str, str]:
    """The queue and group whose dead letters a queue holds, from its name."""
    queue, group, _ = name.rsplit(OWN, 2)
    return queue, group


def is_dead_letter_name(name: str) -> bool:
    """Whether a queue holds dead letters."""
    return name.endswith(f"{OWN}dead")


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How a queue behaves; every field can be changed later except `consistency` and
    `key_lanes`."""

    # "ap": many pipes side by side. "cp": one at a time, strict order.
    consistency: Consistency = "ap"
    # Seconds a popper may keep messages before they are delivered again.
    claim_timeout: float = 30.0
    # Deliveries of a message to a group before it becomes a dead letter.
    max_deliveries: int = 10
    # Seconds before a message is delivered again after its 1st, 2nd, ... failure; the last entry
    # repeats. Empty: at once, behind what is waiting.
    retry_schedule: tuple[float, ...] = ()
    # Each delay grows at random by up to this share of it, from 0 to 1.
    retry_jitter: float = 0.0
    # While nothing in a group succeeds, redelivery slows down and no message becomes a dead letter
    # because of its number of deliveries: probably the consumers are sick, and not all messages.
    sick_check: bool = True
    # In a group in which nothing has ever succeeded, `sick_check` keeps a message for at most this
    # many seconds after its first failure. After that, spent deliveries make it a dead letter.
    sick_hold: float = 600.0
    # How many pipes, oldest first, a popper claims from in turn.
    max_pop_width: int = 8
    # One in this many claims of a popper begins with the lowest priority that has messages waiting,
    # so that no priority starves. 0: no claim does; higher priorities always come first.
    priority_share: int = 16
    # How many pipes of an ap queue are open side by side: at least the first number while there
    # are pushes, at most the second, as throughput and the poppers of exclusive groups require.
    min_open_pipes: int = 1
    max_open_pipes: int = 16
    # How many pipes of an ap queue a pusher fills side by side, each with keys of its own, and so
    # how many poppers, in as many processes, can work for a keyed group at once.
    key_lanes: int = 1
    # The largest claim, in messages.
    max_claim_messages: int = 10_000
    # A pipe is full after this many messages ...
    max_pushes_per_pipe: int = 1_000_000
    # ... or seconds ...
    max_push_time_of_pipe: float = 600.0
    # ... or bytes.
    max_bytes_per_pipe: int = 256 * 1024 * 1024
    # Seconds without a sign of life from a pusher after which others may seal its pipe.
    lease: float = 10.0
    # Seconds without a push after which a pusher seals its pipe.
    idle_seal: float = 60.0
    # Frames are compressed with "none", "zstd" or "lz4".
    compression: Compression = "none"
    # Seconds from its push, or from its due time, after which a message is no longer delivered.
    message_ttl: float | None = None
    # Seconds that a pipe is kept after its seal even if every group has committed all of it, so
    # that new groups can start with consumed messages.
    retain_consumed: float = 0.0
    # Seconds after which a message is removed even if it was not consumed.
    retain_unconsumed: float | None = None
    # How many messages the slowest group may have uncommitted ...
    max_length: int | None = None
    # ... before a push is refused ("reject"), or the oldest go to the dead letters ("drop-oldest").
    overflow: Overflow = "reject"
    # While paused, pushes are refused and pops find nothing.
    push_paused: bool = False
    pop_paused: bool = False
    # Seconds within which pushes with the same `dedup_id` are one message.
    dedup_window: float = 0.0
    # How many messages each group gets at most, such as "500/s", over all processes ...
    rate: str | None = None
    # ... and how many of a group's messages may be in consumers' hands at once.
    concurrency: int | None = None
    # The queue that dead letters of its groups move to; empty: a queue of each group's own.
    dead_letters: str = ""
    # What clients of a gateway have set, as a JSON object of strings.
    attributes: str = ""
    # Who is responsible for the queue: alerts are routed by it.
    owner: str = ""
    # Alert when messages have waited this many seconds and no consumer has come ...
    alert_no_consumer: float | None = 900.0
    # ... when the oldest uncommitted message is this many seconds old ...
    alert_oldest_age: float | None = None
    # ... when this many messages became dead letters within an hour ...
    alert_dead_growth: int | None = None
    # ... when there are consumers and messages, but nothing was committed for this many seconds.
    alert_stalled: float | None = None

    def __post_init__(self) -> None:
        if self.consistency not in CONSISTENCIES:
            raise ConfigError(f"consistency must be 'ap' or 'cp', not {self.consistency!r}")
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"compression must be none, zstd or lz4, not {self.compression!r}")
        _check_seconds(self, "claim_timeout", 0.05, 7 * 86400)
        _check_seconds(self, "max_push_time_of_pipe", 0.05, 365 * 86400)
        _check_seconds(self, "lease", 0.5, 3600)
        _check_seconds(self, "idle_seal", 0.05, 365 * 86400)
        _check_count(self, "max_deliveries", 1_000_000)
        _check_schedule(self)
        _check_flag(self, "sick_check")
        _check_seconds(self, "sick_hold", 0.0, KEPT_SECONDS_MAX)
        _check_count(self, "max_pop_width", 1024)
        _check_count(self, "priority_share", 1_000_000, least=0)
        _check_count(self, "min_open_pipes", 1024)
        _check_count(self, "max_open_pipes", 1024)
        if self.min_open_pipes > self.max_open_pipes:
            raise ConfigError(
                f"min_open_pipes is {self.min_open_pipes}, more than max_open_pipes,"
                f" {self.max_open_pipes}"
            )
        self._check_key_lanes()
        _check_count(self, "max_claim_messages", 1_000_000)
        _check_count(self, "max_pushes_per_pipe", 1_000_000_000)
        _check_count(self, "max_bytes_per_pipe", 1 << 40)
        self._check_limits()

    def _check_key_lanes(self) -> None:
        _check_count(self, "key_lanes", KEY_LANES_MAX)
        if self.key_lanes > 1 and self.strict:
            raise ConfigError(
                f"key_lanes is {self.key_lanes}, but a cp queue has one order for all messages",
                hint="leave out key_lanes, or use an ap queue",
            )

    def _check_limits(self) -> None:
        """Check limits and retention; None means no limit."""
        if self.overflow not in OVERFLOWS:
            raise ConfigError(f"overflow must be {' or '.join(OVERFLOWS)}, not {self.overflow!r}")
        for name in ("message_ttl", "retain_unconsumed"):
            if getattr(self, name) is not None:
                _check_seconds(self, name, 0.001, KEPT_SECONDS_MAX)
        if self.max_length is not None:
            _check_count(self, "max_length", 1_000_000_000_000)
        _check_group_limits(self)
        _check_seconds(self, "retain_consumed", 0.0, KEPT_SECONDS_MAX)
        _check_seconds(self, "dedup_window", 0.0, KEPT_SECONDS_MAX)
        _check_flag(self, "push_paused")
        _check_flag(self, "pop_paused")
        self._check_texts()
        self._check_alerts()

    def _check_texts(self) -> None:
        """Check what names another queue, and what belongs to clients of a gateway."""
        if not isinstance(self.dead_letters, str):
            raise ConfigError(
                f"dead_letters must be a queue's name, not {self.dead_letters!r:.220}"
            )
        if self.dead_letters:
            check_queue_name(self.dead_letters)
        if not isinstance(self.attributes, str) or len(self.attributes) > ATTRIBUTES_LENGTH_MAX:
            raise ConfigError(
                f"attributes must be a str of at most {ATTRIBUTES_LENGTH_MAX} characters"
            )

    def _check_alerts(self) -> None:
        """Check who gets alerts, and when; None means never."""
        if not isinstance(self.owner, str) or len(self.owner) > NAME_LENGTH_MAX:
            raise ConfigError(
                f"owner must be a str of at most {NAME_LENGTH_MAX} characters,"
                f" not {self.owner!r:.220}"
            )
        for name in ("alert_no_consumer", "alert_oldest_age", "alert_stalled"):
            if getattr(self, name) is not None:
                _check_seconds(self, name, 0.1, KEPT_SECONDS_MAX)
        if self.alert_dead_growth is not None:
            _check_count(self, "alert_dead_growth", 1_000_000_000)

    @property
    def strict(self) -> bool:
        """Whether all consumers see messages in one order."""
        return self.consistency == "cp"

    @property
    def age_limit_ms(self) -> int | None:
        """How old a message may become; None: no limit."""
        limits = [s for s in (self.message_ttl, self.retain_unconsumed) if s is not None]
        return round(min(limits) * 1000) if limits else None


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """How a consumer group behaves. `None` means the queue's value, unless a comment here says
    something else."""

    # While one popper holds messages of a pipe, no other gets any from it. Always so on cp queues.
    exclusive: bool = False
    claim_timeout: float | None = None
    max_deliveries: int | None = None
    retry_schedule: tuple[float, ...] | None = None
    retry_jitter: float | None = None
    sick_check: bool | None = None
    sick_hold: float | None = None
    rate: str | None = None
    concurrency: int | None = None
    # "key": messages of one key are delivered one after another, in the order in which they were
    # pushed, and none while an earlier one is unsettled. "any": any message at any time.
    order: Order = "any"
    # What happens to later messages of a key when one becomes a dead letter. "continue": they are
    # delivered. "hold": they wait until the dead letter is gone, or the key is released.
    on_dead: OnDead = "continue"
    # How many messages of one key may be unsettled at once. None: any number; with order="key" one.
    limit_per_key: int | None = None
    # The rate, such as "10/s", at which messages of one key are delivered at most; None: any rate.
    rate_per_key: str | None = None
    # Whether the key with the smallest share of the messages in hand, and of the processing time,
    # comes first, so that the backlog of one key does not delay other keys.
    fair: bool = False
    # Seconds without a popper after which the group is removed; None: it stays.
    group_expires: float | None = None

    def __post_init__(self) -> None:
        self._check_keys()
        _check_group_limits(self)
        _check_flag(self, "exclusive")
        _check_flag(self, "fair")
        _check_schedule(self)
        if self.sick_check is not None:
            _check_flag(self, "sick_check")
        if self.sick_hold is not None:
            _check_seconds(self, "sick_hold", 0.0, KEPT_SECONDS_MAX)
        if self.claim_timeout is not None:
            _check_seconds(self, "claim_timeout", 0.05, 7 * 86400)
        if self.max_deliveries is not None:
            _check_count(self, "max_deliveries", 1_000_000)
        if self.group_expires is not None:
            _check_seconds(self, "group_expires", EXPIRES_SECONDS_MIN, KEPT_SECONDS_MAX)

    def _check_keys(self) -> None:
        """Check how messages with keys are delivered."""
        if self.order not in ORDERS:
            raise ConfigError(f"order must be 'any' or 'key', not {self.order!r}")
        if self.on_dead not in ON_DEADS:
            raise ConfigError(f"on_dead must be 'continue' or 'hold', not {self.on_dead!r}")
        if self.on_dead == "hold" and self.order != "key":
            raise ConfigError(
                "on_dead is 'hold', but messages can be held only in a group with order='key'",
                hint="add order='key', or leave out on_dead",
            )
        if self.rate_per_key is not None:
            rate_of(self.rate_per_key, "rate_per_key")
        if self.limit_per_key is None:
            return
        _check_count(self, "limit_per_key", 1_000_000)
        if self.order == "key" and self.limit_per_key > 1:
            raise ConfigError(
                f"limit_per_key is {self.limit_per_key}, but with order='key' the messages of a key"
                " are delivered one at a time",
                hint="leave out limit_per_key, or order",
            )

    @property
    def keyed(self) -> bool:
        """Whether it matters which messages have the same key."""
        limited = self.limit_per_key is not None or self.rate_per_key is not None
        return self.order == "key" or limited or self.fair

    @property
    def interval_per_key_ms(self) -> int:
        """The least time between two deliveries of a key, in milliseconds; 0: no limit."""
        return 0 if self.rate_per_key is None else interval_ms(self.rate_per_key)


def checked_for(name: str, policy: GroupPolicy) -> GroupPolicy:
    """`policy`, if a group with this name may have it; else raises ConfigError."""
    if name == DEFAULT_GROUP and policy.group_expires is not None:
        raise ConfigError(
            f"the group {name!r} cannot have group_expires",
            hint="create another group: poppers that name no group need this one",
        )
    return policy


@frozen.dataclass(frozen=True, slots=True)
class Rules:
    """How messages are delivered to one group: its own values, and the queue's where it has none.

    Times are milliseconds.
    """

    claim_timeout_ms: int
    max_deliveries: int
    retry_schedule: tuple[float, ...]
    retry_jitter: float
    sick_check: bool
    sick_hold_ms: int
    age_limit_ms: int | None = None  # older messages are not delivered
    rate: str | None = None
    concurrency: int | None = None
    limited: bool = False  # whether `rate` or `concurrency` is set

    def retry_ms(self, failures: int, chance: float) -> int:
        """How long a message waits after this many failures. chance: random, from 0 to 1."""
        if not self.retry_schedule:
            return 0
        step = self.retry_schedule[min(max(failures, 1), len(self.retry_schedule)) - 1]
        return round(step * 1000 * (1 + self.retry_jitter * chance))


def rules_of(queue: QueuePolicy, group: GroupPolicy) -> Rules:
    """The rules of a group."""

    def ruling(name: str) -> Any:
        own = getattr(group, name)
        return getattr(queue, name) if own is None else own

    return Rules(
        round(ruling("claim_timeout") * 1000),
        ruling("max_deliveries"),
        ruling("retry_schedule"),
        ruling("retry_jitter"),
        ruling("sick_check"),
        round(ruling("sick_hold") * 1000),
        queue.age_limit_ms,
        rate := ruling("rate"),
        concurrency := ruling("concurrency"),
        rate is not None or concurrency is not None,
    )


Policy = QueuePolicy | GroupPolicy
P = TypeVar("P", QueuePolicy, GroupPolicy)


def changed(policy: P, changes: Mapping[str, Any]) -> P:
    """`policy` with `changes` made. Raises ConfigError, also for a setting that does not exist."""
    known = [field.name for field in fields(policy)]
    for name in changes:
        if name not in known:
            raise ConfigError(
                f"there is no setting {name!r}", hint=f"the settings are {', '.join(known)}"
            )
    new = replace(policy, **changes)
    if changes.get("attributes"):
        _check_attributes(changes["attributes"])
    return new


def _check_attributes(text: str) -> None:
    """Not part of the policy's own checks, so that a stored policy can always be read."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"attributes must be a JSON object, not {text!r:.220}",
            hint="clients of a gateway set attributes; leave them alone",
        )


def as_dict(policy: Policy) -> dict[str, Any]:
    """The policy as plain values, as stored."""
    return asdict(policy)


def to_json(policy: Policy) -> str:
    """The policy as stored."""
    return json.dumps(as_dict(policy))


# Most queues, and most groups, share their policy with others, and parsing and checking it takes
# longer than reading the row. Policies are immutable, so rows can share them.
@lru_cache(_POLICIES_KEPT)
def queue_policy(stored: str) -> QueuePolicy:
    """The policy that was stored; settings this version does not know are left out."""
    return QueuePolicy(**known_only(QueuePolicy, json.loads(stored)))


@lru_cache(_POLICIES_KEPT)
def group_policy(stored: str) -> GroupPolicy:
    """The policy that was stored; settings this version does not know are left out."""
    return GroupPolicy(**known_only(GroupPolicy, json.loads(stored)))


def known_only(kind: type[Policy], stored: dict[str, Any]) -> dict[str, Any]:
    """The stored settings that this version knows: a newer cassq may have written others too."""
    names = {field.name for field in fields(kind)}
    known = {name: value for name, value in stored.items() if name in names}
    if (known.get("retry_jitter") or 0) > 1:
        known["retry_jitter"] = 1.0  # older versions allowed up to 10
    return known


def differences(old: Policy, new: Policy) -> dict[str, tuple[Any, Any]]:
    """Setting → (old, new) for each that differs."""
    before, after = asdict(old), asdict(new)
    return {k: (before[k], after[k]) for k in before if before[k] != after[k]}


def hint_of(found: Mapping[str, tuple[Any, Any]], fixed: Collection[str], noun: str) -> str:
    """What to do instead of an update if some of the settings that differ are `fixed`; "" if none
    are. noun: "queue" or "group"."""
    names = [name for name in found if name in fixed]
    if not names:
        return ""
    return f"{' and '.join(names)} cannot be changed: create another {noun} under another name"


def interval_ms(rate: str) -> int:
    """The time between two messages at a rate such as "10/s", in milliseconds, rounded up. Raises
    ConfigError if it is not a rate."""
    count, unit_ms = rate_of(rate)
    return -(-unit_ms // count)


def rate_of(rate: str, setting: str = "rate") -> tuple[int, int]:
    """A rate such as "10/s" as a number of messages, and of milliseconds in which they come. Raises
    ConfigError, which names the setting, if it is not a rate."""
    match = re.fullmatch(_RATE, rate) if isinstance(rate, str) else None
    if match is None:
        raise ConfigError(
            f"{setting} {rate!r} is not a rate",
            hint='give a number of messages in a second, minute or hour: "10/s", "5/m" or "100/h"',
        )
    return int(match[1]), _RATE_MS[match[2]]


def as_text(found: Mapping[str, tuple[Any, Any]]) -> str:
    """Differences, as from `differences`, as text for a message."""
    return ", ".join(f"{name} is {old!r}, not {new!r}" for name, (old, new) in found.items())


def _check_seconds(policy: Policy, name: str, least: float, most: float) -> None:
    value = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    if not least <= value <= most:
        raise ConfigError(f"{name} must be between {least} and {most} seconds, not {value}")
    object.__setattr__(policy, name, float(value))


def _check_group_limits(policy: Policy) -> None:
    """Check `rate` and `concurrency`; None means no limit."""
    if policy.rate is not None:
        rate_of(policy.rate)
    if policy.concurrency is not None:
        _check_count(policy, "concurrency", 1_000_000)


def _check_flag(policy: Policy, name: str) -> None:
    value = getattr(policy, name)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}")


def _check_schedule(policy: Policy) -> None:
    """Check `retry_schedule`, numbers of seconds, and `retry_jitter`, a share; either may be
    None."""
    steps: Any = policy.retry_schedule
    if steps is not None:
        if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
            raise ConfigError(
                f"retry_schedule must be a list of seconds, not {steps!r}",
                hint="for instance [10, 100, 1000]",
            )
        steps = tuple(steps)
        if len(steps) > RETRY_STEPS_MAX:
            raise ConfigError(
                f"retry_schedule has {len(steps)} steps, but may have at most {RETRY_STEPS_MAX}"
            )
        for step in steps:
            number = isinstance(step, (int, float)) and not isinstance(step, bool)
            if not number or not 0 <= step <= RETRY_SECONDS_MAX:  # also for nan
                raise ConfigError(
                    f"each step of retry_schedule must be between 0 and {RETRY_SECONDS_MAX}"
                    f" seconds, not {step!r}"
                )
        object.__setattr__(policy, "retry_schedule", tuple(float(step) for step in steps))
    if policy.retry_jitter is not None:
        _check_share(policy, "retry_jitter")


def _check_share(policy: Policy, name: str) -> None:
    value = getattr(policy, name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # also for nan
        raise ConfigError(
            f"{name} must be a share from 0 to 1, not {value!r}",
            hint="0.1 lengthens each delay by up to a tenth of it, at random",
        )
    object.__setattr__(policy, name, float(value))


def _check_count(policy: Policy, name: str, most: int, *, least: int = 1) -> None:
    value = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(
            f"{name} must be a whole number between {least} and {most}, not {value!r}"
        )
