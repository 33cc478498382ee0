"""Batches of messages: each entry succeeds or fails on its own, in one answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cassq.base.os_errors import untraced
from cassq.errors import BackendError, QueueFullError, UsageError
from cassq.gateway.actions.contents import SIZE_MAX, Content, content_of
from cassq.gateway.actions.faults import fault
from cassq.gateway.actions.fifo import expired
from cassq.gateway.actions.host import Host
from cassq.gateway.actions.messages import (
    VISIBILITY_SECONDS_MAX,
    check_size,
    deleted_too_late,
    not_in_flight,
    push_of,
    ranged,
    receipt_of,
    sent,
)
from cassq.gateway.errors import ActionError
from cassq.gateway.request import Answer, Request
from cassq.producer.pusher import Push

ENTRIES_MAX = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")

Entry = Mapping[str, Any]


def _entries(request: Request) -> Sequence[Entry]:
    """The entries of a batch. Raises ActionError for a batch that is refused as a whole."""
    entries: Sequence[Entry] = request.parameters.get("Entries") or ()
    if not entries:
        raise fault("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > ENTRIES_MAX:
        raise fault(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent"
            f" {len(entries)}.",
        )
    ids: set[str] = set()
    for entry in entries:
        if not _ID.fullmatch(entry["Id"]):
            raise fault(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and"
                " underscores. It can be at most 80 letters long.",
            )
        if entry["Id"] in ids:
            raise fault("BatchEntryIdsNotDistinct", f"Id {entry['Id']} repeated.")
        ids.add(entry["Id"])
    return entries


class _Outcomes:
    """The outcomes of the entries of a batch."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []

    def fail(self, entry: Entry, error: ActionError) -> None:
        self.failed.append(
            {
                "Id": entry["Id"],
                "SenderFault": error.sender,
                "Code": error.legacy,
                "Message": error.message,
            }
        )

    @property
    def answer(self) -> Answer:
        found = {"Successful": self.done, "Failed": self.failed}
        return Answer({name: entries for name, entries in found.items() if entries})


async def send_message_batch(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    terms, outcomes = hosted.terms, _Outcomes()
    contents: list[tuple[Entry, Content]] = []
    pushes: list[Push] = []
    size = 0
    for entry in _entries(request):
        try:
            content = content_of(entry)
            size += content.size
            check_size(terms, content.size)
            push = push_of(terms, entry, content)
        except ActionError as exc:
            outcomes.fail(entry, exc)
        else:
            contents.append((entry, content))
            pushes.append(push)
    if size > SIZE_MAX:
        raise fault(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {SIZE_MAX} bytes. You have sent {size} bytes.",
        )
    results = await hosted.pusher.push_each(pushes)
    for (entry, content), result in zip(contents, results, strict=True):
        if isinstance(result, str):
            outcomes.done.append({"Id": entry["Id"], **sent(terms, content, result)})
        elif isinstance(result, Exception):
            outcomes.fail(entry, _failure(result))
            untraced(result)
    if not outcomes.done:
        for result in results:
            if isinstance(result, Exception):
                raise result  # all entries failed, perhaps because the store did
    return outcomes.answer


def _failure(error: Exception) -> ActionError:
    """The SQS error for an entry that could not be sent. Raises an error that it does not know."""
    if isinstance(error, UsageError):
        return fault("InvalidParameterValue", str(error))
    if isinstance(error, QueueFullError):
        return fault("OverLimit", str(error))
    if isinstance(error, BackendError):
        return ActionError("ServiceUnavailable", str(error), status=503, sender=False)
    raise error


async def delete_message_batch(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    outcomes = _Outcomes()
    entries: list[Entry] = []
    for entry in _entries(request):
        try:
            receipt_of(hosted, entry["ReceiptHandle"])
        except ActionError as exc:
            outcomes.fail(entry, exc)
        else:
            entries.append(entry)
    handles = [entry["ReceiptHandle"] for entry in entries]
    late = await deleted_too_late(host, hosted, handles) if handles else []
    for entry in entries:
        if entry["ReceiptHandle"] in late:
            outcomes.fail(entry, expired(entry["ReceiptHandle"]))
        else:
            outcomes.done.append({"Id": entry["Id"]})
    return outcomes.answer


async def change_message_visibility_batch(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    outcomes = _Outcomes()
    wanted: dict[int, list[Entry]] = {}
    for entry in _entries(request):
        try:
            receipt_of(hosted, entry["ReceiptHandle"])
            seconds = ranged(
                "VisibilityTimeout", entry.get("VisibilityTimeout", 0), VISIBILITY_SECONDS_MAX
            )
        except ActionError as exc:
            outcomes.fail(entry, exc)
        else:
            wanted.setdefault(seconds, []).append(entry)
    for seconds, entries in wanted.items():
        handles = [entry["ReceiptHandle"] for entry in entries]
        hosted.attempts.changed(handles)
        invalid = await hosted.deliveries.hide(handles, seconds)
        for entry in entries:
            if entry["ReceiptHandle"] in invalid:
                outcomes.fail(entry, not_in_flight(entry["ReceiptHandle"]))
            else:
                outcomes.done.append({"Id": entry["Id"]})
    return outcomes.answer
