"""One `push_many` whose messages are of several levels: the levels of a priority are appended side
by side, so that their syncs, or round trips, are waited for once.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count, groupby, takewhile
from typing import NamedTuple

from cassq.errors import BackendError, CassqError
from cassq.message.message_ids import MessageIds, ScatteredIds
from cassq.model.priorities import Level
from cassq.producer.admission import PendingPush

# Levels of one call that are appended at the same time: as many as there are idle connections to
# each server.
SIDE_BY_SIDE_MAX = 8


class LevelPush(NamedTuple):
    """The messages of one level. which: their positions among all. submit: has the entry appended,
    and raises what went wrong. submit_apart: the same as a call of another thread."""

    level: Level
    which: Sequence[int]
    entry: PendingPush
    submit: Callable[[PendingPush], None]
    submit_apart: Callable[[PendingPush], None]


def push_levels(pushes: Sequence[LevelPush], *, side_by_side: bool) -> MessageIds:
    """Push the messages of all levels; returns their ids. pushes: the most urgent first; none is
    begun before all that are more urgent are durable. side_by_side: whether threads may be started.

    If a level fails, raises an error once those beside it are over. Its `.fields["pushed"]` says
    how many messages, from the first, are durable; it is a BackendError with `outcome_unknown` if
    more may be.
    """
    for _, group in groupby(pushes, key=lambda each: each.level.priority):
        some = list(group)
        errors = _submit(some, SIDE_BY_SIDE_MAX if side_by_side else 1)
        if any(push.entry.ids is None for push in some):
            raise _failure(errors, pushes)
    ids: list[tuple[Sequence[int], MessageIds]] = []
    for push in pushes:
        assert push.entry.ids is not None
        ids.append((push.which, push.entry.ids))
    return ids[0][1] if len(ids) == 1 else ScatteredIds(ids)


def _submit(pushes: Sequence[LevelPush], at_once: int) -> dict[int, Exception]:
    """Submit pushes, `at_once` at a time; returns the errors, by position. After one that fails no
    more are begun."""
    errors: dict[int, Exception] = {}
    left = deque(enumerate(pushes))

    def work(apart: bool) -> None:
        while left:
            try:
                at, push = left.popleft()
            except IndexError:
                return  # another thread took the last one
            try:
                (push.submit_apart if apart else push.submit)(push.entry)
            except Exception as exc:
                errors[at] = exc
            finally:
                if push.entry.ids is None:
                    left.clear()

    threads: list[threading.Thread] = []
    try:
        while len(threads) + 1 < min(at_once, len(pushes)):
            thread = threading.Thread(target=work, args=(True,), name="cassq-append", daemon=True)
            if not _is_started(thread):
                break
            threads.append(thread)
        work(False)
        for thread in threads:
            thread.join()
    finally:
        left.clear()  # after an interrupt, too: what is in flight goes on
    return errors


def _is_started(thread: threading.Thread) -> bool:
    """Start a thread; False if none can be started, as there are too many, or the interpreter
    ends."""
    handled = sys.exception()  # of the caller
    try:
        thread.start()
    except RuntimeError as exc:
        if exc.__context__ is not handled:
            raise  # a signal handler's exception made it fail
        return False
    return True


def _failure(errors: Mapping[int, Exception], pushes: Sequence[LevelPush]) -> Exception:
    """The error of a call some of whose pushes failed, with what became of the others."""
    found = [error for _, error in sorted(errors.items())]
    if not found:
        found = [BackendError("a thread that was appending was interrupted", outcome_unknown=True)]
    error = next((each for each in found if isinstance(each, BackendError)), found[0])
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
    pushed = sum(1 for _ in takewhile(done.__contains__, count()))
    doubtful |= len(done) > pushed
    if doubtful and not isinstance(error, BackendError):
        cause = error
        error = BackendError(f"only some of the messages may be pushed: {cause.message}")
        error.__cause__ = cause
    error.fields["pushed"] = pushed
    if isinstance(error, BackendError):
        error.outcome_unknown |= doubtful
    return error
