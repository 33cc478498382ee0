"""Gateways are killed and connections cut while clients work: nothing answered is lost."""

from __future__ import annotations

import pytest

import cassq
from tests.integration.gateway.storm import stormed

SECONDS = 45.0


@pytest.mark.long(reason="three gateways are killed for a minute, and what is left is awaited")
@pytest.mark.parametrize("seed", [1, 2])
def test_what_gateways_answered_holds_while_they_are_killed(
    url: str, client: cassq.Client, seed: int
) -> None:
    queue = client.create_queue("storm", sick_check=False, max_deliveries=1_000_000)
    storm = stormed(url, SECONDS, seed)
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
