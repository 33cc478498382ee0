"""The Locker port when something stands still or dies: the holder, its process, the servers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cassq.base.clock import Stopwatch
from cassq.errors import BackendError
from cassq.locks.port import Lock, Locker
from tests.contract.lock_servers import (
    LAPSES,
    LEASE,
    LONG,
    RealLocks,
    ServerLocks,
    on_lock_servers,
)
from tests.contract.locks.lock_holder import TOKENS, LockHolder, lock_holder
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

FOR_EVER_MS = 10**9
# Long enough that it is not over before a test has done what it does to the holder.
TTL_MS = 5000
# Long enough that a machine may stand still for half of it, and short enough to wait for.
IDLE_SECONDS = 8
# A lock is given up within its own time, or a session's, and the time a call may take.
BOUND_SECONDS = 20.0


def won(locker: Locker, ttl_ms: int = FOR_EVER_MS, *, losses: list[Lock] | None = None) -> Lock:
    """The lock, as soon as it can be had: servers may be away for the moment."""
    on_loss = None if losses is None else losses.append

    def attempt() -> Lock | None:
        try:
            return locker.acquire("failing", ttl_ms, on_loss)
        except BackendError as error:
            assert error.retryable
            return None

    return eventually("the lock is had", attempt, seconds=2 * DEADLINE_SECONDS)


def refused(locker: Locker) -> None:
    """Demand that another has the lock, whenever servers come to say so."""

    def attempt() -> list[Lock | None]:
        try:
            return [locker.acquire("failing", FOR_EVER_MS)]
        except BackendError as error:
            assert error.retryable
            return []

    assert eventually("servers answer", attempt, seconds=2 * DEADLINE_SECONDS) == [None]


def assert_lost(holder: LockHolder) -> None:
    """Demand that the next answer of a holder that was asked for its lock is that it is lost, and
    that it hears so once: from another thread, perhaps, which may be about to say it."""
    held, _ = holder.answer()
    assert not held
    eventually("the loss is told", lambda: holder.ask("held") == [0, 1])


# --- the holder's process -------------------------------------------------------------------------


@pytest.mark.waits(reason="the time of the lock runs out")
def test_a_paused_holder_knows_at_once_that_it_lost_its_lock(
    real_locker_place: RealLocks,
) -> None:
    you = real_locker_place.open("you")
    with lock_holder(real_locker_place.url, real_locker_place.directory, "me") as me:
        (token,) = me.ask("acquire", "failing", TTL_MS)
        assert token > 0
        assert me.ask("held") == [1, 0]
        assert you.acquire("failing", FOR_EVER_MS) is None
        os.kill(me.process.pid, signal.SIGSTOP)
        me.tell("held")
        yours = won(you)
        assert yours.token > token
        os.kill(me.process.pid, signal.SIGCONT)
        assert_lost(me)
        assert me.ask("acquire", "failing", TTL_MS) == [0]
        assert yours.held()


@pytest.mark.long(reason="sessions of servers run out")
def test_an_expired_session_loses_its_locks_however_long_they_were_taken_for(
    server_locker_place: ServerLocks,
) -> None:
    if not server_locker_place.has_sessions:
        return  # its locks have nothing but their own time
    you = server_locker_place.open("you")
    with lock_holder(server_locker_place.url, server_locker_place.directory, "me") as me:
        (token,) = me.ask("acquire", "failing", FOR_EVER_MS)
        os.kill(me.process.pid, signal.SIGSTOP)
        me.tell("held")
        assert won(you).token > token > 0
        os.kill(me.process.pid, signal.SIGCONT)
        assert_lost(me)


@pytest.mark.long(reason="sessions of servers run out")
def test_an_idle_holder_keeps_a_long_lock_through_many_sessions(
    server_locker_place: ServerLocks,
) -> None:
    server_locker_place.ask_for_sessions(IDLE_SECONDS)
    me, you = server_locker_place.open("me"), server_locker_place.open("you")
    losses: list[Lock] = []
    lock = won(me, losses=losses)
    server_locker_place.pass_ms(3 * server_locker_place.session_ms)
    assert losses == []
    assert lock.held()
    assert you.acquire("failing", FOR_EVER_MS) is None


@pytest.mark.waits(reason="the time of the lock runs out")
@pytest.mark.parametrize(
    "real_locker_place",
    [
        LEASE,
        *on_lock_servers(["zookeeper", "hazelcast", "hazelcast without cp"]),
        *on_lock_servers(["zookeeper, three"], LAPSES),
    ],
    indirect=True,
)
def test_a_killed_holders_lock_goes_to_the_next_one(real_locker_place: RealLocks) -> None:
    you = real_locker_place.open("you")
    with lock_holder(real_locker_place.url, real_locker_place.directory, "me") as me:
        (token,) = me.ask("acquire", "failing", TTL_MS)
        assert you.acquire("failing", FOR_EVER_MS) is None
        os.kill(me.process.pid, signal.SIGKILL)
        assert won(you).token > token > 0


def test_one_of_many_processes_at_a_time_has_the_lock(
    real_locker_place: RealLocks, tmp_path: Path
) -> None:
    contenders, turns = 4, 15
    real_locker_place.ask_for_sessions(LONG)
    url, directory = real_locker_place.url, real_locker_place.directory
    real_locker_place.open("first").close()  # makes the catalog, once
    with (
        lock_holder(url, directory, "a") as a,
        lock_holder(url, directory, "b") as b,
        lock_holder(url, directory, "c") as c,
        lock_holder(url, directory, "d") as d,
    ):
        everybody = (a, b, c, d)
        for each in everybody:
            each.tell("contend", "failing", turns)
        assert [each.answer() for each in everybody] == [[turns]] * contenders
    tokens = [int(line) for line in (directory / TOKENS).read_text().splitlines()]
    assert len(tokens) == contenders * turns
    assert tokens == sorted(set(tokens))


# --- the servers ----------------------------------------------------------------------------------


@pytest.mark.long(reason="sessions of servers run out")
def test_a_holder_gives_up_while_no_server_answers(server_locker_place: ServerLocks) -> None:
    me = server_locker_place.open("me")
    losses: list[Lock] = []
    lock = won(me, losses=losses)
    watch = Stopwatch()
    for node in server_locker_place.servers.nodes:
        node.pause()
    eventually("the loss is told, though nobody asked", lambda: losses == [lock])
    assert not lock.held()
    with pytest.raises(BackendError):
        me.acquire("other", FOR_EVER_MS)
    assert watch.seconds() < 2 * BOUND_SECONDS
    server_locker_place.servers.mend()
    again = won(me)
    assert again.token > lock.token
    assert not lock.held()
    assert losses == [lock]


@pytest.mark.long(reason="sessions of servers run out")
def test_a_renewal_without_an_answer_is_a_loss(server_locker_place: ServerLocks) -> None:
    lock = won(server_locker_place.open("me"))
    for node in server_locker_place.servers.nodes:
        node.pause()
    watch = Stopwatch()
    assert not lock.renew(FOR_EVER_MS)
    lock.release()
    assert watch.seconds() < BOUND_SECONDS
    assert not lock.held()


@pytest.mark.long(reason="sessions of servers run out")
@pytest.mark.waits(reason="a call that nobody answers is given up after some seconds")
def test_an_unanswered_release_ends_in_time_and_frees_the_lock(
    server_locker_place: ServerLocks,
) -> None:
    me, you = server_locker_place.open("me"), server_locker_place.open("you")
    lock = won(me, TTL_MS)
    for node in server_locker_place.servers.nodes:
        node.pause()
    watch = Stopwatch()
    lock.release()
    assert watch.seconds() < BOUND_SECONDS
    assert not lock.held()
    server_locker_place.servers.mend()
    assert won(you).token > lock.token


@pytest.mark.long(reason="sessions of servers run out")
def test_lockers_go_on_after_all_servers_were_killed(server_locker_place: ServerLocks) -> None:
    me, you = server_locker_place.open("me"), server_locker_place.open("you")
    losses: list[Lock] = []
    lock = won(me, losses=losses)
    for node in server_locker_place.servers.nodes:
        node.kill()
    eventually("the loss is told, though nobody asked", lambda: losses == [lock])
    assert not lock.held()
    server_locker_place.servers.mend()
    yours = won(you)
    assert yours.held()
    if server_locker_place.keeps_data:
        assert yours.token > lock.token
    refused(me)
    assert yours.held()


@pytest.mark.long(reason="sessions of servers run out")
def test_a_lock_survives_the_loss_of_a_server_of_three(server_locker_place: ServerLocks) -> None:
    servers = server_locker_place.servers
    if servers.size < 3:
        servers.node(1).kill()
        with pytest.raises(BackendError):
            server_locker_place.open("nobody")
        return
    me, you = server_locker_place.open("me"), server_locker_place.open("you")
    before = won(you)
    before.release()
    servers.node(2).kill()
    lock = won(me)
    assert lock.token > before.token
    refused(you)
    assert eventually("it is renewed, or lost for good", lambda: lock.renew(FOR_EVER_MS))
    lock.release()
    assert won(you).token > lock.token
    # All are started anew for the next test: a CP member that comes back is not always taken in.
    for node in servers.nodes:
        node.kill()


# --- how long it takes ----------------------------------------------------------------------------


def test_a_hand_over_takes_no_part_of_the_ttl(
    real_locker_place: RealLocks, record_property: Callable[[str, object], None]
) -> None:
    rounds, ttl_ms = 20, 60_000
    real_locker_place.ask_for_sessions(LONG)
    lockers = [real_locker_place.open(str(number)) for number in range(2)]
    watch = Stopwatch()
    for _ in range(rounds):
        lock = lockers[0].acquire("failing", ttl_ms)
        assert lock is not None
        lock.release()
    alone = watch.seconds() / rounds
    watch = Stopwatch()
    turn = threading.Semaphore(0)

    def pass_on(locker: Locker) -> None:
        for _ in range(rounds // 2):
            lock = locker.acquire("failing", ttl_ms, wait_ms=ttl_ms)
            assert lock is not None
            lock.release()
            turn.release()

    threads = [threading.Thread(target=pass_on, args=(locker,)) for locker in lockers]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        assert turn.acquire(timeout=DEADLINE_SECONDS)
    handed = watch.seconds() / rounds
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    record_property("alone_ms", round(1000 * alone, 2))
    record_property("handed_over_ms", round(1000 * handed, 2))
    print(f"alone {1000 * alone:.1f} ms, handed over {handed / alone:.1f} times that")
    assert handed * rounds < ttl_ms / 1000
