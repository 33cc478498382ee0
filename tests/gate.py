"""What `./dev test` runs of the tests, and which of them run in one process.

A test that takes too long for the gate is marked `long(reason=...)`: `pytest --gate` leaves it out;
`./dev test --all` runs it, as does pytest without `--gate`.

Both run tests in several processes at once (`-n 4 --dist loadgroup`). Tests that share a fixture of
a module or of the whole run, such as servers, are put into one group: it runs in one process, so
the fixture is made once. Groups come first, the dearest before others, since the longest of them
decides how long a run takes; next come tests that wait, and then all others, which fill what time
is left.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

LONG, WAITS, SERVERS = "long", "waits", "servers"
GROUP = pytest.StashKey[str]()
_TOLD = "groups"  # in what a process is given: the file that tells groups
_FOLDER = pytest.StashKey[Path]()
# A test that shares several is in the group of the first, and the rest is made for it once more.
_DEAREST_FIRST = (
    "spark",
    "cassandra3_for_the_session",
    "cassandra1_for_the_session",
    "hazelcast3_for_the_session",
    "hazelcast1_for_the_session",
    "zookeeper3_for_the_session",
    "zookeeper1_for_the_session",
    "sidecars4_for_the_session",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gate", action="store_true", help=f"leave out the tests that are marked {LONG}"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{LONG}(reason): ./dev test leaves it out, ./dev test --all runs it"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker in (item.get_closest_marker(name) for name in (LONG, WAITS)):
            if marker is not None and not marker.kwargs.get("reason"):
                raise pytest.UsageError(f"{item.nodeid}: {marker.name} wants a reason")
    if config.getoption("--gate"):
        left_out = [item for item in items if item.get_closest_marker(LONG)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(LONG)]
    if _beside_others(config):
        _group(items)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_order_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Last, as others sort as well."""
    if _beside_others(config):
        items.sort(key=_rank)


def _beside_others(config: pytest.Config) -> bool:
    """Whether this is one of the processes that share a run."""
    return hasattr(config, "workerinput")


def _rank(item: pytest.Item) -> tuple[int, int]:
    group = item.stash.get(GROUP, None)
    if group is not None:
        return 0, _cost_rank(group)
    return (1, 0) if item.get_closest_marker(WAITS) else (2, 0)


def _group(items: list[pytest.Item]) -> None:
    for item in items:
        shared = _shared(item)
        if shared:
            item.stash[GROUP] = min(shared, key=lambda name: (_cost_rank(name), name))


def _cost_rank(name: str) -> int:
    return _DEAREST_FIRST.index(name) if name in _DEAREST_FIRST else len(_DEAREST_FIRST)


def _shared(item: pytest.Item) -> set[str]:
    """What this test shares with others: fixtures, and servers that a parameter names."""
    shared = {name for marker in item.iter_markers(SERVERS) for name in marker.args}
    info = getattr(item, "_fixtureinfo", None)
    for name, found in info.name2fixturedefs.items() if info else ():
        fixture = found[-1]
        if not fixture.func.__module__.startswith(("tests.", "test_")):
            continue  # pytest's own are cheap
        if fixture.scope == "session":
            shared.add(name)
        elif fixture.scope != "function":
            shared.add(item.nodeid.partition("::")[0])
    return shared


# --- which process gets what ----------------------------------------------------------------------
# pytest-xdist has marks for groups, but reads them from ids of tests, which pytest 9.2 makes in
# another way. So the processes write their groups to a file, and the one that deals reads it.


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that deals: tell another where to write."""
    config: pytest.Config = node.config
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="cassq-gate."))
        config.add_cleanup(lambda: shutil.rmtree(config.stash[_FOLDER], ignore_errors=True))
    node.workerinput[_TOLD] = str(config.stash[_FOLDER])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In another: write, before it is told that all tests are found."""
    given = getattr(session.config, "workerinput", {})
    if _TOLD in given:
        groups = {item.nodeid: item.stash.get(GROUP, item.nodeid) for item in session.items}
        fresh = Path(given[_TOLD], given["workerid"])
        fresh.write_text(json.dumps(groups), encoding="utf-8")
        fresh.replace(fresh.with_name(_TOLD))  # all write the same


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Dealer(LoadScopeScheduling):
        """Deals groups, and tests that are in none."""

        groups: dict[str, str] | None = None

        def _split_scope(self, nodeid: str) -> str:
            if self.groups is None:  # it is asked when all processes have found all tests
                path = config.stash[_FOLDER] / _TOLD
                self.groups = json.loads(path.read_text(encoding="utf-8"))
            return self.groups[nodeid]

    return Dealer(config, log)
