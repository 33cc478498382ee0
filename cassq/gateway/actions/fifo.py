"""What only FIFO queues have: message groups, deduplication, and receive attempts.

A FIFO queue is a `cp` queue, so all pushes have one order, whichever gateway they come through. Its
group `default` keeps the order of keys, and a message's key is its MessageGroupId.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

from cassq.base.clock import Stopwatch
from cassq.base.ids import made_at_ms
from cassq.catalog.port import Catalog
from cassq.gateway.actions.attributes import MessageTerms
from cassq.gateway.actions.contents import DEDUPLICATION, Content, with_system
from cassq.gateway.actions.faults import fault, missing, wrong_value
from cassq.gateway.errors import ActionError
from cassq.message.ranges import RangeSet
from cassq.model.receipts import Receipt, parsed
from cassq.model.rows import ClaimState
from cassq.producer.pusher import Push

ID_LENGTH_MAX = 128
ATTEMPT_SECONDS = 300.0
ATTEMPTS_MAX = 10_000
_ID = re.compile(r"[!-~]{1,128}")
_SEQ_BITS = 26
_SINCE_MS = 1_704_067_200_000  # 2024


def push_of(terms: MessageTerms, parameters: Mapping[str, Any], content: Content) -> Push:
    """How to push a message to a FIFO queue. Raises ActionError."""
    if parameters.get("DelaySeconds"):
        raise wrong_value(
            "DelaySeconds",
            parameters["DelaySeconds"],
            "The request include parameter that is not valid for this queue type",
        )
    group = checked_id("MessageGroupId", parameters.get("MessageGroupId"))
    if group is None:
        raise missing("MessageGroupId")
    dedup = checked_id("MessageDeduplicationId", parameters.get("MessageDeduplicationId"))
    if dedup is None:
        if not terms.by_content:
            raise fault(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or"
                " MessageDeduplicationId provided explicitly",
            )
        dedup = sha256(content.payload).hexdigest()
    headers = content.headers
    if terms.by_group:  # the queue gets another id, so a header keeps the sender's own
        headers = with_system(headers, DEDUPLICATION, dedup)
        dedup = sha256(f"{group}\0{dedup}".encode()).hexdigest()
    return Push(content.payload, headers, group.encode(), None, None, dedup)


def checked_id(name: str, value: str | None) -> str | None:
    """An id as SQS takes it. Raises ActionError."""
    if value is not None and not _ID.fullmatch(value):
        raise wrong_value(
            name,
            value,
            f"{name} can only include alphanumeric and punctuation characters. 1 to"
            f" {ID_LENGTH_MAX} in length",
        )
    return value


def sequence_number(pipe_id: str, seq: int) -> str:
    """The SequenceNumber of a message of a FIFO queue: 20 digits. Numbers rise from pipe to pipe,
    because the ids of pipes do."""
    return str(_first_number(pipe_id) + seq).zfill(20)


@lru_cache(256)
def _first_number(pipe_id: str) -> int:
    made_ms = (made_at_ms(pipe_id) or _SINCE_MS) - _SINCE_MS
    return made_ms << _SEQ_BITS


def all_expired(catalog: Catalog, handles: Iterable[str]) -> list[str]:
    """Of receipts that are not valid, those whose messages are not settled: they have expired, or
    others have the messages. Cost: a read for each pipe."""
    by_pipe: dict[tuple[str, str], list[Receipt]] = {}
    for receipt in map(parsed, handles):
        by_pipe.setdefault((receipt.group_id, receipt.pipe_id), []).append(receipt)
    found: list[str] = []
    for pipe, receipts in by_pipe.items():
        seqs = [receipt.seq for receipt in receipts]
        rows = catalog.claims.rows(*pipe, range(min(seqs), max(seqs) + 1))
        left = RangeSet.joined([row.left for row in rows if row.state is not ClaimState.DONE])
        found += [receipt.text for receipt in receipts if receipt.seq in left]
    return found


def expired(handle: str) -> ActionError:
    """The error for a receipt handle whose visibility timeout is over."""
    return fault(
        "InvalidParameterValue",
        f"Value {handle!r:.200} for parameter ReceiptHandle is invalid. Reason: The receipt handle"
        " has expired.",
    )


class ReceiveAttempts:
    """What was received by each ReceiveRequestAttemptId, for five minutes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stopwatch, list[str], list[Any]]] = {}
        self._by_handle: dict[str, str] = {}

    def note(self, attempt: str, handles: list[str], messages: list[Any]) -> None:
        """Remember what an attempt received."""
        while self._known:
            oldest, (watch, _, _) = next(iter(self._known.items()))
            if watch.seconds() < ATTEMPT_SECONDS and len(self._known) < ATTEMPTS_MAX:
                break
            self._forget(oldest)
        self._forget(attempt)
        self._known[attempt] = Stopwatch(), handles, messages
        self._by_handle.update(dict.fromkeys(handles, attempt))

    def found(self, attempt: str) -> tuple[list[str], list[Any]] | None:
        """The receipts and messages of an attempt, if it is known."""
        known = self._known.get(attempt)
        if known is None or known[0].seconds() >= ATTEMPT_SECONDS:
            return None
        return known[1], known[2]

    def changed(self, handles: list[str]) -> None:
        """Forget the attempts that received these messages, which were changed since."""
        for handle in handles if self._known else ():
            self._forget(self._by_handle.get(handle, ""))

    def _forget(self, attempt: str) -> None:
        _, handles, _ = self._known.pop(attempt, (None, [], None))
        for handle in handles:
            self._by_handle.pop(handle, None)
