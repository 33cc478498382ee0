"""Following several queues: each is followed for itself, all in one offset.

The offset has a part for each queue: its name, its id, and the offset's pipes. A queue of a pattern
that appears later joins at the next batch, at its group's offset: `startingPosition` is for the
queues that are there when the query begins. The id shows whether a queue was deleted and created
again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cassq.errors import CassqError, QueueNotFoundError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import QueueRow
from cassq.spark.clients import Location
from cassq.spark.options import StreamOptions
from cassq.spark.reading import PipeRange, several
from cassq.spark.streams.following import (
    NEW,
    QUEUES,
    Follower,
    Offset,
    check_offset,
    pieces_between,
)
from cassq.spark.streams.leasing import Renewals

logger: logging.Logger = logging.getLogger("cassq")

_ID = "id"


def pieces_of_each(start: Offset, end: Offset) -> list[PipeRange]:
    """The messages between two offsets of several queues. Pure."""
    before = start.get(QUEUES, {})
    return [
        piece._replace(queue=name)
        for name, part in end.get(QUEUES, {}).items()
        for piece in pieces_between(_same(before.get(name), part[_ID]) or {}, part)
    ]


def shares(waiting: Mapping[str, int], most: int | None) -> dict[str, int | None]:
    """How many messages of each queue a batch of at most `most` gets: equal shares; what some
    queues do not need goes to the others. If there are fewer messages than queues, the queues with
    most waiting get one each. Pure."""
    if most is None:
        return dict.fromkeys(waiting)
    found: dict[str, int | None] = {}
    left = most
    for at, name in enumerate(sorted(waiting, key=waiting.__getitem__)):
        share = min(waiting[name], left // (len(waiting) - at))
        found[name] = share
        left -= share
    return found


def _same(part: Offset | None, queue_id: str) -> Offset | None:
    """A queue's part of an offset; None if it belongs to an earlier queue of the same name."""
    return part if part is not None and part[_ID] == queue_id else None


class Followers:
    """Follows the groups of one name in several queues for one query, on the driver. Not
    thread-safe."""

    def __init__(
        self, ports: Ports, options: StreamOptions, location: Location, renewals: Renewals
    ) -> None:
        self._ports = ports
        self._options = options
        self._location = location
        self._renewals = renewals
        self._followers: dict[str, Follower] = {}
        self._latest: Offset | None = None
        self._complete = False
        try:
            self._join(self._rows())
        except CassqError:
            self.close()
            raise

    def _rows(self) -> dict[str, QueueRow]:
        found = several(self._ports, self._options.queues, self._options.pattern)
        return {row.name: row for row in found}

    def _join(self, rows: Mapping[str, QueueRow]) -> None:
        """Follow exactly these queues; no new ones after `stop_here`."""
        for name, follower in list(self._followers.items()):
            if name not in rows or rows[name].id != follower.queue_id:
                del self._followers[name]
                follower.close()
        for name in rows:
            if name not in self._followers and not self._complete:
                self._followers[name] = self._follower(name)

    def _follower(self, name: str) -> Follower:
        options = self._options._replace(queue=name, queues=(), pattern="")
        return Follower(self._ports, options, self._location, self._renewals)

    def latest(self, start: Offset, most: int | None) -> Offset:
        """The end of the next batch, of at most `most` messages; `start` if nothing has changed.
        Everything before `start` must have been processed. Raises as `Follower.look` for each
        queue; and QueueNotFoundError for one that was deleted, and perhaps created again, since
        `start`. Cost: for a pattern, the queues whose names begin with its literal prefix; that of
        `look` for each queue."""
        check_offset(start, self._location, several=True)
        rows = self._rows()
        self._join(rows)
        before: dict[str, Offset] = start[QUEUES]
        for name, part in before.items():
            if name not in rows or rows[name].id != part[_ID]:
                self._leave(name, part)
        seen = {}
        for name, follower in self._followers.items():
            part = _same(before.get(name), follower.queue_id) or {"pipes": {}}
            seen[name] = follower.look({**part, **({NEW: True} if NEW in start else {})})
        share = shares({name: each.messages for name, each in seen.items()}, most)
        parts, ends, behind = {}, {}, 0
        for name, follower in self._followers.items():
            parts[name] = self._part(follower, follower.take(seen[name], share[name]))
            reported = follower.reported() or {}
            ends[name] = self._part(follower, reported)
            behind += reported.get("behind", 0)
        self._latest = {**self._offset(ends), "behind": behind}
        end = self._offset(parts)
        return start if end == start else end

    def _part(self, follower: Follower, offset: Offset) -> Offset:
        return {_ID: follower.queue_id, "pipes": offset.get("pipes", {})}

    def _offset(self, parts: Mapping[str, Offset]) -> Offset:
        return {QUEUES: dict(parts), "identity": self._location.identity}

    def _leave(self, name: str, part: Offset) -> None:
        """Stop following a queue of an earlier batch: the query does not read it any more, or the
        queue is gone, and then it is unknown whether all its messages were read."""
        row = self._ports.catalog.queues.named(name)
        if row is not None and row.id == part[_ID]:
            follower = self._follower(name)
            follower.ack(part)
            follower.close()
            logger.info("queue %r is not read any more", name)
            return
        if self._options.fail_on_data_loss:
            raise QueueNotFoundError(
                f"queue {name!r} was deleted, and perhaps created again, before the stream read all"
                " of it",
                hint='continue without what is gone: .option("failOnDataLoss", "false")',
            )
        logger.warning("queue %r was deleted; what the stream had not read of it is left out", name)

    def reported(self) -> Offset | None:
        """As `Follower.reported`, for all queues together."""
        return self._latest

    def stop_here(self) -> None:
        """Read only what is there now: no later messages, and no queue that appears later."""
        self._complete = True
        for follower in self._followers.values():
            follower.stop_here()

    def ack(self, offset: Offset) -> None:
        """Ack everything below an offset for the group of each queue that is still followed. Cost:
        as `Follower.ack`."""
        check_offset(offset, self._location, several=True)
        for name, part in offset[QUEUES].items():
            follower = self._followers.get(name)
            if follower is not None and follower.queue_id == part[_ID]:
                follower.ack(part)

    def close(self) -> None:
        """Let others follow the groups."""
        for follower in self._followers.values():
            follower.close()
        self._followers = {}
