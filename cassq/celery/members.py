"""The finished tasks of a chord's header: a set in which each member has a place, from 1.

A counter would count a task twice if it is delivered again. Here each member first notes which
place it wants, then takes it if it is free. A place is taken only after the one before it, so the
member with the last place knows that all others are taken. A member that joins again begins at the
place that it noted, and finds itself there.
"""

from __future__ import annotations

from cassq.catalog.result_port import Results


class Members:
    """The set under a key. kept: how many seconds each of its values is kept."""

    def __init__(self, results: Results, key: str, kept: float) -> None:
        self._results = results
        self._key = key
        self._kept = kept

    def join(self, member: str) -> int:
        """Add a member, unless it is there; returns its place. Cost: a read, two unsynced writes
        and a conditional one; one more of each write for each place that is found taken."""
        mine, newest = f"{self._key}.of.{member}", f"{self._key}.newest"
        found = self._results.find([mine, newest])
        place = int(found.get(mine, b"0")) or int(found.get(newest, b"0")) + 1
        while True:
            self._results.put(mine, b"%d" % place, self._kept)
            who = self._results.put_new(f"{self._key}.{place}", member.encode(), self._kept)
            if who == member.encode():
                break
            place += 1
        self._results.put(newest, b"%d" % place, self._kept)
        return place

    def end(self) -> None:
        """Note that the work which waited for all members is done."""
        self._results.put(f"{self._key}.over", b"1", self._kept)

    def is_over(self) -> bool:
        """Whether `end` was called."""
        return self._results.get(f"{self._key}.over") is not None
