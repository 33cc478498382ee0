"""One `push_many` whose messages are of several levels: the levels of a priority are appended side
by side, so that their syncs, or round trips, are waited for once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, groupby, takewhile
from typing import NamedTuple

from cassq.errors import BackendError, CassqError
from cassq.message.message_ids import MessageIds, ScatteredIds
from cassq.model.priorities import Level
from cassq.producer.admission import PendingPush

# Appended at the same time, each by a thread of its own.
SIDE_BY_SIDE_MAX = 16


class LevelPush(NamedTuple):
    """The messages of one level. which: their positions among all. submit: has the entry appended,
    and raises what went wrong."""

    level: Level
    which: Sequence[int]
    entry: PendingPush
    submit: Callable[[PendingPush], None]


def push_levels(pushes: Sequence[LevelPush], *, side_by_side: bool) -> MessageIds:
    """Push the messages of all levels; returns their ids. pushes: the most urgent first; none is
    begun before all that are more urgent are durable. side_by_side: whether threads may be started.

    Raises the error of the first level that failed, once those beside it are over. Its
    `.fields["pushed"]` says how many messages, from the first, are durable; `outcome_unknown` is
    set if more may be.
    """
    for _, group in groupby(pushes, key=lambda each: each.level.priority):
        some = list(group)
        errors = _submit(some, SIDE_BY_SIDE_MAX if side_by_side else 1)
        if errors:
            raise _explained(errors[min(errors)], pushes)
    ids = [(push.which, push.entry.ids) for push in pushes if push.entry.ids is not None]
    return ids[0][1] if len(ids) == 1 else ScatteredIds(ids)


def _submit(pushes: Sequence[LevelPush], at_once: int) -> dict[int, Exception]:
    """Submit pushes, `at_once` at a time; returns the errors, by position. After an error no more
    are begun."""
    errors: dict[int, Exception] = {}
    left = deque(enumerate(pushes))

    def work() -> None:
        while left:
            try:
                at, push = left.popleft()
            except IndexError:
                return  # another thread took the last one
            try:
                push.submit(push.entry)
            except Exception as exc:
                errors[at] = exc
                left.clear()

    threads: list[threading.Thread] = []
    try:
        while len(threads) + 1 < min(at_once, len(pushes)):
            thread = threading.Thread(target=work, name="cassq-append", daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:
                if exc.__context__ is not None:
                    raise  # a signal handler's exception made `start` fail
                break  # no more can be started: there are too many, or the interpreter ends
            threads.append(thread)
        work()
        for thread in threads:
            thread.join()
    finally:
        left.clear()  # after an interrupt, too: what is in flight goes on
    return errors


def _explained(error: Exception, pushes: Sequence[LevelPush]) -> Exception:
    """The error of one push of several, with what became of the others."""
    if not isinstance(error, CassqError):
        return error
    done: set[int] = set()
    doubtful = False
    for push in pushes:
        failed = push.entry.error
        if push.entry.ids is not None:
            done.update(push.which)
        elif isinstance(failed, CassqError):
            done.update(push.which[: failed.fields.get("pushed", 0)])
            doubtful |= isinstance(failed, BackendError) and failed.outcome_unknown
    error.fields["pushed"] = sum(1 for _ in takewhile(done.__contains__, count()))
    if isinstance(error, BackendError):
        error.outcome_unknown |= doubtful or len(done) > error.fields["pushed"]
    return error
