"""Gateways are killed, clocks set and connections cut while clients work: nothing that was
answered is lost, and a FIFO queue keeps the order of each group."""

from __future__ import annotations

from pathlib import Path

import pytest

import cassq
from tests.integration.gateway.asking import Asker, served
from tests.integration.gateway.storm import stormed

SECONDS = 45.0


@pytest.mark.long(reason="three gateways are killed for a minute, and what is left is awaited")
@pytest.mark.parametrize(("name", "seed"), [("storm", 1), ("storm.fifo", 2)])
def test_what_gateways_answered_holds_while_they_are_killed(
    url: str, client: cassq.Client, tmp_path: Path, name: str, seed: int
) -> None:
    if name.endswith(".fifo"):

        async def create(sqs: Asker) -> None:
            await sqs.create(name, FifoQueue="true")

        served(url, create)
        queue = client.queue(name)
    else:
        queue = client.create_queue(name, sick_check=False, max_deliveries=1_000_000)
    storm = stormed(url, name, tmp_path, SECONDS, seed)
    found = (
        f"{len(storm.sent)} sent, {len(storm.received)} received, {len(storm.deleted)} deleted,"
        f" {storm.kills} kills, {storm.cuts} cuts, {storm.refused} refused"
    )
    print(found)
    assert storm.wrong == [], found
    assert storm.lost == set(), found
    assert storm.kills >= 5, found
    assert storm.deleted, found
    left = queue.stats().groups["default"]
    assert left.waiting + left.pending == 0, found
    assert queue.audit().findings == []
