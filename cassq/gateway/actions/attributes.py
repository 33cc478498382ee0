"""Attributes of queues: their limits, and what they are of a queue's policy.

What has a setting of cassq is that setting, so that native consumers keep to it and what they
change is seen here; the rest is kept as JSON in the policy's `attributes`, which cassq does not
read.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from cassq.model.queues import QueuePolicy

MAX_RECEIVE_COUNT = 1000
UNLIMITED = 1_000_000  # deliveries, of a queue without a redrive policy
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
SETTABLE = (*NUMBERS, *FLAGS, *TEXTS, *CHOICES, REDRIVE, REDRIVE_ALLOW)
# The keys of the JSON in a policy.
SET, TAGS, CHANGED = "set", "tags", "changed"


@lru_cache(_KEPT)
def _parsed(stored: str) -> dict[str, Any]:
    try:
        found = json.loads(stored or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def kept(policy: QueuePolicy, part: str = SET) -> dict[str, str]:
    """What a policy keeps for clients of a gateway: the attributes that they set, or tags."""
    found = _parsed(policy.attributes).get(part)
    return dict(found) if isinstance(found, dict) else {}


def packed(policy: QueuePolicy, **parts: Any) -> str:
    """The `attributes` of a policy with some parts changed; empty ones are left out."""
    found = {**_parsed(policy.attributes), **parts}
    found = {name: value for name, value in found.items() if value}
    return json.dumps(found, separators=(",", ":"), sort_keys=True) if found else ""


def number(policy: QueuePolicy, name: str) -> int:
    """An attribute that is a number, as it is now."""
    if name == "VisibilityTimeout":
        own = _parsed(policy.attributes).get(SET, {}).get(name)
        return 0 if own == "0" else max(1, round(policy.claim_timeout))
    if name == "MessageRetentionPeriod" and policy.retain_unconsumed is not None:
        return max(1, round(policy.retain_unconsumed))
    own = _parsed(policy.attributes).get(SET, {}).get(name)
    return NUMBERS[name][2] if own is None else int(own)
