"""The user's handle on a queue: it opens pushers and poppers, changes policies, reports state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, Unpack

from cassq.base.arguments import check_count, check_seconds, refuse_pickling
from cassq.base.clock import attempts, contended
from cassq.client.backends.embedded import default_group
from cassq.client.policy_change import change_policy
from cassq.client.runtime import Runtime
from cassq.client.settlement import Act, Settlement
from cassq.client.watched import EXPIRED, WatchedQueue, deleted_group
from cassq.consumer.receipts import ReceiptSettler
from cassq.dead_letters.queue import DeadLetterQueue, QueueAccess
from cassq.dead_letters.releasing import release_key
from cassq.errors import (
    ConfigError,
    GroupExistsError,
    GroupNotFoundError,
    QueueExistsError,
    QueueNotFoundError,
    UsageError,
)
from cassq.inspect.audit import Audit, audit_queue
from cassq.inspect.degradation import stats_with_troubles
from cassq.inspect.expired_groups import ExpiredGroup, expired_groups
from cassq.inspect.explain import Explanation, explain
from cassq.inspect.held_keys import HeldKey, held_keys
from cassq.inspect.history import Point, Rates, history, queue_rates
from cassq.inspect.peeking import Peeked, check_state, peek
from cassq.inspect.stats import QueueStats
from cassq.lifecycle.cancelling import cancel
from cassq.lifecycle.damage import PipeDamage, PipeInfo, look_into, pipes_of
from cassq.lifecycle.groups import group_starts
from cassq.lifecycle.ports import Ports, operation
from cassq.lifecycle.purging import count_waiting, purge
from cassq.lifecycle.retries import letter_groups, letters_name
from cassq.lifecycle.skipping import skip
from cassq.message.compression import check_compression
from cassq.model.priorities import PLAIN, Level
from cassq.model.queues import (
    DEFAULT_GROUP,
    FIXED_QUEUE_SETTINGS,
    FIXED_SETTINGS,
    GroupPolicy,
    QueuePolicy,
    as_dict,
    as_text,
    changed,
    check_group_name,
    checked_for,
    differences,
    hint_of,
    is_dead_letter_name,
)
from cassq.model.receipts import Receipt, parsed_all
from cassq.model.rows import GroupRow, QueueRow
from cassq.popper import KEEP_ALIVE_SECONDS, MAINTENANCE_SECONDS, Popper
from cassq.producer.admission import Admission
from cassq.producer.dedup import find_message
from cassq.producer.pusher import Pusher
from cassq.producer.quota import drained, lengths, paused
from cassq.producer.spilling import Overflow
from cassq.settings import GroupSettings, QueueSettings, Start, State, Step, WorkerSettings
from cassq.worker.choosing import AnyHandler, AnyWorker, worker_of
from cassq.worker.loop import GRACE_SECONDS, LoopSettings, WorkSource

SETTLERS_MS = 2_000  # how old the policies of settlers may be
PEEK_MAX = 100_000
DRAIN_SECONDS_MAX = 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its name and policy."""

    name: str
    policy: GroupPolicy

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, **as_dict(self.policy)}


class Queue:
    """A named stream of messages; get one from `Client.create_queue` or `Client.queue`."""

    def __init__(self, runtime: Runtime, row: QueueRow) -> None:
        self._runtime = runtime
        self._life = runtime.life
        self._row = row
        self.watched: WatchedQueue = WatchedQueue(row, self._load, self._both, self._latest)
        self._settlers: dict[str, ReceiptSettler] = {}  # by group
        self._settlers_ms = 0  # boot time when their policies were read

    @property
    def _ports(self) -> Ports:
        """Raises BackendUnavailableError while no server has answered yet."""
        return self._runtime.ports

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def id(self) -> str:
        return self._row.id

    @property
    def policy(self) -> QueuePolicy:
        """The current policy. Cost: one read."""
        return self._load().policy

    @property
    def row(self) -> QueueRow:
        """The queue's row in the catalog, as a reaper takes it. Cost: one read."""
        return self._load()

    def _load(self) -> QueueRow:
        self._life.check()
        return self._there(self._ports.catalog.queues.by_id(self._row.id))

    def _both(self) -> tuple[QueueRow, list[GroupRow]]:
        """The queue and its groups. Cost: one read."""
        self._life.check()
        row, groups = self._ports.catalog.queues.with_groups(self._row.id)
        return self._there(row), groups

    def _there(self, row: QueueRow | None) -> QueueRow:
        if row is None or row.deleted:
            raise QueueNotFoundError(f"queue {self._row.name!r} was deleted")
        return row

    def _latest(self, load: Callable[[], QueueRow]) -> QueueRow:
        """The row; if no quorum answers and pushes may be spilled, the last one seen."""
        overflow, known = self._runtime.overflow, self.watched.row.known
        return load() if overflow is None else overflow.latest(load, known)

    # --- pushing and popping --------------------------------------------------------------------

    @operation
    def pusher(self) -> Pusher:
        """A pusher with a pipe of its own. Cost: none until the first push."""
        return self.new_pusher()

    def new_pusher(self) -> Pusher:
        """The same as `pusher`, for use inside a call of the client."""
        return self.pusher_for(
            "", None if is_dead_letter_name(self.name) else self._runtime.overflow
        )

    def forwarding_pusher(self) -> Pusher:
        """A pusher for spilled messages. It stops when the outcome of a push is unknown."""
        return self.pusher_for("", patient=False)

    def tick_pusher(self) -> Pusher:
        """A pusher for messages of schedules. It never spills."""
        return self.pusher_for("")

    def pusher_for(
        self, group_id: str, overflow: Overflow | None = None, *, patient: bool = True
    ) -> Pusher:
        row = self._latest(self._load) if overflow else self._load()
        check_compression(row.policy.compression)
        self.watched.row.put(row)
        if overflow is not None:
            overflow.expect(row)
        runtime = self._runtime

        def opened(level: Level) -> Pusher:
            admission = Admission(
                lambda: runtime.ports,
                runtime.clock,
                self.watched.row,
                runtime.dead_letter,
                group_id=group_id,
                overflow=overflow,
                patient=patient,
                level=level,
            )
            doorbell = runtime.doorbell(row.id)
            pusher = Pusher(admission, doorbell, self._life, opened, runtime.appends_side_by_side)
            runtime.add_maintenance(pusher.maintain, 0.25)
            runtime.opened(pusher, self.watched)
            return pusher

        return opened(PLAIN)

    @operation
    def popper(
        self, group: str = "default", *, keep_alive: float | None = KEEP_ALIVE_SECONDS
    ) -> Popper:
        """A member of a consumer group.

        keep_alive: claims of delivered messages are extended automatically, for up to this many
        seconds from the claim, while this process and the thread that popped them run; 0 or
        None: they end after `claim_timeout`. Cost: a synced transaction every third of
        `claim_timeout`, while messages are held that long; in a group with `group_expires`, one
        more now and one at close. Raises GroupNotFoundError.
        """
        return self._open_popper(group, keep_alive)

    def _open_popper(self, group: str, keep_alive: float | None, *, shared: bool = False) -> Popper:
        queue_row, found = self._with_group(group)
        row = self._polled(found)
        watched = self.watched.group(row)
        self.watched.row.put(queue_row)
        popper = Popper(
            self._ports,
            self.watched.row,
            watched,
            dead_letter=self._runtime.dead_letter,
            doorbell=self._runtime.doorbell(row.queue_id),
            run_within=self._runtime.run_within,
            soon=lambda: self._runtime.call_soon(popper.maintain),
            keep_alive=keep_alive,
            shared=shared,
        )
        self._runtime.add_maintenance(popper.maintain, MAINTENANCE_SECONDS)
        self._runtime.attend(watched, popper.tally)
        self._runtime.opened(popper, self.watched)
        return popper

    def run(self, handler: AnyHandler, **settings: Unpack[WorkerSettings]) -> None:
        """Call `handler(message)` for every message of a group until SIGTERM or SIGINT: short for
        `worker(handler, ...).run()`, with the same settings."""
        self.worker(handler, **settings).run()

    @operation
    def worker(
        self,
        handler: AnyHandler,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int | None = None,
        grace: float = GRACE_SECONDS,
        time_limit: float | None = None,
        max_tasks: int | None = None,
    ) -> AnyWorker:
        """A worker that calls `handler(message)` for every message of a group, in threads, or, if
        the handler is async, in tasks of an event loop. The message is acked when the handler
        returns, and nacked with the error when it raises. concurrency: the number of threads or
        tasks; None: 8 or 100. grace: how many seconds calls may go on after the worker is stopped.
        time_limit: a call that takes more seconds counts as failed, though its thread goes on.
        max_tasks: the worker ends after this many calls. Claims are kept alive for an hour, or
        `time_limit` if that is longer. Raises UsageError for a handler that does not take exactly
        one message. Cost: one read; while it runs, one unsynced transaction for all messages that
        free threads take together.
        """
        queue_row, row = self._with_group(group)
        in_order = (row.policy.exclusive or queue_row.policy.strict) and not row.policy.keyed
        opens = partial(self._shared, group)
        source = WorkSource(self.name, group, in_order, opens, lambda: self._ports)
        return worker_of(source, handler, LoopSettings(concurrency, grace, time_limit, max_tasks))

    @operation
    def _shared(self, group: str, keep_alive: float) -> Popper:
        return self._open_popper(group, keep_alive, shared=True)

    def settle(self, receipts: str | Iterable[str]) -> Settlement:
        """Settle one delivery, or several, by `Message.receipt`: from any process, even after the
        popper that delivered the messages is gone.

            queue.settle(receipt).ack()

        Cost: none here; for each method of the result, a read for each run of messages, two in a
        keyed group, and one synced transaction for each group; two reads more every two seconds.
        Raises UsageError for an invalid receipt; so do the methods for one of another queue.
        """
        found = parsed_all(receipts)
        return Settlement(lambda act: self._act_on(found, act))

    @operation
    def _act_on(self, receipts: Sequence[Receipt], act: Act) -> list[Receipt]:
        by_group: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            by_group.setdefault(receipt.group_id, []).append(receipt)
        late = self._runtime.clock.boot_ms() - self._settlers_ms >= SETTLERS_MS
        if late or not by_group.keys() <= self._settlers.keys():
            self._look_at_settlers()
        for group_id in by_group:
            if group_id not in self._settlers:
                raise UsageError(
                    f"a receipt does not belong to any group of queue {self.name!r}",
                    hint="settle it through the queue that the message was popped from; the group"
                    " may have been deleted",
                )
        return [
            receipt
            for group_id, some in by_group.items()
            for receipt in act(self._settlers[group_id], some)
        ]

    def _look_at_settlers(self) -> None:
        """Keep a settler for each group that exists, with current policies. Cost: one read."""
        now_ms = self._runtime.clock.boot_ms()
        queue, rows = self._both()
        self.watched.row.put(queue)
        self._settlers = {row.id: self._settler(row) for row in rows}
        self._settlers_ms = now_ms

    def _settler(self, row: GroupRow) -> ReceiptSettler:
        """The settler of a group. row: its current row."""
        group = self.watched.group(row)
        settler = self._settlers.get(row.id)
        if settler is None:
            ring = self._runtime.doorbell(row.queue_id).ring
            settler = ReceiptSettler(
                self._ports, self.watched.row, group, self._runtime.dead_letter, ring
            )
        return settler

    # --- policies and groups --------------------------------------------------------------------

    @operation
    def update(self, **policy: Unpack[QueueSettings]) -> QueuePolicy:
        """Change settings; returns the new policy.

        They apply at once to this client's pushers and poppers; other clients adopt them within two
        seconds, or half a lease if that is less. Raises ConfigError for a setting that does not
        exist or cannot be changed.
        """
        return self._update(policy)

    def _update(self, policy: QueueSettings) -> QueuePolicy:
        return change_policy(self._runtime, self._load, lambda _: policy)

    @operation
    def update_by(self, change: Callable[[QueuePolicy], QueueSettings]) -> QueuePolicy:
        """`update` with settings that depend on the current policy. change: called with that
        policy; called again if another client changes it at the same time."""
        return change_policy(self._runtime, self._load, change)

    @operation
    def create_group(
        self,
        name: str,
        *,
        start: Start | datetime = "beginning",
        **policy: Unpack[GroupSettings],
    ) -> Group:
        """Create a consumer group, which gets every message from `start` on.

        start: "beginning" (everything not yet retired), "now", or the push time of the first
        message. If the group exists with the same settings, returns it. Raises GroupExistsError if
        it has other settings.

        group_expires: the group is removed, with its position and claims, after this many seconds
        without a popper; at least 15, and not for the group `default`. They count from when the
        group was created, or its last popper closed or died; see `expired_groups`.
        Cost: for a datetime, one read of each live pipe.
        """
        check_group_name(name)
        new = checked_for(name, changed(GroupPolicy(), policy))
        ports = self._ports
        for _ in attempts(self._runtime.clock):
            row, groups = self._both()
            existing = next((each for each in groups if each.name == name), None)
            if existing is not None:
                found = self._same_group(existing, new)
                if new.group_expires is None or self._note_poll(existing):
                    return found
                continue  # it expired this moment
            starts = group_starts(ports, row, start)
            now_ms = ports.catalog.now_ms()
            group = GroupRow(ports.ids.new(now_ms), row.id, name, new, now_ms)
            if ports.catalog.queues.create_group(group, starts, row.groups_version):
                return Group(name, new)
        raise contended(f"the groups of queue {self.name!r}")

    def _same_group(self, existing: GroupRow, new: GroupPolicy) -> Group:
        if existing.policy != new:
            found = differences(existing.policy, new)
            raise GroupExistsError(
                f"group {existing.name!r} of {self.name!r} exists: {as_text(found)}",
                hint=hint_of(found, FIXED_SETTINGS, "group"),
                differences=found,
            )
        return Group(existing.name, existing.policy)

    @operation
    def update_group(self, name: str, **policy: Unpack[GroupSettings]) -> Group:
        """Change a group's settings: at once for this client's poppers, within a second for those
        of others. The time of `group_expires` starts again."""
        row = self._group(name)
        new = checked_for(name, changed(row.policy, policy))
        for setting in FIXED_SETTINGS:
            if getattr(new, setting) != getattr(row.policy, setting):
                raise ConfigError(f"{setting} cannot be changed", hint="create another group")
        if new.group_expires is not None or row.policy.group_expires is not None:
            self._note_poll(row)  # first, so that it cannot expire by the new limit at once
        if not self._ports.catalog.queues.update_group(row.id, new):
            raise deleted_group(row, self.name)
        self._runtime.changed(replace(row, policy=new))
        return Group(name, new)

    @operation
    def groups(self) -> list[Group]:
        """The consumer groups by name."""
        return [Group(row.name, row.policy) for row in self._both()[1]]

    @operation
    def delete_group(self, name: str) -> None:
        """Delete a group and its claims. Its dead letters stay: they are a queue of their own."""
        row = self._group(name)
        if not self._ports.catalog.queues.delete_group(row.id):
            raise deleted_group(row, self.name)
        self.watched.refresh()

    @operation
    def expired_groups(self) -> list[ExpiredGroup]:
        """The groups that `group_expires` removed in the last 60 days, oldest first, each with
        counts of its messages at that time. Cost: two reads."""
        return expired_groups(self._ports.catalog, self._load().id)

    def _group(self, name: str) -> GroupRow:
        return self._with_group(name)[1]

    def _with_group(self, name: str) -> tuple[QueueRow, GroupRow]:
        """The queue and one of its groups. Cost: one read. Raises GroupNotFoundError."""
        check_group_name(name)
        queue, groups = self._both()
        for row in groups:
            if row.name == name:
                return queue, row
        gone = [each for each in expired_groups(self._ports.catalog, queue.id) if each.name == name]
        hint = EXPIRED.format(gone[-1].expires) if gone else ""
        raise GroupNotFoundError(f"queue {self.name!r} has no group {name!r}", hint=hint)

    def _polled(self, row: GroupRow) -> GroupRow:
        """The group of a popper that is being opened; notes the time if the group can expire.
        Raises GroupNotFoundError if it has just expired."""
        if row.policy.group_expires is not None and not self._note_poll(row):
            raise deleted_group(row, self.name)
        return row

    def _note_poll(self, row: GroupRow) -> bool:
        catalog = self._ports.catalog
        return catalog.queues.poll_group(row, catalog.now_ms())

    @operation
    def cancel(self, message_id: str | None = None, *, dedup_id: str | None = None) -> bool:
        """Cancel a delayed message. True if no existing group has received it or will, apart from
        groups that received it and were purged since.

        dedup_id: names the message by what it was pushed with, within the queue's `dedup_window`;
        if it is pushed again with this id, it stays cancelled until the window ends. Raises
        UsageError for an invalid or unknown id, or a message that was not delayed. Cost: two synced
        transactions for each group.
        """
        queue = self._load()
        if (message_id is None) == (dedup_id is None):
            raise UsageError("cancel takes either the id of a message or its dedup_id")
        if dedup_id is not None:
            message_id = find_message(self._ports, queue, dedup_id)
        return cancel(self._ports, queue, message_id)

    def dead_letters(self, group: str = "default") -> DeadLetterQueue:
        """The dead letters of a group, to inspect, merge back or delete. The group itself may be
        deleted already. Cost: two reads."""
        check_group_name(group)
        runtime, name = self._runtime, letters_name(self._ports, self._load(), group)
        access = QueueAccess(
            ports=lambda: self._ports,
            group_row=lambda: self._group(group),
            places=lambda: letter_groups(self._ports, self._load(), group),
            pusher_to_group=lambda group: self.pusher_for(group.id),
            pusher_to_letters=lambda: own_queue(runtime, name).new_pusher(),
            ring=lambda: runtime.doorbell(self.row.id).ring(),
        )
        return DeadLetterQueue(access, name)

    # --- pausing, draining, purging -------------------------------------------------------------

    @operation
    def pause(self, *, push: bool = True, pop: bool = True) -> None:
        """Until `resume`, refuse pushes with QueuePausedError, and return nothing from pops.

        push, pop: False leaves that side unchanged. Poppers may still commit the messages that they
        hold.
        """
        self._update(paused(True, push=push, pop=pop))

    @operation
    def resume(self, *, push: bool = True, pop: bool = True) -> None:
        """End a pause. push, pop: False leaves that side unchanged."""
        self._update(paused(False, push=push, pop=pop))

    def drain(self, timeout: float = 60.0) -> int:
        """Pause pushing, and wait until every group has committed everything. Returns 0 once the
        queue is drained, or after `timeout` seconds how many messages the slowest group has left.

        Pushing stays paused; poppers must do the work. Takes at least as long as running pushers
        may need to notice the pause: 4 seconds, or a lease if that is less.
        """
        check_seconds("timeout", timeout, DRAIN_SECONDS_MAX)
        self.pause(pop=False)
        return drained(self._runtime.clock, self._left, timeout, 2 * self.watched.watch_ms)

    @operation
    def _left(self) -> int:
        """How many messages the slowest group has not committed."""
        return max(lengths(self._ports, self._load(), doomed=True).values())

    @operation
    def purge(self, group: str | None = None, *, held: bool = False) -> dict[str, int]:
        """Permanently remove all messages that wait for a group (None: for each group), including
        delayed ones. Returns group → number of messages. Messages pushed after the call stay.

        held: also remove the messages that poppers hold, whose acks, nacks and receipts are then
        refused; a popper may still hand out what it has prefetched. By default poppers keep the
        messages that they hold. Cost: see `cassq.lifecycle.purging`.
        """
        return purge(self._ports, *self._with_groups(group), held=held)

    @operation
    def count_waiting(self, group: str | None = None, *, held: bool = False) -> dict[str, int]:
        """What `purge` would remove: group → number of messages."""
        return count_waiting(self._ports, *self._with_groups(group), held=held)

    def _with_groups(self, name: str | None) -> tuple[QueueRow, list[GroupRow]]:
        """The queue and this group, or all of its groups. Cost: one read."""
        if name is None:
            return self._both()
        queue, row = self._with_group(name)
        return queue, [row]

    # --- looking --------------------------------------------------------------------------------

    @operation
    def peek(
        self, max_messages: int = 10, *, group: str = "default", state: State | None = None
    ) -> list[Peeked]:
        """The next messages that a group has not committed, by priority, oldest pipe first, without
        affecting them.

        state: only messages that are "waiting", "pending" or "delayed", or the group's dead letters
        ("dead"). A pipe that cannot be read is skipped and logged. Cost: reads the frames with
        these messages.
        """
        check_count("max_messages", max_messages, PEEK_MAX)
        check_state(state)
        return peek(self._ports, *self._with_group(group), max_messages, state)

    @operation
    def held_keys(self, group: str, limit: int = 20) -> list[HeldKey]:
        """The keys of a keyed group whose messages wait for one that failed, is in hand, or is a
        dead letter; the longest lines come first. Cost: see `cassq.inspect.held_keys`."""
        check_count("limit", limit, PEEK_MAX)
        return held_keys(self._ports, self.name, self._group(group), limit)

    @operation
    def release_key(self, group: str, key: bytes, *, give_up: bool = False) -> int:
        """Release a key that dead letters hold (`on_dead="hold"`); they stay dead letters. give_up:
        also if a failed message holds it: make that one a dead letter first. Returns how many
        messages held it. See `cassq.dead_letters.releasing`."""
        end = self._runtime.dead_letter if give_up else None
        found = release_key(self._ports, *self._with_group(group), key, end)
        if found:
            self._runtime.doorbell(self.row.id).ring()
        return found

    @operation
    def explain(self, message_id: str) -> Explanation:
        """The state of a message for every group, what happened to it, and what happens next and
        when. Raises MessageNotFoundError if it is not in this queue. Cost: see
        `cassq.inspect.explain`.
        """
        return explain(self._ports, message_id, self._load())

    @operation
    def stats(self) -> QueueStats:
        """Depths for each group, pipes, the oldest message's age, and troubles of the last two
        days. Cost: see `cassq.inspect.stats`."""
        return stats_with_troubles(self._ports, self._load())

    @operation
    def rates(self) -> Rates:
        """Messages per second over the last 1, 5 and 15 minutes. Cost: that of `stats`, and half an
        hour of samples."""
        return self._stats_and_rates()[1]

    @operation
    def stats_and_rates(self) -> tuple[QueueStats, Rates]:
        """`stats` and `rates` of one moment."""
        return self._stats_and_rates()

    def _stats_and_rates(self) -> tuple[QueueStats, Rates]:
        row = self._load()
        stats = stats_with_troubles(self._ports, row)
        return stats, queue_rates(self._ports, row, stats)

    @operation
    def history(
        self,
        group: str | None = "default",
        *,
        step: Step = "minute",
        since: datetime | float | None = None,
    ) -> list[Point]:
        """Totals, depths and rates by minute, hour or day, oldest first.

        group: None means the queue as a whole, which has only `pushed`. since: a time, or how many
        seconds back; None: 3 hours by minute, 3 days by hour, 90 days by day. Kept: 2 days by
        minute, 60 days by hour, 5 years by day. Cost: reads no message.
        """
        queue, row = (self._load(), None) if group is None else self._with_group(group)
        return history(self._ports, queue, row, step, since)

    def audit(self) -> Audit:
        """Prove from the stored data that nothing is lost. Cost: reads every live pipe."""
        return audit_queue(self._ports, self._load())

    # --- pipes, and damage in them --------------------------------------------------------------

    @operation
    def pipes(self) -> list[PipeInfo]:
        """The pipes that are not retired, oldest first. Cost: three ranges of keys for each pipe
        and group; no message is read."""
        return pipes_of(self._ports, self._load())

    @operation
    def look_into_pipe(self, pipe_id: str) -> PipeDamage:
        """Find which parts of a pipe cannot be read, and how many messages each group would lose if
        `skip_damage` skipped them.

        Raises UsageError if the queue has no such pipe. Cost: reads the whole pipe.
        """
        return look_into(self._ports, self._load(), pipe_id)

    @operation
    def skip_damage(self, pipe_id: str, *, dry_run: bool = False) -> PipeDamage:
        """Skip the damage in a pipe: its unreadable messages are permanently recorded as lost, for
        each existing group that has not received them; readable ones are delivered.

        dry_run: only report, as `look_into_pipe` does. A pipe that is still written to is sealed
        first. Consumers keep the messages that they hold: skip again once they have finished them.
        Raises UsageError if the queue has no such pipe. Cost: reads the whole pipe; see
        `cassq.lifecycle.skipping`.
        """
        return skip(self._ports, self._load(), pipe_id, dry_run=dry_run)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a queue is not iterable: iterate over queue.popper()")

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            "queue",
            "pass its name and the client's url, and call cassq.connect(url).queue(name) there",
        )

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"


# --- making one -----------------------------------------------------------------------------------


def create_queue(
    runtime: Runtime, name: str, policy: QueueSettings, group: GroupPolicy | None = None
) -> Queue:
    """Create a queue, or return one with the same policy. group: the policy of its group `default`.
    Raises QueueExistsError, ConfigError."""
    catalog, ids = runtime.ports.catalog, runtime.ports.ids
    new = changed(QueuePolicy(), policy)
    check_compression(new.compression)
    now_ms = catalog.now_ms()
    row = QueueRow(ids.new(now_ms), name, new, version=1, groups_version=1)
    if catalog.queues.create(row, default_group(row.id, ids, now_ms, group)):
        return Queue(runtime, row)
    existing = catalog.queues.named(name)
    if existing is None:
        return create_queue(runtime, name, policy, group)  # deleted this moment
    found = differences(existing.policy, new)
    if found:
        hint = hint_of(found, FIXED_QUEUE_SETTINGS, "queue")
        text = f"queue {name!r} exists: {as_text(found)}"
        raise QueueExistsError(text, hint=hint, differences=found)
    return Queue(runtime, existing)


def own_queue(runtime: Runtime, name: str, **policy: Unpack[QueueSettings]) -> Queue:
    """A queue of cassq's own, as for dead letters. It is created if it does not exist."""
    row = runtime.ports.catalog.queues.named(name)
    return Queue(runtime, row) if row else create_queue(runtime, name, policy)
