"""How many pages of memory large pushes take from the system; in a process of its own, as all its
threads count.

    python -m tests.integration.client.page_faults URL

It writes the pages of each push, and how many pages its payloads fill.
"""

from __future__ import annotations

import os
import resource
import sys

import cassq

BEFORE, PUSHES = 5, 20
PAYLOADS = [os.urandom(1000) for _ in range(4000)]


def faults() -> int:
    """The pages that this process got from the system so far, without reading a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    with cassq.connect(sys.argv[1]) as client, client.create_queue("jobs").pusher() as pusher:
        for _ in range(BEFORE):
            pusher.push_many(PAYLOADS)
        before = faults()
        for _ in range(PUSHES):
            pusher.push_many(PAYLOADS)
        taken = (faults() - before) // PUSHES
        print(taken, sum(map(len, PAYLOADS)) // resource.getpagesize())
