"""Poison: a message that kills whoever handles it ends alone among the dead letters."""

from __future__ import annotations

import pytest

import cassq
from tests.faults.actors import Act, Actor
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers, push


@pytest.mark.parametrize(("max_deliveries", "batch"), [(3, 5000), (8, 5000), (2, 10)])
def test_one_message_that_kills_its_process_ends_alone_in_the_dead_letters(
    client: cassq.Client, act: Act, url: str, max_deliveries: int, batch: int
) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.3, max_deliveries=max_deliveries)
    sent = numbers(4000)
    push(queue, *sent[:1234], b"poison", *sent[1234:])
    poppers: list[Actor] = []
    deaths: list[int] = []

    def all_done() -> bool:
        if not poppers or not poppers[-1].alive:
            if poppers:
                deaths.append(poppers[-1].expect("dying")[1])
            poppers.append(act("die_of_poison", url, batch))
        stats = queue.stats().groups["default"]
        return stats.waiting + stats.pending == 0

    eventually("all but the poison is done", all_done, seconds=60)
    poppers[-1].say("enough")
    stats = queue.audit().groups["default"]
    assert (stats.committed, stats.dead) == (4000, 1)
    assert queue.audit().findings == []
    letters = client.queue("jobs~default~dead").popper().pop(10)
    assert [letter.payload for letter in letters] == [b"poison"]
    assert len(deaths) >= max_deliveries
    assert deaths == sorted(deaths)
