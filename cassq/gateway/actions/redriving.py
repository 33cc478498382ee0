"""Redriving: tasks that move dead letters back to the queues that they came from, or to another.

A task runs in a thread of the gateway that started it. Its record is kept with the queue of dead
letters, and written every second. So any gateway can list and cancel it, and sees that a task has
failed because its gateway ended. What the task had moved stays moved; a new task moves the rest.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from cassq.base.clock import Stopwatch
from cassq.client.client import Client
from cassq.client.queue import Queue
from cassq.consumer.keyed.take_over import lane_locks
from cassq.dead_letters.bulk_job import BulkOutcome
from cassq.dead_letters.letters import Filter
from cassq.dead_letters.merging import Merging
from cassq.errors import CassqError, QueueNotFoundError
from cassq.gateway.actions import attributes as attrs
from cassq.gateway.actions.faults import fault, wrong_value
from cassq.gateway.actions.host import Host
from cassq.gateway.lane_receiver import REQUEST_MS
from cassq.gateway.request import Answer, Request
from cassq.inspect.stats import group_stats
from cassq.lifecycle.sealing import seal_pipe
from cassq.locks.line import turn_lease
from cassq.locks.port import Lock
from cassq.model.queues import DEFAULT_GROUP, QueuePolicy
from cassq.model.rows import GroupRow
from cassq.settings import QueueSettings

logger: logging.Logger = logging.getLogger("cassq")

RATE_MAX = 500
LISTED_MAX = 10
KEPT = 10  # records of tasks that a queue keeps
WRITE_SECONDS = 1.0
# How long a task asks for the lane of a FIFO queue, how often, and how long it keeps it.
LANE_SECONDS = 10.0
ASK_SECONDS = 0.05
LANE_MS = 60_000
GONE_MS = 15_000  # a task whose record was not written for this long has ended with its gateway
RUNNING, COMPLETED, CANCELLING, CANCELLED, FAILED = (
    *("RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"),
)
_ACTIVE = (RUNNING, CANCELLING)

Record = dict[str, Any]


@dataclass(slots=True)
class _Task:
    """A task in its thread. target: the queue to move to; None: to where each came from."""

    client: Client
    source: Queue
    target: Queue | None
    rate: int | None
    id: str
    moved: int = 0
    stopping: bool = False
    lanes: list[Lock] = field(default_factory=list)

    def stop(self) -> None:
        """Make it end soon, because its gateway ends."""
        self.stopping = True

    def run(self) -> None:
        """Move the letters, and record how that ended."""
        status, reason = COMPLETED, ""
        try:
            self._take_lane()
            for complete in self._moves():
                if not complete:
                    status = FAILED if self.stopping else CANCELLED
                    reason = "its gateway was stopped" if self.stopping else ""
                    break
        except CassqError as exc:
            status, reason = FAILED, str(exc)
            logger.warning("dead letters of %s were not all moved: %s", self.source.name, exc)
        finally:
            for lane in self.lanes:
                lane.release()
        try:
            self._write(status, reason)
        except CassqError as exc:
            logger.warning("the end of a move from %s is not recorded: %s", self.source.name, exc)

    def _take_lane(self) -> None:
        """Take the lane of a keyed group. Its holder has claimed all waiting messages, and gives
        them back with the lane, also those past their deadlines. If the holder keeps the lane,
        because consumers wait there, only the messages that it leaves are moved."""
        ports, watch = self.client.ports, Stopwatch()
        group = _default_group(self.client, self.source)
        if not group.policy.keyed:
            return
        request, owner = turn_lease(group.id), ports.ids.version()
        with self.source.popper() as popper:
            while watch.seconds() < LANE_SECONDS and not self.stopping:
                ports.catalog.leases.take(request, owner, REQUEST_MS)
                popper.release(popper.pop())
                if popper.lanes is not None and popper.lanes.is_held:
                    break
                ports.clock.sleep(ASK_SECONDS)
        names = lane_locks(group.id, self.source.policy.key_lanes)
        locks = [ports.locker.acquire(name, LANE_MS) for name in names]
        self.lanes = [lock for lock in locks if lock is not None]
        ports.catalog.leases.drop(request, owner)

    def _moves(self) -> Iterator[bool]:
        """Move the letters for each destination; yields for each whether it was completed."""
        letters = _default_group(self.client, self.source)
        if self.target is not None:
            yield self._move(letters, Filter(), None, self.target)
            return
        for queue in self.client.queues():
            if queue.policy.dead_letters == self.source.name:
                for group in self.client.ports.catalog.queues.groups(queue.id):
                    where = Filter(died_in=(queue.name, group.name))
                    yield self._move(letters, where, group, queue)

    def _move(self, letters: GroupRow, where: Filter, group: GroupRow | None, to: Queue) -> bool:
        """Move letters to a group of a queue, or to all of its groups."""
        before, watch = self.moved, Stopwatch()

        def wants_end(outcome: BulkOutcome) -> bool:
            nonlocal watch
            self.moved = before + outcome.messages
            if watch.seconds() < WRITE_SECONDS or self.stopping:
                return self.stopping
            watch = Stopwatch()
            for lane in self.lanes:
                lane.renew(LANE_MS)
            return self._write(RUNNING) == CANCELLING

        with to.pusher_for("" if group is None else group.id) as pusher:
            job = Merging(
                self.client.ports,
                letters,
                where,
                group=group,
                append=pusher.push_intended,
                ring=self.client.runtime.doorbell(to.id).ring,
                as_new=True,
                rate=self.rate,
                watch=wants_end,
            )
            outcome = job.run()
        self.moved = before + outcome.messages
        if outcome.messages and attrs.is_fifo(to.policy):
            _seal_open(self.client, to)
        return outcome.complete

    def _write(self, status: str, reason: str = "") -> str:
        """Write the record. Returns the status that it has then: another gateway may have cancelled
        the task."""
        now_ms = self.client.ports.clock.wall_ms()

        def change(record: Record) -> Record:
            ends = status not in _ACTIVE
            kept = record["status"] if not ends else status
            return {
                **record,
                "status": kept,
                "reason": reason,
                "moved": self.moved,
                "beat_ms": now_ms,
            }

        policy = self.source.update_by(_changing(self.id, change))
        return next((r["status"] for r in attrs.moves(policy) if r["id"] == self.id), CANCELLING)


def _seal_open(client: Client, queue: Queue) -> None:
    """Seal a queue's open pipes, so that pushers go on in other pipes. In a strict order, moved
    messages come after the pipes that were open, however long nothing is pushed to those."""
    catalog, store = client.ports.catalog, client.ports.store
    for pipe in catalog.pipes.live(queue.id):
        if pipe.end is None:
            seal_pipe(catalog, store, pipe.id)
    client.runtime.doorbell(queue.id).ring()


def _default_group(client: Client, queue: Queue) -> GroupRow:
    groups = client.ports.catalog.queues.groups(queue.id)
    return next(group for group in groups if group.name == DEFAULT_GROUP)


def _changing(
    task_id: str, change: Callable[[Record], Record]
) -> Callable[[QueuePolicy], QueueSettings]:
    """A change of a policy that changes the record of one task, if it is kept."""

    def changed(policy: QueuePolicy) -> QueueSettings:
        records = [change(r) if r["id"] == task_id else r for r in attrs.moves(policy)]
        return {"attributes": attrs.packed(policy, **{attrs.MOVES: records})}

    return changed


# --- actions ------------------------------------------------------------------------------------


async def start_message_move_task(host: Host, request: Request) -> Answer:
    parameters = request.parameters
    arn: str = parameters["SourceArn"]
    destination: str | None = parameters.get("DestinationArn")
    rate: int | None = parameters.get("MaxNumberOfMessagesPerSecond")
    if rate is not None and not 1 <= rate <= RATE_MAX:
        raise wrong_value("MaxNumberOfMessagesPerSecond", rate, f"must be between 1 and {RATE_MAX}")
    name = host.name_in_arn(arn)
    host.check(request, name)
    target_name = None
    if destination is not None:
        target_name = host.name_in_arn(destination)
        host.check(request, target_name)
    task = await host.client.call(lambda: _begun(host, arn, name, target_name, rate))
    host.start(task.run, task.stop)
    return Answer({"TaskHandle": _handle(task.id, arn)})


def _begun(host: Host, arn: str, name: str, target_name: str | None, rate: int | None) -> _Task:
    """Write the record of a new task, and return the task. Raises ActionError."""
    client = host.client.sync
    source = _queue(client, "SourceArn", name)
    if not any(queue.policy.dead_letters == name for queue in client.queues()):
        raise wrong_value("SourceArn", arn, "it must be the dead-letter queue of another queue")
    target = None
    if target_name is not None:
        target = _queue(client, "DestinationArn", target_name)
        if attrs.is_fifo(target.policy) != attrs.is_fifo(source.policy):
            raise wrong_value("DestinationArn", target_name, "it is not of the type of the source")
        if target_name == name:
            raise wrong_value("DestinationArn", target_name, "it is the source")
    row = source.row
    stats = group_stats(client.ports, row, _default_group(client, source))
    task = _Task(client, source, target, rate, uuid4().hex)
    now_ms = client.ports.clock.wall_ms()
    record = {
        "id": task.id,
        "to": target_name,
        "rate": rate,
        "status": RUNNING,
        "reason": "",
        "started_ms": now_ms,
        "beat_ms": now_ms,
        "moved": 0,
        "total": stats.waiting + stats.pending,
    }

    def change(policy: QueuePolicy) -> QueueSettings:
        records = attrs.moves(policy)
        if any(_status(each, now_ms)[0] in _ACTIVE for each in records):
            raise fault(
                "UnsupportedOperation",
                "There is already a task running. Only one active task is allowed for a source"
                " queue arn at a given time.",
            )
        return {"attributes": attrs.packed(policy, **{attrs.MOVES: [record, *records][:KEPT]})}

    source.update_by(change)
    return task


def _queue(client: Client, parameter: str, name: str) -> Queue:
    try:
        return client.queue(name)
    except QueueNotFoundError as exc:
        raise fault(
            "ResourceNotFoundException",
            f"The resource that you specified for the {parameter} parameter doesn't exist.",
        ) from exc


def _handle(task_id: str, arn: str) -> str:
    return base64.b64encode(json.dumps({"taskId": task_id, "sourceArn": arn}).encode()).decode()


def _status(record: Record, now_ms: int) -> tuple[str, str]:
    """The status of a task, and why it failed, or ""."""
    status: str = record["status"]
    if status in _ACTIVE and now_ms - record["beat_ms"] > GONE_MS:
        return FAILED, "the gateway that ran it has ended"
    return status, record["reason"]


async def list_message_move_tasks(host: Host, request: Request) -> Answer:
    arn: str = request.parameters["SourceArn"]
    most = request.parameters.get("MaxResults", 1)
    if not 1 <= most <= LISTED_MAX:
        raise wrong_value("MaxResults", most, f"must be between 1 and {LISTED_MAX}")
    name = host.name_in_arn(arn)
    host.check(request, name)
    client = host.client.sync
    policy = await host.client.call(lambda: _queue(client, "SourceArn", name).policy)
    now_ms = client.ports.clock.wall_ms()
    results: list[dict[str, Any]] = []
    for record in attrs.moves(policy)[:most]:
        status, reason = _status(record, now_ms)
        found = {
            "TaskHandle": _handle(record["id"], arn) if status == RUNNING else None,
            "Status": status,
            "SourceArn": arn,
            "DestinationArn": host.arn(record["to"]) if record["to"] else None,
            "MaxNumberOfMessagesPerSecond": record["rate"],
            "ApproximateNumberOfMessagesMoved": record["moved"],
            "ApproximateNumberOfMessagesToMove": record["total"],
            "FailureReason": reason or None,
            "StartedTimestamp": record["started_ms"],
        }
        results.append({name: value for name, value in found.items() if value is not None})
    return Answer({"Results": results} if results else {})


async def cancel_message_move_task(host: Host, request: Request) -> Answer:
    handle: str = request.parameters["TaskHandle"]
    try:
        told = json.loads(base64.b64decode(handle.encode(), validate=True))
        task_id, arn = str(told["taskId"]), str(told["sourceArn"])
    except (binascii.Error, ValueError, TypeError, KeyError) as exc:
        raise wrong_value("TaskHandle", handle, "it is not one that was returned") from exc
    name = host.name_in_arn(arn)
    host.check(request, name)
    client = host.client.sync
    now_ms = client.ports.clock.wall_ms()
    found: list[Record] = []

    def cancel(record: Record) -> Record:
        if _status(record, now_ms)[0] not in _ACTIVE:
            raise wrong_value("TaskHandle", handle, "only active tasks can be cancelled")
        found[:] = [record]
        return {**record, "status": CANCELLING}

    queue = await host.client.call(lambda: _queue(client, "TaskHandle", name))
    await host.client.call(lambda: queue.update_by(_changing(task_id, cancel)))
    if not found:
        raise fault("ResourceNotFoundException", "Task does not exist.")
    return Answer({"ApproximateNumberOfMessagesMoved": found[0]["moved"]})
