"""How much of the limits of a group was in use at once, for certain: from what its poppers wrote
down. Pure.

A message counts from the moment at which its pop had returned, or was called, whichever proves
less. So these figures are never more than what was in use, and mostly a little less.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.storm.history import NEVER, Limit, Seen


def in_hand(seen: Seen, limit: Limit) -> Iterator[tuple[int, int]]:
    """How many messages consumers had in hand, each time that it became more: (when, count).

    A consumer has a message from its delivery until it begins to settle it, whatever comes of
    that, but no longer than the claim lasts without being renewed: the process may have stood
    still. Of those that settled nothing any more nobody knows when they died, or gave it back.
    """
    settled: dict[tuple[str, int, str], int] = {}
    for each in seen.settlings:
        for key in each.keys:
            item = each.popper, each.batch, key
            settled[item] = min(settled.get(item, NEVER), each.begun_ns)
    changes: list[tuple[int, int]] = []
    for delivery in seen.deliveries:
        for key, *_ in delivery.items:
            until_ns = settled.get((delivery.popper, delivery.batch, key), 0)
            until_ns = min(until_ns, delivery.called_ns + limit.claim_ns)
            if until_ns > delivery.returned_ns:
                changes += [(delivery.returned_ns, 1), (until_ns, -1)]
    count = 0
    for at_ns, change in sorted(changes):
        count += change
        if change > 0:
            yield at_ns, count


def in_windows(seen: Seen, limit: Limit) -> Iterator[tuple[int, int]]:
    """How many messages were claimed in less than the limit's window, since each pop that found
    something was called: (when, count). What is claimed counts at some moment between the call of
    its pop and its return; a pop that took longer proves nothing."""
    pops = sorted((each.called_ns, each.returned_ns, len(each.items)) for each in seen.deliveries)
    for place, (since_ns, _, _) in enumerate(pops):
        count, until_ns = 0, since_ns + limit.window_ns
        for at in range(place, len(pops)):
            called_ns, returned_ns, found = pops[at]
            if called_ns >= until_ns:
                break
            count += found if returned_ns < until_ns else 0
        yield since_ns, count
