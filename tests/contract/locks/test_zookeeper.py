"""Locks in ZooKeeper: the line, its order, what is left behind, rights, and what is refused."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from cassq.base.clock import Stopwatch, SystemClock
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.locks.opening import open_locker
from cassq.locks.port import Lock, Locker
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, joined
from tests.servers.kinds.zookeeper import ZooKeeperCluster

FOR_EVER_MS = 10**9

Open = Any


@pytest.fixture
def base() -> str:
    return f"cassq-{uuid.uuid4().hex}"


@pytest.fixture
def look(zookeeper1: ZooKeeperCluster) -> Iterator[Any]:
    """A driver's client that sees all nodes."""
    client = pytest.importorskip("kazoo.client").KazooClient(zookeeper1.hosts)
    client.start(DEADLINE_SECONDS)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def open_one(zookeeper1: ZooKeeperCluster, base: str) -> Iterator[Open]:
    opened: list[Locker] = []

    def connect(user: str = "", path: str = base, options: str = "?session=30") -> Locker:
        url = f"zookeeper://{user}{zookeeper1.hosts}/{path}{options}"
        opened.append(open_locker(url, SystemClock()))
        return opened[-1]

    yield connect
    for locker in opened:
        locker.close()


def test_waiters_get_the_lock_in_the_order_in_which_they_asked(
    open_one: Open, look: Any, base: str
) -> None:
    first = open_one().acquire("l", FOR_EVER_MS)
    order: list[int] = []
    threads: list[threading.Thread] = []

    def wait_in_line(number: int, locker: Locker) -> None:
        lock = locker.acquire("l", FOR_EVER_MS, wait_ms=60_000)
        assert lock is not None
        order.append(number)
        lock.release()

    def is_long(length: int) -> bool:
        return len(look.get_children(f"/{base}/locks/l")) == length

    for number in range(5):
        threads.append(threading.Thread(target=wait_in_line, args=(number, open_one())))
        threads[-1].start()
        eventually("it is in line", functools.partial(is_long, number + 2))
    first.release()
    for thread in threads:
        joined("a waiter", thread)
    assert order == [0, 1, 2, 3, 4]


def test_a_token_is_the_number_of_the_change_that_made_the_node(
    open_one: Open, look: Any, base: str
) -> None:
    lock = open_one().acquire("l", 4000)
    (node,) = look.get_children(f"/{base}/locks/l")
    content, stat = look.get(f"/{base}/locks/l/{node}")
    assert (lock.token, content) == (stat.czxid, b"4000")
    assert stat.ephemeralOwner != 0


def test_names_that_are_not_used_leave_nothing_behind(open_one: Open, look: Any, base: str) -> None:
    locker = open_one()
    for number in range(30):
        locker.acquire(f"name {number}", FOR_EVER_MS).release()
    kept = locker.acquire("kept", FOR_EVER_MS)
    assert eventually(
        "the servers clean up", lambda: look.get_children(f"/{base}/locks") == ["kept"]
    )
    assert kept.held()
    again = locker.acquire("name 1", FOR_EVER_MS)
    assert again.token > kept.token


def test_a_node_that_is_not_cassqs_is_left_alone(open_one: Open, look: Any, base: str) -> None:
    locker = open_one()
    locker.acquire("l", FOR_EVER_MS).release()
    look.create(f"/{base}/locks/l/notes")
    lock = locker.acquire("l", FOR_EVER_MS)
    assert lock.held()
    lock.release()
    assert look.exists(f"/{base}/locks/l/notes")


def test_a_deleted_node_is_a_loss_at_the_next_renewal(open_one: Open, look: Any, base: str) -> None:
    losses: list[Lock] = []
    lock = open_one().acquire("l", FOR_EVER_MS, losses.append)
    look.delete(f"/{base}/locks/l", recursive=True)
    assert not lock.renew(FOR_EVER_MS)
    assert losses == [lock]


def test_the_nodes_of_a_user_are_that_users_alone(open_one: Open, look: Any, base: str) -> None:
    errors = pytest.importorskip("kazoo.exceptions")
    mine = open_one("me:s%40cret@")
    lock = mine.acquire("l", FOR_EVER_MS)
    assert lock.held()
    for path in (f"/{base}", f"/{base}/locks", f"/{base}/locks/l"):
        with pytest.raises(errors.NoAuthError):
            look.get_children(path)
    for other in ("", "me:wrong@", "you:s%40cret@"):
        with pytest.raises(ConfigError, match="may not access") as caught:
            open_one(other)
        assert "wrong" not in str(caught.value)
    assert open_one("me:s%40cret@").acquire("l", FOR_EVER_MS) is None


def test_rights_that_are_missing_below_are_reported_when_locking(
    open_one: Open, look: Any, base: str
) -> None:
    security = pytest.importorskip("kazoo.security")
    locker = open_one()
    look.create(f"/{base}/locks/l", acl=[security.make_digest_acl("other", "secret", all=True)])
    with pytest.raises(ConfigError, match="may not access"):
        locker.acquire("l", FOR_EVER_MS)
    assert locker.acquire("else", FOR_EVER_MS) is not None, "the session goes on"


def test_a_path_of_several_parts_is_made(open_one: Open, look: Any, base: str) -> None:
    assert open_one(path=f"{base}/deep/down").acquire("a/b", FOR_EVER_MS) is not None
    assert look.get_children(f"/{base}/deep/down/locks") == ["a%2Fb"]


@pytest.mark.long(reason="servers that answer late or not at all")
@pytest.mark.waits(reason="servers that do not answer are asked for some seconds")
def test_servers_that_do_not_answer_are_reported_in_time(zookeeper1: ZooKeeperCluster) -> None:
    hosts = zookeeper1.hosts
    zookeeper1.node(1).pause()
    for url in (f"zookeeper://{hosts}/cassq", "zookeeper://localhost:1/cassq"):
        watch = Stopwatch()
        with pytest.raises(BackendUnavailableError, match="no ZooKeeper server answers") as caught:
            open_locker(url, SystemClock())
        assert url in str(caught.value)
        assert watch.seconds() < DEADLINE_SECONDS


def test_a_lost_connection_is_a_loss_at_once(open_one: Open, zookeeper1: ZooKeeperCluster) -> None:
    losses: list[Lock] = []
    lock = open_one(options="?session=60").acquire("l", FOR_EVER_MS, losses.append)
    watch = Stopwatch()
    zookeeper1.node(1).kill()
    eventually("the loss is told", lambda: losses == [lock])
    # By its own clock the session is sure for two thirds of its length.
    assert watch.seconds() < 40
    assert not lock.held()
