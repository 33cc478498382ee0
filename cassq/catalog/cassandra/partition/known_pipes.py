"""What this process has read of listed pipes that never changes.

While a pipe is at one place in a queue's listing, whether it is a timer pipe, whether it is for one
group or for all, and its priority do not change. Once it is sealed, its end is fixed for ever, and
it is never open again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from cassq.model.rows import PipeRow, PipeState

QUEUES_MOST = 1024  # queues, the most recently listed, whose pipes are remembered
# The states of a pipe whose end is fixed for ever.
_SEALED = (PipeState.SEALED, PipeState.CONSUMED)

Entry = tuple[int, str]  # in a listing: the position, the pipe's id


class PipeFacts(NamedTuple):
    """The certain facts about a listed pipe. is_sealed: it was sealed when its row was read.
    end_seq: None if it was not, or was consumed without an end."""

    is_timer: bool
    group_id: str
    is_sealed: bool
    end_seq: int | None
    priority: int = 0

    def is_for(self, group_id: str) -> bool:
        """Whether messages are for this group."""
        return self.group_id in ("", group_id)


class KnownPipes:
    """Facts about the listed pipes of queues. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: OrderedDict[str, dict[Entry, PipeFacts]] = OrderedDict()
        self._ends: dict[str, int] = {}  # of all sealed pipes in them

    def get(self, queue_id: str, entry: Entry) -> PipeFacts | None:
        """What is known of an entry's pipe."""
        return self._queues.get(queue_id, {}).get(entry)

    def is_sealed(self, queue_id: str, entry: Entry) -> bool:
        """Whether an entry's pipe is known to be sealed: it will never be open again."""
        facts = self.get(queue_id, entry)
        return facts is not None and facts.is_sealed

    def end_seq(self, pipe_id: str) -> int | None:
        """The end of a listed pipe that is known to be sealed: the seq after its last message. None
        if it is not known."""
        return self._ends.get(pipe_id)

    def note(self, entry: Entry, row: PipeRow) -> None:
        """Remember the row of a pipe that agrees with this entry of its queue."""
        is_sealed = row.state in _SEALED
        end_seq = row.end.seq if is_sealed and row.end is not None else None
        is_timer = row.timer_ms is not None
        facts = PipeFacts(is_timer, row.group_id, is_sealed, end_seq, row.priority)
        with self._lock:
            pipes = self._queues.setdefault(row.queue_id, {})
            before = pipes.get(entry)
            if before is not None and before.is_sealed:
                return  # the row may have been read before that
            pipes[entry] = facts
            if end_seq is not None:
                self._ends[row.id] = end_seq
            while len(self._queues) > QUEUES_MOST:
                _, forgotten = self._queues.popitem(last=False)
                self._forget_ends(forgotten)

    def keep(self, queue_id: str, listed: Iterable[Entry]) -> None:
        """Forget pipes without an entry in a queue's listing, which was just read."""
        with self._lock:
            pipes = self._queues.get(queue_id)
            if pipes is None:
                return
            self._queues.move_to_end(queue_id)
            left = {entry: pipes[entry] for entry in listed if entry in pipes}
            self._queues[queue_id] = left
            self._forget_ends(pipes.keys() - left.keys())

    def _forget_ends(self, entries: Iterable[Entry]) -> None:
        for _, pipe_id in entries:
            self._ends.pop(pipe_id, None)
