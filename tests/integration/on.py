"""`pytest --on PLACE`: where the behavioural suite has its queues, and what of it runs there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

EMBEDDED, CASSANDRA, SIDECARS = "embedded", "cassandra", "sidecars"
# Names of keyspaces that are there to be emptied begin so.
KEYSPACE = "cassq_test"
_HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--on",
        metavar="PLACE",
        default=os.environ.get("CASSQ_TEST_ON", EMBEDDED),
        help="where the behavioural suite, tests/integration, has its queues: embedded, sidecars"
        " (a directory whose messages are on three sidecars of this run's own), cassandra (a node"
        f" of this run's own), or the URL of a keyspace {KEYSPACE}..., of which everything is"
        " removed (default: what CASSQ_TEST_ON says, or embedded)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "embedded_only(reason): about files; elsewhere than --on embedded it is left out"
    )
    on = config.getoption("--on")
    if on not in (EMBEDDED, CASSANDRA, SIDECARS) and f"/{KEYSPACE}" not in on:
        raise pytest.UsageError(
            f"--on is {EMBEDDED}, {SIDECARS}, {CASSANDRA} or cassandra://HOST/{KEYSPACE}...,"
            f" not {on!r}"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In another place than the default, all is left out that would be the same again."""
    if config.getoption("--on") == EMBEDDED:
        return
    left_out = [item for item in items if not _anywhere(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _anywhere(item)]


def _anywhere(item: pytest.Item) -> bool:
    """Whether it is a test of this folder that has queues, and these may be anywhere."""
    marker = item.get_closest_marker("embedded_only")
    if marker is not None and not marker.kwargs.get("reason"):
        raise pytest.UsageError(f"{item.nodeid}: embedded_only wants a reason")
    has_queues = "place" in getattr(item, "fixturenames", ())
    return marker is None and has_queues and item.path.is_relative_to(_HERE)
