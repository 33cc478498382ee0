"""Queues and consumer groups: their names and policies.

Times are seconds as floats here and in the public API; `*_ms` properties give the integer
milliseconds that are stored and computed with.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from cassq.errors import ConfigError, InvalidNameError

NAME_LENGTH_MAX = 200
_PART = r"[A-Za-z0-9._-]+"
_QUEUE_NAME = re.compile(rf"{_PART}|(?:/{_PART})+")
_GROUP_NAME = re.compile(_PART)
# The character that user-given names may not contain joins the parts of cassq's own.
OWN = "~"


def check_queue_name(name: str) -> str:
    """`name` if a user may give it to a queue; else InvalidNameError."""
    return _checked("queue", name, _QUEUE_NAME)


def check_group_name(name: str) -> str:
    """`name` if a user may give it to a consumer group; else InvalidNameError."""
    return _checked("group", name, _GROUP_NAME)


def _checked(noun: str, name: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(f"a {noun}'s name is a str, not {type(name).__name__}")
    if len(name) > NAME_LENGTH_MAX or not pattern.fullmatch(name):
        raise InvalidNameError(f"{name[:220]!r} is not a name for a {noun}")
    if any(part in (".", "..") for part in name.split("/")):
        raise InvalidNameError(f"{name!r} is not a name for a {noun}: '.' and '..' are no parts")
    return name


def dead_letter_name(queue: str, group: str) -> str:
    """The name of the queue that holds a group's dead letters."""
    return f"{queue}{OWN}{group}{OWN}dead"


def is_dead_letter_name(name: str) -> bool:
    """Whether a queue holds dead letters."""
    return name.endswith(f"{OWN}dead")


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How a queue behaves; every field can be changed later except `consistency`."""

    # "ap": many pipes side by side. "cp": one at a time, strict order.
    consistency: str = "ap"
    # Seconds a popper may keep messages before they are delivered again.
    claim_timeout: float = 30.0
    # Deliveries of a message to a group before it becomes a dead letter.
    max_deliveries: int = 10
    # How many pipes, oldest first, a popper takes from in turn.
    max_pop_width: int = 8
    # The largest claim, in messages.
    max_claim_messages: int = 10_000
    # A pipe is full after so many messages ...
    max_pushes_per_pipe: int = 1_000_000
    # ... or seconds ...
    max_push_time_of_pipe: float = 600.0
    # ... or bytes.
    max_bytes_per_pipe: int = 256 * 1024 * 1024
    # Seconds after which a pusher that shows no sign of life may be sealed by others.
    lease: float = 10.0
    # Seconds without a push after which a pusher seals its pipe.
    idle_seal: float = 60.0
    # Frames are compressed with "none", "zstd" or "lz4".
    compression: str = "none"

    def __post_init__(self) -> None:
        if self.consistency not in ("ap", "cp"):
            raise ConfigError(f"consistency is 'ap' or 'cp', not {self.consistency!r}")
        if self.compression not in ("none", "zstd", "lz4"):
            raise ConfigError(f"compression is none, zstd or lz4, not {self.compression!r}")
        _check_seconds(self, "claim_timeout", 0.05, 7 * 86400)
        _check_seconds(self, "max_push_time_of_pipe", 0.05, 365 * 86400)
        _check_seconds(self, "lease", 0.5, 3600)
        _check_seconds(self, "idle_seal", 0.05, 365 * 86400)
        _check_count(self, "max_deliveries", 1_000_000)
        _check_count(self, "max_pop_width", 1024)
        _check_count(self, "max_claim_messages", 1_000_000)
        _check_count(self, "max_pushes_per_pipe", 1_000_000_000)
        _check_count(self, "max_bytes_per_pipe", 1 << 40)

    @property
    def strict(self) -> bool:
        """Whether messages are in one order for all."""
        return self.consistency == "cp"


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """How a consumer group behaves; `None` takes the queue's value."""

    # While one popper has messages of a pipe, no other gets any of it. Always so on cp queues.
    exclusive: bool = False
    claim_timeout: float | None = None
    max_deliveries: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.exclusive, bool):
            raise ConfigError(f"exclusive is True or False, not {self.exclusive!r}")
        if self.claim_timeout is not None:
            _check_seconds(self, "claim_timeout", 0.05, 7 * 86400)
        if self.max_deliveries is not None:
            _check_count(self, "max_deliveries", 1_000_000)


Policy = QueuePolicy | GroupPolicy
P = TypeVar("P", QueuePolicy, GroupPolicy)


def changed(policy: P, changes: dict[str, Any]) -> P:
    """`policy` with `changes` made; ConfigError names a setting that does not exist."""
    known = [field.name for field in fields(policy)]
    for name in changes:
        if name not in known:
            raise ConfigError(
                f"there is no setting {name!r}", hint=f"the settings are {', '.join(known)}"
            )
    return replace(policy, **changes)


def as_dict(policy: Policy) -> dict[str, Any]:
    """The policy as plain values, as stored."""
    return asdict(policy)


def known_only(kind: type[Policy], stored: dict[str, Any]) -> dict[str, Any]:
    """The stored settings this version knows: a newer cassq may have written more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}


def differences(old: Policy, new: Policy) -> dict[str, tuple[Any, Any]]:
    """Setting → (old, new) for each that differs."""
    before, after = asdict(old), asdict(new)
    return {k: (before[k], after[k]) for k in before if before[k] != after[k]}


def _check_seconds(policy: Policy, name: str, least: float, most: float) -> None:
    value = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{name} is a number of seconds, not {value!r}")
    if not least <= value <= most:
        raise ConfigError(f"{name} is between {least} and {most} seconds, not {value}")
    object.__setattr__(policy, name, float(value))


def _check_count(policy: Policy, name: str, most: int) -> None:
    value = getattr(policy, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} is a whole number between 1 and {most}, not {value!r}")
