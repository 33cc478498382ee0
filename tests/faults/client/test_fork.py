"""Forks: a child refuses what it inherited at once, whatever was locked, and harms nobody."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import cassq
from cassq.base import forking
from cassq.base.clock import SystemClock
from cassq.errors import ForkedClientError
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.net.connection import Connection
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.model.sidecar_rows import SidecarRow
from cassq.sidecar.catalogs import open_catalog
from tests.integration.deadlines import DEADLINE_SECONDS, in_threads
from tests.integration.on import EMBEDDED, SIDECARS
from tests.integration.places import on_sidecars
from tests.integration.stage import Connect, drain, numbers, payloads, push
from tests.servers.fixtures import running
from tests.servers.kinds import sidecar

ROOT = Path(__file__).resolve().parents[3]
ON_SIDECARS = pytest.param(SIDECARS, marks=pytest.mark.servers)


@pytest.fixture(scope="module")
def sidecars() -> Iterator[tuple[str, list[SidecarRow]]]:
    """Two processes; the identity of their catalog, and their rows."""
    for cluster in running(sidecar.cluster(nodes=2)):
        with closing(open_catalog(cluster.catalog, SystemClock())) as catalog:
            yield catalog.records.identity(), catalog.sidecars.listed()


@pytest.fixture(params=[EMBEDDED, ON_SIDECARS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == EMBEDDED:
        return f"file://{tmp_path / 'data'}"
    return on_sidecars(tmp_path / "data", *request.getfixturevalue("sidecars"))


def in_child(act: Callable[[], object]) -> str:
    """What comes of `act` in a forked child: `returned`, an error's name, or `hangs`."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = "returned"
        try:
            act()
        except BaseException as exc:
            outcome = type(exc).__name__
        finally:
            os.write(writes, outcome.encode())
            os._exit(0)
    os.close(writes)
    waiting = select.poll()  # `select` knows the first 1,024 descriptors of a process alone
    waiting.register(reads, select.POLLIN)
    ready = waiting.poll(DEADLINE_SECONDS * 1000)
    outcome = os.read(reads, 100).decode() if ready else "hangs"
    os.close(reads)
    if not ready:
        os.kill(pid, 9)
    os.waitpid(pid, 0)
    return outcome


class Inherited:
    """A client in full use, of which a child inherits everything."""

    def __init__(self, client: cassq.Client) -> None:
        self.client = client
        self.queue = client.create_queue("jobs")
        push(self.queue, *numbers(5))
        self.pusher = self.queue.pusher()
        self.pusher.push_soon(b"5").result(30)
        self.popper = self.queue.popper()
        self.message, self.other = self.popper.pop(2)

    def verbs(self) -> dict[str, Callable[[], object]]:
        client, queue, pusher, popper = self.client, self.queue, self.pusher, self.popper
        return {
            "push": lambda: pusher.push(b"x"),
            "push_many": lambda: pusher.push_many([b"x"]),
            "push_soon": lambda: pusher.push_soon(b"x"),
            "flush": pusher.flush,
            "pop": popper.pop,
            "pop and wait": lambda: popper.pop(1, wait=60),
            "commit": lambda: popper.commit([self.message]),
            "rollback": lambda: popper.rollback([self.message]),
            "transaction": lambda: popper.transaction().__enter__(),
            "iterate": lambda: next(iter(popper)),
            "ack": self.message.ack,
            "nack": self.message.nack,
            "release": self.message.release,
            "extend": lambda: self.message.extend(1),
            "popper.flush": popper.flush,
            "queue": lambda: client.queue("jobs"),
            "queues": client.queues,
            "create_queue": lambda: client.create_queue("more"),
            "delete_queue": lambda: client.delete_queue("jobs"),
            "pusher": queue.pusher,
            "popper": queue.popper,
            "stats": queue.stats,
            "audit": queue.audit,
            "peek": queue.peek,
            "groups": queue.groups,
            "update": lambda: queue.update(claim_timeout=3),
            "create_group": lambda: queue.create_group("more"),
        }

    def closings(self) -> dict[str, Callable[[], object]]:
        return {
            "pusher.close": self.pusher.close,
            "popper.close": self.popper.close,
            "client.close": self.client.close,
        }


def links_of(client: cassq.Client) -> ConnectionPool | None:
    """Its connections to sidecars."""
    store = client.ports.store
    if not isinstance(store, SidecarStore):
        return None
    assert isinstance(store._context.network, ConnectionPool)
    return store._context.network


@pytest.fixture
def inherited(client: cassq.Client) -> Inherited:
    return Inherited(client)


@pytest.fixture
def locked(inherited: Inherited, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At the fork, another thread holds every lock of the client, for longer than a fork waits."""
    monkeypatch.setattr(forking, "WAIT_SECONDS", 0.01)
    locks = [
        inherited.pusher._mutex,
        inherited.popper._lock,
        inherited.client.ports.catalog._db.lock,  # type: ignore[attr-defined]
        inherited.client.runtime.housekeeper._mutex,
    ]
    links = links_of(inherited.client)
    if links is not None:
        locks.append(links._lock)
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            free.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(DEADLINE_SECONDS)
    yield
    free.set()
    thread.join()


def test_every_verb_is_refused_in_a_child(inherited: Inherited) -> None:
    outcomes = {name: in_child(verb) for name, verb in inherited.verbs().items()}
    assert set(outcomes.values()) == {ForkedClientError.__name__}, outcomes


@pytest.mark.usefixtures("locked")
def test_every_verb_is_refused_in_a_child_whatever_was_locked(inherited: Inherited) -> None:
    outcomes = {name: in_child(verb) for name, verb in inherited.verbs().items()}
    assert set(outcomes.values()) == {ForkedClientError.__name__}, outcomes


@pytest.mark.usefixtures("locked")
def test_closing_in_a_child_ends_at_once_and_touches_nothing(inherited: Inherited) -> None:
    for name, verb in inherited.closings().items():
        assert in_child(verb) == "returned", name


def test_the_parent_goes_on_unharmed(inherited: Inherited, connect: Connect) -> None:
    for verb in (*inherited.verbs().values(), *inherited.closings().values()):
        in_child(verb)
    assert inherited.pusher.push(b"6").endswith(":1")  # its pipe is still its own
    inherited.popper.commit([inherited.message, inherited.other])
    assert sorted(payloads(drain(inherited.popper))) == numbers(5, first=2)
    audit = connect().queue("jobs").audit()
    assert audit.findings == []
    assert audit.groups["default"].committed == 7


@pytest.mark.parametrize("url", [ON_SIDECARS], indirect=True)
def test_a_child_process_sends_nothing_over_its_parents_connections(inherited: Inherited) -> None:
    links = links_of(inherited.client)
    assert links is not None

    def idle() -> set[Connection]:
        return {link for idle in links._idle.values() for link in idle}

    def all_are_well() -> bool:
        # A thread that looks after the pipe may have borrowed one, or have given some up as too
        # slow: then all is done once more. A child's words would spoil each of them every time, as
        # its verbs use all of them, and so does `close`.
        inherited.pusher.push(b"6")
        before = idle()
        for verb in (*inherited.verbs().values(), *inherited.closings().values(), links.close):
            in_child(verb)
        inherited.pusher.push(b"6")
        kept = idle() & before
        enough = len(before) >= 2 and len(kept) >= len(before) - 1
        return enough and all(link.lives() for link in kept)

    assert len(idle()) >= 2
    assert any(all_are_well() for _ in range(5))


def test_a_child_may_open_a_client_of_its_own(
    inherited: Inherited, url: str, connect: Connect
) -> None:
    def work() -> None:
        with cassq.connect(url) as mine:
            assert len(mine.queue("jobs").popper().pop(1)) == 1
            push(mine.queue("jobs"), b"from the child")

    assert in_child(work) == "returned"
    inherited.pusher.push(b"from the parent")
    found = payloads(drain(connect().queue("jobs").popper()))
    assert {b"from the child", b"from the parent"} <= set(found)


def test_forks_while_threads_push_and_pop_never_hang(
    inherited: Inherited, connect: Connect
) -> None:
    over = threading.Event()
    verbs = list(inherited.verbs().values())
    outcomes: list[str] = []

    def work(number: int) -> None:
        while number and not over.is_set():
            if number % 2:
                inherited.pusher.push(b"x")
            else:
                inherited.popper.commit(inherited.popper.pop(10))
        if not number:
            outcomes.extend(map(in_child, verbs))
            over.set()

    in_threads(4, work)
    assert set(outcomes) == {ForkedClientError.__name__}
    drain(inherited.popper)
    inherited.popper.commit([inherited.message, inherited.other])
    assert connect().queue("jobs").audit().findings == []


OUTLIVES_ITS_PARENT = """
import os, signal, sys
import cassq

client = cassq.connect(sys.argv[1])
queue = client.create_queue("jobs")
queue.pusher().push_many([b"%d" % n for n in range(20)])
client.ports.catalog.results.put("before", b"value", 60)
parent = os.getpid()
opened, left = os.pipe(), os.pipe()
if not os.fork():
    own = cassq.connect(sys.argv[1])
    results = own.ports.catalog.results
    popper = own.queue("jobs").popper()
    popper.commit(popper.pop(5))
    results.put("meanwhile", b"value", 60)
    os.write(opened[1], b"x")
    os.close(left[1])
    os.read(left[0], 1)  # the parent has closed its client, or is dead
    if sys.argv[2] == "killed":  # and another process has taken the place over
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", sys.argv[3], sys.argv[1])
    popper.commit(popper.pop(5))
    results.put("after", b"value", 60)
    os.write(1, b"done")
    os._exit(0)  # nothing is tidied up, as after a kill
os.read(opened[0], 1)
if sys.argv[2] == "killed":
    os.kill(parent, signal.SIGKILL)
client.close()
os.write(left[1], b"x")
os.wait()
"""
LOOKS_IN = """
import sys
import cassq
with cassq.connect(sys.argv[1]) as client:
    client.queue("jobs").stats()
    client.ports.catalog.results.get("before")
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_a_child_commits_outlives_its_parents_client(
    url: str, connect: Connect, end: str
) -> None:
    with subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore::DeprecationWarning"),
            *("-c", OUTLIVES_ITS_PARENT, url, end, LOOKS_IN),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.communicate(timeout=DEADLINE_SECONDS)[0] == b"done"
    client = connect()
    results = client.ports.catalog.results
    assert [results.get(key) for key in ("before", "meanwhile", "after")] == [b"value"] * 3
    audit = client.queue("jobs").audit()
    assert (audit.groups["default"].committed, audit.findings) == (10, [])


LEAVES_BY_THE_FRONT_DOOR = """
import os, sys
import cassq
client = cassq.connect(sys.argv[1])
queue = client.create_queue("jobs")
pusher, popper = queue.pusher(), queue.popper()
pusher.push(b"a")
for _ in range(5):
    if os.fork() == 0:
        sys.exit(0)  # the interpreter's whole end: atexit, garbage, everything
    _, status = os.wait()
    assert status == 0, status
    pusher.push(b"b")
assert len(popper.pop(10)) == 6
client.close()
"""


def test_a_child_process_that_ends_normally_changes_nothing(url: str, connect: Connect) -> None:
    done = subprocess.run(
        # From Python 3.12 on it warns of a fork beside threads, which this is on purpose.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LEAVES_BY_THE_FRONT_DOOR, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    audit = connect().queue("jobs").audit()
    assert (audit.pushed, audit.findings) == (6, [])


FORKS_IN_A_TRANSACTION = """
import os, sys, threading
import cassq

client = cassq.connect(sys.argv[1])
client.create_queue("jobs")
database = client.ports.catalog._db
results = client.ports.catalog.results
begun, may_end = threading.Event(), threading.Event()
os.register_at_fork(before=may_end.set)  # hooks run in the opposite order, so before cassq's

def commits():
    with database.lock, database.write(synced=True) as tx:
        tx.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('forked', '1')")
        begun.set()
        may_end.wait()

def puts():
    with results.file.opened() as connection:
        connection.execute("BEGIN IMMEDIATE")
        begun.set()
        may_end.wait()
        connection.execute("COMMIT")

results.put("key", b"value", 60)
for act in (commits, puts) * 5:
    begun.clear(), may_end.clear()
    thread = threading.Thread(target=act)
    thread.start()
    begun.wait()
    pid = os.fork()
    if not pid:
        with cassq.connect(sys.argv[1]) as own, own.queue("jobs").pusher() as pusher:
            pusher.push(b"from a child")
            own.ports.catalog.results.put("key", b"of a child", 60)
        os._exit(0)
    thread.join()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_a_child_opens_its_own_client_though_others_were_in_a_transaction(tmp_path: Path) -> None:
    """SQLite's record of the locks of its process is inherited."""
    words = [sys.executable, "-c", FORKS_IN_A_TRANSACTION, f"file:{tmp_path / 'data'}"]
    forks = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert forks.stdout.split() == ["0"] * 10, forks.stderr
    with cassq.connect(f"file:{tmp_path / 'data'}") as client:
        assert client.queue("jobs").stats().pushed == 10
