"""Requests: what became of those of one session with servers, as it is counted.

Only what is out of the ordinary is counted, so that counting costs a request next to nothing.
"""

from __future__ import annotations

import threading

# What is counted, of requests.
REQUESTS = {
    "repeated": "sent again, as a try had failed",
    "doubled": "sent to a second server too, as the first was slow",
    "overloaded": "refused by a server that had too much to do",
    "held_up": "after which a server with too much to do read no more for a while",
    "unanswered": "without an answer in time",
    "unknown": "of those, conditional writes that may have been applied",
    "changed_over": "that went over to another replica, as one was not good or did not answer",
    "under_replicated": "for new pipes that have fewer replicas than they should",
}


class Requests:
    """The counts of one session. Thread-safe."""

    __slots__ = ("_mutex", *REQUESTS)

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.repeated = self.doubled = self.overloaded = 0
        self.held_up = self.unanswered = self.unknown = 0
        self.changed_over = self.under_replicated = 0

    def count(self, *names: str) -> None:
        """One more of each."""
        with self._mutex:
            for name in names:
                setattr(self, name, getattr(self, name) + 1)
