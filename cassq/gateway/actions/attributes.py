"""Attributes of queues: their limits, and how they map to a queue's policy.

An attribute that cassq has a setting for is that setting: native consumers follow it, and SQS
clients see what others change. All other attributes are kept as JSON in the policy's `attributes`,
which the rest of cassq does not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from cassq.gateway.actions.faults import fault
from cassq.gateway.errors import ActionError
from cassq.model.queues import QueuePolicy
from cassq.settings import QueueSettings

MAX_RECEIVE_COUNT = 1000
UNLIMITED = 1_000_000  # `max_deliveries` of a queue without a redrive policy
_KEPT = 1024

# Numbers, each with its least and greatest value, and its default.
NUMBERS = {
    "DelaySeconds": (0, 900, 0),
    "MaximumMessageSize": (1024, 1_048_576, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600, 345_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20, 0),
    "VisibilityTimeout": (0, 43_200, 30),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400, 300),
}
FLAGS = ("ContentBasedDeduplication", "FifoQueue", "SqsManagedSseEnabled")
TEXTS = ("Policy", "KmsMasterKeyId")
CHOICES = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
REDRIVE, REDRIVE_ALLOW = "RedrivePolicy", "RedriveAllowPolicy"
OF_FIFO = ("FifoQueue", "ContentBasedDeduplication", *CHOICES)
FIFO = "FifoQueue"
SETTABLE = (*NUMBERS, *FLAGS, *TEXTS, *CHOICES, REDRIVE, REDRIVE_ALLOW)
# Attributes that are settings, except a visibility timeout of 0.
SETTINGS = ("VisibilityTimeout", "MessageRetentionPeriod")
LEAST_TIMEOUT = 0.05
SOURCES_MAX = 10
DEDUP_SECONDS = 300.0
NEW_FIFO = {
    FIFO: "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
# The keys of the JSON in a policy.
SET, TAGS, CHANGED, MOVES = "set", "tags", "changed", "moves"


class Names(Protocol):
    """Translates between names and ARNs of queues."""

    def arn(self, name: str) -> str:
        """The ARN of a queue."""
        ...

    def name_in_arn(self, arn: str) -> str:
        """The name of the queue with an ARN. Raises ActionError."""
        ...


@lru_cache(_KEPT)
def _parsed(stored: str) -> dict[str, Any]:
    try:
        found = json.loads(stored or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def kept(policy: QueuePolicy, part: str = SET) -> dict[str, str]:
    """What a policy keeps for SQS clients. part: the attributes that they set, or their tags."""
    found = _parsed(policy.attributes).get(part)
    return dict(found) if isinstance(found, dict) else {}


def packed(policy: QueuePolicy, **parts: Any) -> str:
    """The `attributes` of a policy with some parts changed; empty ones are left out."""
    found = {**_parsed(policy.attributes), **parts}
    found = {name: value for name, value in found.items() if value}
    return json.dumps(found, separators=(",", ":"), sort_keys=True) if found else ""


def number(policy: QueuePolicy, name: str) -> int:
    """The present value of an attribute that is a number."""
    if name == "VisibilityTimeout":
        own = _parsed(policy.attributes).get(SET, {}).get(name)
        if own == "0" and policy.claim_timeout == LEAST_TIMEOUT:
            return 0
        return max(1, round(policy.claim_timeout))
    if name == "MessageRetentionPeriod" and policy.retain_unconsumed is not None:
        return max(1, round(policy.retain_unconsumed))
    own = _parsed(policy.attributes).get(SET, {}).get(name)
    return NUMBERS[name][2] if own is None else int(own)


def shown(policy: QueuePolicy, name: str, host: Names | None = None) -> str | None:
    """The present value of a settable attribute; None if the queue has none. host: makes ARNs of
    the names of queues in redrive policies; None: shows names."""
    if name in NUMBERS:
        return str(number(policy, name))
    if name == REDRIVE:
        if not policy.dead_letters:
            return None
        target = policy.dead_letters if host is None else host.arn(policy.dead_letters)
        found = {"deadLetterTargetArn": target, "maxReceiveCount": policy.max_deliveries}
        return json.dumps(found, separators=(",", ":"))
    own = kept(policy).get(name)
    return own or ("false" if name == "SqsManagedSseEnabled" else None)


def changed_ms(policy: QueuePolicy) -> int | None:
    """When SQS clients last changed a queue, in catalog time; None if none did."""
    found = _parsed(policy.attributes).get(CHANGED)
    return found if isinstance(found, int) else None


def moves(policy: QueuePolicy) -> list[dict[str, Any]]:
    """The records of move tasks that a policy keeps, newest first."""
    found = _parsed(policy.attributes).get(MOVES)
    return [dict(each) for each in found] if isinstance(found, list) else []


def is_fifo(policy: QueuePolicy) -> bool:
    """Whether SQS clients made a queue as a FIFO queue."""
    own = _parsed(policy.attributes).get(SET) if policy.strict else None
    return isinstance(own, dict) and own.get(FIFO) == "true"


class MessageTerms(NamedTuple):
    """The attributes of a queue that requests for messages need. by_content: whether messages with
    equal bodies are duplicates. by_group: whether deduplication ids are separate for each group.
    Times are in seconds, sizes in bytes."""

    fifo: bool
    by_content: bool
    by_group: bool
    delay: int
    size_max: int
    visible: int
    wait: int


def terms_of(policy: QueuePolicy) -> MessageTerms:
    """The terms of a queue with this policy."""
    own = kept(policy)
    return MessageTerms(
        fifo=is_fifo(policy),
        by_content=own.get("ContentBasedDeduplication") == "true",
        by_group=own.get("DeduplicationScope") == "messageGroup",
        delay=number(policy, "DelaySeconds"),
        size_max=number(policy, "MaximumMessageSize"),
        visible=number(policy, "VisibilityTimeout"),
        wait=number(policy, "ReceiveMessageWaitTimeSeconds"),
    )


def defaults(*, fifo: bool = False) -> QueueSettings:
    """The settings of a queue that SQS clients create, if they set no attributes."""
    found: QueueSettings = {
        "claim_timeout": 30.0,
        "retain_unconsumed": float(NUMBERS["MessageRetentionPeriod"][2]),
        "max_deliveries": UNLIMITED,
        "sick_check": False,
    }
    if fifo:
        found["consistency"] = "cp"
        found["dedup_window"] = DEDUP_SECONDS
        found["attributes"] = packed(QueuePolicy(), **{SET: NEW_FIFO})
    return found


# --- changing -----------------------------------------------------------------------------------


def changing(
    host: Names,
    name: str,
    wanted: Mapping[str, str],
    policies: Mapping[str, QueuePolicy],
    *,
    fifo: bool = False,
) -> Callable[[QueuePolicy], QueueSettings]:
    """A function from a queue's policy to the settings that give it the attributes in `wanted`.
    policies: of all queues, by name. fifo: whether it is a FIFO queue. Checks `wanted` at once.
    Raises ActionError."""
    settings: QueueSettings = {}
    own: dict[str, str] = {}
    for each, value in wanted.items():
        if each not in SETTABLE or (each in OF_FIFO and not fifo):
            raise fault("InvalidAttributeName", f"Unknown Attribute {each}.")
        if each == REDRIVE:
            settings.update(_redrive(host, name, value, policies, fifo=fifo))
            continue
        own[each] = _checked(host, each, value)
        if each == "VisibilityTimeout":
            settings["claim_timeout"] = max(LEAST_TIMEOUT, float(value))
        elif each == "MessageRetentionPeriod":
            settings["retain_unconsumed"] = float(value)

    def change(policy: QueuePolicy) -> QueueSettings:
        changed = {each: value for each, value in {**kept(policy), **own}.items() if value}
        for each in SETTINGS:
            if each in own and own[each] != "0":
                del changed[each]  # the setting has the value
        _check_fifo(changed)
        return {**settings, "attributes": packed(policy, **{SET: changed})}

    return change


def _checked(host: Names, name: str, value: str) -> str:
    """The value of an attribute, checked, as it is kept. Raises ActionError."""
    if name in NUMBERS:
        least, most, _ = NUMBERS[name]
        if not re.fullmatch(r"\d{1,9}", value) or not least <= int(value) <= most:
            raise _wrong(name, f"it must be a whole number from {least} to {most}")
        return str(int(value))
    if name in FLAGS:
        if value.lower() not in ("true", "false"):
            raise _wrong(name, "it must be true or false")
        return value.lower()
    if name in CHOICES and value not in CHOICES[name]:
        raise _wrong(name, f"it must be {' or '.join(CHOICES[name])}")
    if name == "Policy" and value:
        _object(name, value)
    if name == REDRIVE_ALLOW and value:
        return _redrive_allow(host, value)
    return value


def _wrong(name: str, reason: str) -> ActionError:
    return fault(
        "InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {reason}."
    )


def _object(name: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as exc:
        raise _wrong(name, "it is not JSON") from exc
    if not isinstance(found, dict):
        raise _wrong(name, "it must be a JSON object")
    return found


def _check_fifo(attributes: Mapping[str, str]) -> None:
    """Raise ActionError if a FIFO queue's throughput limit does not go with its scope."""
    by_group = attributes.get("FifoThroughputLimit") == "perMessageGroupId"
    if by_group and attributes.get("DeduplicationScope") != "messageGroup":
        raise fault(
            "InvalidParameterValue",
            "Value perMessageGroupId for parameter FifoThroughputLimit is invalid. Reason: it goes"
            " with the DeduplicationScope messageGroup.",
        )


def _redrive(
    host: Names, name: str, value: str, policies: Mapping[str, QueuePolicy], *, fifo: bool
) -> QueueSettings:
    """The settings of a redrive policy. Raises ActionError."""
    if not value:
        return {"dead_letters": "", "max_deliveries": UNLIMITED}
    found = _object(REDRIVE, value)
    if found.keys() != {"deadLetterTargetArn", "maxReceiveCount"}:
        raise _refused(value, "it must have deadLetterTargetArn and maxReceiveCount")
    count = found["maxReceiveCount"]
    if not re.fullmatch(r"\d{1,4}", str(count)) or not 1 <= int(count) <= MAX_RECEIVE_COUNT:
        raise _refused(value, f"maxReceiveCount must be from 1 to {MAX_RECEIVE_COUNT}")
    target = host.name_in_arn(str(found["deadLetterTargetArn"]))
    if target not in policies:
        raise _refused(value, "Dead letter target does not exist")
    if target == name:
        raise _refused(value, "a queue cannot be its own dead letter target")
    if is_fifo(policies[target]) != fifo or policies[target].strict != fifo:
        raise _refused(value, "Dead-letter queue must be same type of queue as the source")
    if not _allows(host, policies[target], name):
        raise _refused(value, "the redrive allow policy of the target does not allow this queue")
    return {"dead_letters": target, "max_deliveries": int(count), "sick_check": False}


def _refused(value: str, reason: str) -> ActionError:
    return fault(
        "InvalidParameterValue",
        f"Value {value:.500} for parameter RedrivePolicy is invalid. Reason: {reason}.",
    )


def _redrive_allow(host: Names, value: str) -> str:
    found = _object(REDRIVE_ALLOW, value)
    permission, sources = found.get("redrivePermission"), found.get("sourceQueueArns")
    if permission not in ("allowAll", "denyAll", "byQueue"):
        raise _wrong(REDRIVE_ALLOW, "redrivePermission must be allowAll, denyAll or byQueue")
    if permission != "byQueue" and sources is not None:
        raise _wrong(REDRIVE_ALLOW, "sourceQueueArns go with byQueue")
    if permission == "byQueue":
        if not isinstance(sources, list) or not 1 <= len(sources) <= SOURCES_MAX:
            raise _wrong(REDRIVE_ALLOW, f"sourceQueueArns must be 1 to {SOURCES_MAX} ARNs")
        for arn in sources:
            host.name_in_arn(str(arn))
    return value


def _allows(host: Names, target: QueuePolicy, source: str) -> bool:
    """Whether a queue's redrive allow policy accepts dead letters of `source`."""
    stored = kept(target).get(REDRIVE_ALLOW)
    if not stored:
        return True
    found = json.loads(stored)
    if found["redrivePermission"] == "byQueue":
        return any(host.name_in_arn(str(arn)) == source for arn in found["sourceQueueArns"])
    return bool(found["redrivePermission"] == "allowAll")
