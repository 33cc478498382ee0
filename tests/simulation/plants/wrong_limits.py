"""Wrong parts of limits: of a group, and of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Entry
from cassq.model import claims, limits
from cassq.model.limits import Permits
from cassq.model.queues import GroupPolicy
from cassq.model.rows import Claim


def reads_no_permits() -> AbstractContextManager[Any]:
    """Each popper takes the permits as if nobody else had any."""

    def wrong(text: str, now_ms: int) -> Permits:
        return {}

    return patch.object(limits, "permits_of", wrong)


def reads_no_slots() -> AbstractContextManager[Any]:
    """Slots are reserved from now on, whatever others have reserved."""
    return patch.object(limits, "next_us_of", lambda text, slots, now_us: 0)


def frees_permits_early() -> AbstractContextManager[Any]:
    """Permits are over before the claims that they are for."""
    permits_of = limits.permits_of

    def wrong(text: str, now_ms: int) -> Permits:
        return permits_of(text, now_ms + 3000)

    return patch.object(limits, "permits_of", wrong)


def forgets_rates_of_keys_at_a_take_over() -> AbstractContextManager[Any]:
    """The first message of each key comes at once from a popper that has just taken the lane."""
    of = KeyLine.of

    def wrong(policy: GroupPolicy, now_ms: Callable[[], int]) -> KeyLine:
        line = of(policy, now_ms)
        line._first_ms = 0
        return line

    return patch.object(KeyLine, "of", wrong)


def counts_from_the_take() -> AbstractContextManager[Any]:
    """The next of a key is due an interval after it was looked at, not after it was handed out."""
    return patch.object(KeyLine, "handed_out", lambda _self, _now_ms: None)


def lets_rates_hold_up_all() -> AbstractContextManager[Any]:
    """What must wait for the rate of its key stays in front of the messages of other keys."""
    take = KeyLine.take

    def wrong(self: KeyLine, limit: int, now_ms: int = 0) -> list[Entry]:
        due_ms = self.due_ms()
        waits = bool(self._later) and due_ms is not None and due_ms > now_ms
        return [] if waits else take(self, limit, now_ms)

    return patch.object(KeyLine, "take", wrong)


def forgets_what_waits_for_a_rate() -> AbstractContextManager[Any]:
    """Of those of a key that wait for its rate, only the first one goes on."""
    due_again = KeyLine._due_again

    def wrong(self: KeyLine, now_ms: int) -> list[Entry]:
        due = due_again(self, now_ms)
        self._later.clear()
        self._paced.clear()
        return due

    return patch.object(KeyLine, "_due_again", wrong)


def allows_one_more_of_a_key() -> AbstractContextManager[Any]:
    """A message of a key comes though as many as the limit allows are in hand."""
    stand_behind = KeyLine._stand_behind

    def wrong(self: KeyLine, key: bytes, entry: Entry) -> None:
        self._limit += 1
        stand_behind(self, key, entry)
        self._limit -= 1

    return patch.object(KeyLine, "_stand_behind", wrong)


def counts_what_failed_twice() -> AbstractContextManager[Any]:
    """A message that failed makes room for two others of its key."""
    failed = KeyLine.failed

    def wrong(self: KeyLine, row: Claim, given_back: Iterable[Entry]) -> None:
        entries = list(given_back)
        failed(self, row, entries)
        for _, bundle, seq in entries:
            self.settled(bundle.key_at(seq - bundle.base_seq))

    return patch.object(KeyLine, "failed", wrong)


def counts_nothing_that_is_dated() -> AbstractContextManager[Any]:
    """A message with a deadline of its own does not count once another popper has the lane."""
    return patch.object(KeyLine, "_count_away", lambda _self, _segment: None)


def forgets_what_was_in_hand() -> AbstractContextManager[Any]:
    """A lane that begins anew does not count what its consumers still have."""

    def wrong(claim: Claim, popper: str, until_ms: int) -> Claim:
        return replace(claim, due_ms=max(claim.due_ms, until_ms))

    return patch.object(claims, "kept_away", wrong)
