"""The public API for a group's dead letters: peek, merge back, purge, export and import."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypedDict, Unpack

from cassq.base.arguments import check_count
from cassq.dead_letters.bulk_job import BulkJob, BulkOutcome, Watch
from cassq.dead_letters.letters import Filter, Letter, batches_of, letter_from_json, letters_of
from cassq.dead_letters.merging import Merging, Purging
from cassq.errors import CassqError, UsageError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import LetterGroup
from cassq.model.rows import GroupRow
from cassq.producer.pusher import Pusher
from cassq.settings import DeathReason

LETTERS_MAX = 1 << 40
RATE_MAX = 1e9
IMPORTED_AT_ONCE = 4096


class Where(TypedDict, total=False):
    """Selects dead letters: the fields of `cassq.dead_letters.letters.Filter`."""

    reason: DeathReason | None
    older_than: float | None
    newer_than: float | None
    headers: Mapping[str, str]
    text: str | None
    ids: Collection[str] | None


class QueueAccess(NamedTuple):
    """What the dead letters of a group need from their queue. Each may raise BackendError.

    group_row: returns the group's row; raises GroupNotFoundError if it was deleted. places: where
    there may be letters. pusher_to_group: opens a pusher to the queue, for this group only.
    pusher_to_letters: opens a pusher to the queue that dead letters move to, and creates that queue
    if needed. ring: wakes the poppers of the queue.
    """

    ports: Callable[[], Ports]
    group_row: Callable[[], GroupRow]
    places: Callable[[], list[LetterGroup]]
    pusher_to_group: Callable[[GroupRow], Pusher]
    pusher_to_letters: Callable[[], Pusher]
    ring: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has done. skipped: how many letters were not pushed, as their ids were already
    there."""

    messages: int
    skipped: int


class DeadLetterQueue:
    """The dead letters of one group; get it from `Queue.dead_letters`. They are in the group's own
    dead-letter queue, and in the queue that the setting `dead_letters` names.

    name: of the queue to which dead letters move (as of when this object was made); you can pop
    from it as from any other. All methods but `import_` take the same filters: reason="rejected",
    older_than=3600, newer_than=60 (seconds since the death), headers={"kind": "invoice"},
    text="no such customer" (in the payload, or in the error), ids=[...]. A letter must match all
    of them; without any, all letters are selected.
    """

    def __init__(self, queue: QueueAccess, name: str) -> None:
        self._queue = queue
        self.name = name

    # --- looking --------------------------------------------------------------------------------

    def peek(self, max_messages: int = 10, **where: Unpack[Where]) -> list[Letter]:
        """The first selected dead letters, oldest pipe first, without affecting them.

        Cost: reads frames until `max_messages` are found.
        """
        check_count("max_messages", max_messages, LETTERS_MAX)
        return list(islice(self.export(**where), max_messages))

    def export(
        self, *, broken: dict[str, CassqError] | None = None, **where: Unpack[Where]
    ) -> Iterator[Letter]:
        """All selected dead letters, including those that a consumer holds, without affecting them.

        `Letter.to_json` turns each into a line that `import_` takes. broken: receives the pipes
        that cannot be read, and why; without it, the first such error is raised once all other
        letters were returned. Cost: reads every frame.
        """
        chosen = Filter(**where)
        found: dict[str, CassqError] = {} if broken is None else broken
        for place in self._queue.places():
            yield from letters_of(self._queue.ports(), place.row, chosen.at(place), found)
        if broken is None and found:
            raise next(iter(found.values()))

    # --- moving ---------------------------------------------------------------------------------

    def merge(
        self,
        *,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        watch: Watch | None = None,
        **where: Unpack[Where],
    ) -> BulkOutcome:
        """Move dead letters back to their group, and only to it. They keep their ids, death records
        and push times; their attempts count from the beginning.

        limit: the most letters to move. rate: the most per second. dry_run: only count. watch:
        called after each step with the outcome so far; if it returns True the merge ends there.
        Letters that consumers hold are not merged, but counted in `held`. If a merge ended early or
        crashed, another one continues it: no letter is lost or duplicated.

        Cost: without a filter, one synced catalog transaction for each pipe that was never claimed
        from; otherwise three of them and one durable push for every 4,096 letters. Raises
        GroupNotFoundError if the group was deleted.
        """
        chosen = Filter(**where)
        _check_pace(limit, rate)
        group = self._queue.group_row()
        with self._queue.pusher_to_group(group) as pusher:
            ring = self._queue.ring
            begin = partial(Merging, group=group, append=pusher.push_intended, ring=ring, rate=rate)
            return self._run(begin, chosen, limit, dry_run=dry_run, watch=watch)

    def purge(
        self,
        *,
        everything: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        watch: Watch | None = None,
        **where: Unpack[Where],
    ) -> BulkOutcome:
        """Delete dead letters permanently; durable on return. The arguments are the same as for
        `merge`.

        Without a filter, everything=True is required. Cost: without a filter, limit or rate, one
        synced transaction for each run of letters in the same state, however long; otherwise one
        for every 4,096 letters.
        """
        chosen = Filter(**where)
        _check_pace(limit, rate)
        if chosen.is_empty and not everything and not dry_run:
            raise UsageError(
                "a purge without a filter deletes all dead letters",
                hint="give a filter, or everything=True",
            )
        if not chosen.is_empty and everything:
            raise UsageError("a purge takes everything=True or a filter, not both")
        return self._run(partial(Purging, rate=rate), chosen, limit, dry_run=dry_run, watch=watch)

    def _run(
        self,
        begin: Callable[..., BulkJob],
        chosen: Filter,
        limit: int | None,
        *,
        dry_run: bool,
        watch: Watch | None,
    ) -> BulkOutcome:
        """Run a job in each place of dead letters, one after another; return the total outcome."""
        done = BulkOutcome(complete=True, dry_run=dry_run)
        for place in self._queue.places():
            job = begin(
                self._queue.ports(),
                place.row,
                chosen.at(place),
                limit=None if limit is None else limit - done.messages,
                dry_run=dry_run,
                watch=watch and _after(done, watch),
            )
            done = done.plus(job.run())
            if not done.complete:
                break
        return done

    # --- from files -----------------------------------------------------------------------------

    def import_(self, lines: Iterable[str | bytes], *, to_queue: bool = False) -> Imported:
        """Push letters that `export` returned, as lines of JSON, with their ids; empty lines are
        ignored.

        to_queue: push them to this group, and only to it, instead of to its dead letters. A letter
        is skipped if its id is already there and unfinished in the group (without `to_queue`: in
        the dead letters' group `default`), so an import that failed halfway can be repeated. A
        letter that was finished since, or that another import pushes at the same time, is imported
        again.

        If a line is invalid, nothing is imported, and the UsageError names the line. Cost: holds
        all lines in memory, reads every frame of the target, and makes one durable push for every
        4,096 letters.
        """
        letters = _read(lines)
        queue = self._queue
        if to_queue:
            places = [(queue.group_row(), Filter())]
        else:
            places = [(place.row, Filter().at(place)) for place in queue.places()]
        there: set[str] = set()
        for group, where in places:
            broken: dict[str, CassqError] = {}
            there.update(each.id for each in letters_of(queue.ports(), group, where, broken))
            for exc in broken.values():
                raise exc
        new: dict[str, Letter] = {}
        for letter in letters:
            if letter.id not in there:
                new.setdefault(letter.id, letter)
        if new:
            with self._pusher(to_queue) as pusher:
                waiting = iter(new.values())
                while some := list(islice(waiting, IMPORTED_AT_ONCE)):
                    for batch in batches_of(some):
                        pusher.push_intended(batch, _no_intent)
        return Imported(len(new), len(letters) - len(new))

    def _pusher(self, to_queue: bool) -> Pusher:
        if to_queue:
            return self._queue.pusher_to_group(self._queue.group_row())
        return self._queue.pusher_to_letters()

    def __repr__(self) -> str:
        return f"<DeadLetterQueue {self.name}>"


def _after(done: BulkOutcome, watch: Watch) -> Watch:
    """A watch for a job whose outcome is added to `done`."""
    return lambda outcome: watch(done.plus(outcome))


def _no_intent(_pipe_id: str, _seq: int, _which: Sequence[int]) -> None:
    """An `Intend` that does nothing: an import needs none."""


def _read(lines: Iterable[str | bytes]) -> list[Letter]:
    letters: list[Letter] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            letters.append(letter_from_json(line))
        except UsageError as exc:
            raise UsageError(
                f"line {number}: {exc.message}", hint=exc.hint or "nothing was imported"
            ) from exc
    return letters


def _check_pace(limit: int | None, rate: float | None) -> None:
    if limit is not None:
        check_count("limit", limit, LETTERS_MAX)
    if rate is None:
        return
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= RATE_MAX:
        raise UsageError(f"rate must be more than 0 messages a second, not {rate!r}")
