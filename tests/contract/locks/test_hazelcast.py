"""Locks in Hazelcast: fences, tokens from the catalog, and what is refused when connecting."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cassq.base.clock import Stopwatch, SystemClock
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.locks.opening import open_locker
from cassq.locks.port import Lock
from tests.contract.lock_servers import locker_at
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, ticks
from tests.servers.kinds.hazelcast import HazelcastCluster

FOR_EVER_MS = 10**9
MAP = "cassq-locks"


@pytest.fixture
def driver(hazelcast1: HazelcastCluster) -> Iterator[Any]:
    """A client that is not cassq's."""
    client = pytest.importorskip("hazelcast").HazelcastClient(
        cluster_name=hazelcast1.cluster_name, cluster_members=hazelcast1.members
    )
    yield client
    client.shutdown()


def test_a_cluster_without_cp_is_reported_with_what_to_write(hazelcast1: HazelcastCluster) -> None:
    with pytest.raises(ConfigError, match="has no CP subsystem") as caught:
        open_locker(hazelcast1.url(), SystemClock())
    assert "?cp=no" in caught.value.hint


def test_map_locks_need_a_source_of_tokens(hazelcast1: HazelcastCluster) -> None:
    with pytest.raises(ConfigError, match="tokens"):
        open_locker(hazelcast1.url() + "?cp=no", SystemClock())


@pytest.mark.long(reason="servers that answer late or not at all")
@pytest.mark.waits(reason="members that do not let it in are asked for some seconds")
@pytest.mark.parametrize("options", ["", "?cp=no"])
def test_another_clusters_name_is_distinguished_from_no_answer(
    hazelcast1: HazelcastCluster, options: str
) -> None:
    watch = Stopwatch()
    with pytest.raises(ConfigError, match="refuses this client") as caught:
        open_locker(hazelcast1.url("another") + options, SystemClock(), next_token=lambda name: 1)
    assert "'another'" in caught.value.hint
    with pytest.raises(BackendUnavailableError, match="no Hazelcast member answers"):
        open_locker(
            f"hazelcast://localhost:1/cassq{options}", SystemClock(), next_token=lambda name: 1
        )
    assert watch.seconds() < DEADLINE_SECONDS


@pytest.mark.long(reason="servers that answer late or not at all")
@pytest.mark.waits(reason="a member that does not answer is given some seconds")
def test_a_member_that_does_not_answer_is_reported_in_time(hazelcast1: HazelcastCluster) -> None:
    hazelcast1.node(1).pause()
    watch = Stopwatch()
    with pytest.raises(BackendUnavailableError, match="no Hazelcast member answers"):
        open_locker(hazelcast1.url(), SystemClock())
    assert watch.seconds() < DEADLINE_SECONDS


def test_without_a_token_a_map_lock_is_not_won(hazelcast1: HazelcastCluster) -> None:
    tokens: list[int | None] = [None, 7, 8]
    locker = open_locker(
        hazelcast1.url() + "?cp=no", SystemClock(), next_token=lambda name: tokens.pop(0)
    )
    try:
        assert locker.acquire("tokens", FOR_EVER_MS) is None
        lock = locker.acquire("tokens", FOR_EVER_MS)
        assert lock is not None, "nothing was left locked"
        assert lock.token == 7
        lock.release()
        again = locker.acquire("tokens", FOR_EVER_MS)
        assert again is not None
        assert again.token == 8
    finally:
        locker.close()


@pytest.mark.long(reason="servers that answer late or not at all")
@pytest.mark.waits(reason="members start anew")
def test_tokens_of_map_locks_outlive_the_members(
    hazelcast1: HazelcastCluster, tmp_path: Path
) -> None:
    tokens = []
    for _ in range(2):
        locker, catalog = locker_at(hazelcast1.url() + "?cp=no", tmp_path, "me")
        lock = locker.acquire("outliving", FOR_EVER_MS)
        assert lock is not None
        tokens.append(lock.token)
        locker.close()
        catalog.close()
        hazelcast1.node(1).kill()
        hazelcast1.mend()
    assert tokens == sorted(set(tokens))


def test_a_lock_forced_open_by_an_administrator_is_a_loss_at_the_next_renewal(
    hazelcast1: HazelcastCluster, driver: Any, tmp_path: Path
) -> None:
    locker, catalog = locker_at(hazelcast1.url() + "?cp=no", tmp_path, "me")
    other, others = locker_at(hazelcast1.url() + "?cp=no", tmp_path, "other")
    losses: list[Lock] = []
    try:
        lock = locker.acquire("forced", FOR_EVER_MS, losses.append)
        assert lock is not None
        driver.get_map(MAP).blocking().force_unlock("forced")
        theirs = other.acquire("forced", FOR_EVER_MS)
        assert theirs is not None
        assert not lock.renew(FOR_EVER_MS)
        assert losses == [lock]
        assert theirs.renew(FOR_EVER_MS)
    finally:
        for opened in (locker, other, catalog, others):
            opened.close()


def test_no_map_lock_passes_to_another_holder_before_it_expires(
    hazelcast1: HazelcastCluster, tmp_path: Path
) -> None:
    ttl_ms, rounds = 1000, 10
    me, mine = locker_at(hazelcast1.url() + "?cp=no", tmp_path, "me")
    you, yours = locker_at(hazelcast1.url() + "?cp=no", tmp_path, "you")
    try:
        # Members end at once what ends within the same second, as two leases of one lock may. Each
        # lock is renewed in every tenth of a second up to another one.
        names = [f"early {number}" for number in range(rounds)]
        locks = [lock for name in names if (lock := me.acquire(name, ttl_ms)) is not None]
        for number in range(1, rounds):
            ticks(ttl_ms // rounds)
            for lock in locks[number:]:
                lock.renew(ttl_ms)

        def all_are_yours() -> bool:
            for lock in locks.copy():
                if you.acquire(lock.name, FOR_EVER_MS) is not None:
                    assert not lock.held(), f"{lock.name} has two holders"
                    locks.remove(lock)
            return not locks

        eventually("all are another's", all_are_yours)
    finally:
        for opened in (me, you, mine, yours):
            opened.close()


@pytest.mark.waits(reason="leases of a member run out, three times")
def test_a_waiter_keeps_the_lock_that_it_gets_when_the_holder_expires(
    hazelcast1: HazelcastCluster, driver: Any
) -> None:
    ttl_ms, clock, tokens = 1000, SystemClock(), count(1)
    # A member looks at the leases of each partition for itself.
    part = driver.partition_service.get_partition_id
    names = [name for name in map(str, range(15_000)) if part(name) == 0]
    locks = driver.get_map(MAP)
    me = open_locker(hazelcast1.url() + "?cp=no", clock, next_token=lambda name: next(tokens))
    try:
        # The first ones take longer.
        for name in names:
            lock = me.acquire(name, FOR_EVER_MS)
            assert lock is not None
            lock.release()
        for _ in range(3):
            # All end at once, and at once with the lease of the first, were that no longer.
            due_ms = clock.boot_ms() + ttl_ms
            for name in names:
                me.acquire(name, max(1, due_ms - clock.boot_ms()))
            waits = [locks.try_lock(name, timeout=DEADLINE_SECONDS) for name in names]
            assert all(wait.result() for wait in waits)
            # What a member had begun to end is at an end.
            ticks(100)
            assert [name for name in names if not locks.is_locked(name).result()] == []
            for name in names:
                locks.unlock(name).result()
    finally:
        me.close()


def test_a_cp_lock_keeps_its_fence_over_any_number_of_renewals(
    hazelcast3: HazelcastCluster, tmp_path: Path
) -> None:
    locker, catalog = locker_at(hazelcast3.url(), tmp_path, "me")
    other, others = locker_at(hazelcast3.url(), tmp_path, "other")
    try:
        # Given back after an odd and an even number: the other has it at once.
        for renewals in range(4):
            lock = locker.acquire("renewed", FOR_EVER_MS)
            assert lock is not None
            token = lock.token
            assert all(lock.renew(FOR_EVER_MS) for _ in range(renewals))
            assert lock.token == token
            lock.release()
            theirs = other.acquire("renewed", FOR_EVER_MS)
            assert theirs is not None
            assert theirs.token > token
            theirs.release()
    finally:
        for opened in (locker, other, catalog, others):
            opened.close()
