"""The finished tasks of a chord's header: a set that knows the place of each, from 1.

A counter that is incremented counts a task twice that comes again. Here each member first notes
which place it wants, then takes it if it is free. A place is taken only after the one before it, so
the member with the last place knows that all others are taken. A member that comes again begins at
the place that it noted, and finds itself there.
"""

from __future__ import annotations

from cassq.catalog.result_port import Results


class Members:
    """The set under a key. kept: for how many seconds each of its values is."""

    def __init__(self, results: Results, key: str, kept: float) -> None:
        self._results = results
        self._key = key
        self._kept = kept

    def join(self, member: str) -> int:
        """The place of a member, which it has from now on. Cost: a read, and some unsynced writes;
        a conditional one more for each other member that joins meanwhile."""
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
        """Note that what waited for all members was done."""
        self._results.put(f"{self._key}.over", b"1", self._kept)

    def is_over(self) -> bool:
        """Whether `end` was called."""
        return self._results.get(f"{self._key}.over") is not None
