"""The nodes of a cluster: whether they have the same schema, by their own word."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("cassandra")

from cassandra import OperationTimedOut
from cassandra.cluster import ControlConnection, Session
from cassandra.connection import ConnectionShutdown

from cassq.base.clock import ManualClock
from cassq.cassandra.nodes import schemas_differ, seem_agreed


def session(versions: dict[str, str | None], without: str = "") -> Any:
    """Of nodes with these versions, None if they do not answer; to one there is no connection."""
    made = Mock(Session)
    hosts = {name: Mock(address=name) for name in versions}
    made.get_pool_state.return_value = {
        host: {"open_count": int(name != without)} for name, host in hosts.items()
    }

    def execute_async(text: str, *, host: Any, timeout: float) -> Any:
        assert host.address != without
        version = versions[host.address]
        future = Mock()
        future.result.side_effect = [OperationTimedOut() if version is None else [(version,)]]
        return future

    made.execute_async.side_effect = execute_async
    return made


@pytest.mark.parametrize(
    ("versions", "differ"),
    [
        ({"a": "v1"}, False),
        ({"a": "v1", "b": "v1", "c": "v1"}, False),
        ({"a": "v1", "b": "v1", "c": "v0"}, True),
        ({"a": "v1", "b": None, "c": "v1"}, False),
        ({"a": None}, False),
    ],
)
def test_nodes_that_answer_are_compared(versions: dict[str, str | None], differ: bool) -> None:
    assert schemas_differ(session(versions)) is differ


def test_a_node_without_a_connection_is_not_asked() -> None:
    assert not schemas_differ(session({"a": "v1", "b": "v0"}, without="b"))


def control(*answers: object) -> Any:
    """A control connection that gives these answers, or raises them."""
    made = Mock(ControlConnection)
    made.wait_for_schema_agreement.side_effect = answers
    return made


@pytest.mark.parametrize("agreed", [True, False])
def test_another_node_is_asked_if_the_one_with_the_control_connection_dies(agreed: bool) -> None:
    lost = ConnectionShutdown("it is closed")
    assert seem_agreed(control(lost, lost, agreed), ManualClock(), 0.25) is agreed
