"""The options in `broker_transport_options`, and the arguments of queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cassq.base.arguments import check_seconds
from cassq.errors import ConfigError
from cassq.model.queues import QueuePolicy, check_queue_name
from cassq.popper import WAIT_MAX_SECONDS

# Options that kombu or Celery themselves read, or set for every transport.
_OTHERS = frozenset(
    {
        "client_properties",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "polling_interval",
        "priority_steps",
        "queue_order_strategy",
        "sep",
    }
)
ARGUMENT = "x-cassq-"
# A task that repeatedly kills its worker becomes a dead letter; one whose workers all fail does
# not.
QUEUE_DEFAULTS: Mapping[str, Any] = {"sick_check": True, "max_deliveries": 20}


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """prefix: of the names of all queues. queue_settings: settings of queues that are created here.
    visibility_timeout: how many seconds a claim is kept alive at most. sync_acks: whether each ack
    is on disk before its call returns. confirm_publish: whether a message is on disk before the
    call that publishes it returns, rather than some milliseconds later. group_expires: how many
    seconds a queue that ends with its consumer outlives it."""

    prefix: str = ""
    queue_settings: Mapping[str, Any] = field(default_factory=dict)
    visibility_timeout: float = WAIT_MAX_SECONDS
    sync_acks: bool = False
    confirm_publish: bool = True
    group_expires: float = 60.0

    def __post_init__(self) -> None:
        if self.prefix:
            check_queue_name(self.prefix.replace("/", "") or self.prefix)
        check_seconds("visibility_timeout", self.visibility_timeout, WAIT_MAX_SECONDS)
        check_seconds("group_expires", self.group_expires, WAIT_MAX_SECONDS, least=15)
        _check_settings(self.queue_settings)


def options_of(given: Mapping[str, Any]) -> TransportOptions:
    """The options in `broker_transport_options`. Raises UsageError, which names an unknown option
    or a wrong value."""
    names = {each.name for each in fields(TransportOptions)}
    ours = {"prefix": given["queue_prefix"]} if "queue_prefix" in given else {}
    for name, value in given.items():
        if name in names - {"prefix"}:
            ours[name] = value
        elif name not in _OTHERS and name != "queue_prefix":
            known = ", ".join(sorted({"queue_prefix"} | names - {"prefix"}))
            raise ConfigError(
                f"broker_transport_options has an unknown option {name!r}", hint=f"known: {known}"
            )
    return TransportOptions(**ours)


def settings_of(options: TransportOptions, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a queue to create. arguments: of its declaration; `x-cassq-max-deliveries`,
    for example, sets `max_deliveries`. Raises ConfigError for an unknown setting."""
    settings = {**QUEUE_DEFAULTS, **options.queue_settings}
    for name, value in arguments.items():
        if name.startswith(ARGUMENT):
            settings[name.removeprefix(ARGUMENT).replace("-", "_")] = value
        elif name == "x-message-ttl" and value:
            settings["message_ttl"] = value / 1000
    _check_settings(settings)
    return settings


def _check_settings(settings: Mapping[str, Any]) -> None:
    known = {each.name for each in fields(QueuePolicy)}
    for name in settings:
        if name not in known:
            raise ConfigError(f"a queue has no setting {name!r}")
