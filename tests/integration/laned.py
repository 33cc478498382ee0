"""Queues with several key lanes: that messages are in the lanes of their keys."""

from __future__ import annotations

from collections.abc import Iterable

import cassq
from cassq.consumer.delivery import Message
from cassq.model.scaling import key_lane_of, key_lane_of_pipe


def check_lanes(client: cassq.Client, messages: Iterable[Message], key_lanes: int) -> set[int]:
    """Each message is in a pipe of its key's lane; those lanes."""
    found: set[int] = set()
    for message in messages:
        assert message.key is not None
        pipe = client.ports.catalog.pipes.by_id(message.pipe_id)
        assert pipe is not None
        lane = key_lane_of(message.key, key_lanes)
        assert key_lane_of_pipe(pipe.owner, key_lanes) == lane, message
        found.add(lane)
    return found
