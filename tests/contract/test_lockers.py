"""The Locker port: one holder at a time, tokens that grow, and a loss that is told once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cassq.clock import ManualClock
from cassq.locks.port import Lock
from tests.contract.backends import LOCKERS, LockerPlace

TTL_MS = 1000
FOR_EVER_MS = 10**12
PATIENCE = 30.0


class Losses:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.lost: list[Lock] = []

    def __call__(self, lock: Lock) -> None:
        self.lost.append(lock)


def test_a_lock_has_one_holder(locker_place: LockerPlace) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    lock = me.acquire("l", TTL_MS)
    assert lock is not None
    assert (lock.name, lock.held()) == ("l", True)
    assert you.acquire("l", TTL_MS) is None
    assert me.acquire("l", TTL_MS) is None, "nor does its holder get it twice"
    assert lock.held()
    lock.release()
    assert not lock.held()
    assert you.acquire("l", TTL_MS) is not None


def test_locks_of_different_names_are_apart(locker_place: LockerPlace) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    mine, yours = me.acquire("a", TTL_MS), you.acquire("b", TTL_MS)
    assert mine is not None
    assert yours is not None
    mine.release()
    assert yours.held()


def test_tokens_grow_from_holder_to_holder(locker_place: LockerPlace, clock: ManualClock) -> None:
    lockers = [locker_place.open(name) for name in ("me", "you")]
    tokens = []
    for number in range(10):
        lock = lockers[number % 3 % 2].acquire("l", TTL_MS)
        assert lock is not None
        tokens.append(lock.token)
        if number % 2:
            lock.release()
        else:
            clock.advance(TTL_MS / 1000)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("passed_ms", "held"), [(0, True), (999, True), (1000, False)])
def test_a_lock_is_held_until_its_time_is_over(
    locker_place: LockerPlace, clock: ManualClock, passed_ms: int, held: bool
) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    lock = me.acquire("l", TTL_MS)
    assert lock is not None
    clock.advance(passed_ms / 1000)
    assert lock.held() is held
    assert (you.acquire("l", TTL_MS) is None) is held


def test_a_renewed_lock_is_held_on_with_the_same_token(
    locker_place: LockerPlace, clock: ManualClock
) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    lock = me.acquire("l", TTL_MS)
    assert lock is not None
    token = lock.token
    for _ in range(5):
        clock.advance(0.9)
        assert lock.renew(TTL_MS)
        assert lock.token == token
        assert you.acquire("l", TTL_MS) is None
    clock.advance(0.999)
    assert lock.held()
    clock.advance(0.001)
    assert not lock.held()


def test_a_loss_is_told_once_by_the_call_that_learns_of_it(
    locker_place: LockerPlace, clock: ManualClock
) -> None:
    for learn in (lambda lock: lock.held(), lambda lock: lock.renew(TTL_MS)):
        losses = Losses()
        lock = locker_place.open(f"me {learn}").acquire("l", TTL_MS, losses)
        assert lock is not None
        clock.advance(2)
        assert losses.lost == []
        assert not learn(lock)
        assert losses.lost == [lock]
        assert not lock.held()
        assert not lock.renew(TTL_MS)
        lock.release()
        assert losses.lost == [lock]


def test_a_lock_that_was_lost_is_lost_for_good(
    locker_place: LockerPlace, clock: ManualClock
) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    lock = me.acquire("l", TTL_MS)
    assert lock is not None
    clock.advance(1)
    assert not lock.renew(TTL_MS), "though nobody else wanted it"
    assert not lock.renew(TTL_MS)
    theirs = you.acquire("l", TTL_MS)
    assert theirs is not None
    lock.release()
    assert theirs.held()
    assert me.acquire("l", TTL_MS) is None, "a lost lock gives back nothing of another's"
    clock.advance(1)
    again = me.acquire("l", TTL_MS)
    assert again is not None
    assert not lock.held()
    lock.release()
    assert again.held()
    assert you.acquire("l", TTL_MS) is None


def test_giving_back_is_no_loss(locker_place: LockerPlace, clock: ManualClock) -> None:
    losses = Losses()
    lock = locker_place.open("me").acquire("l", TTL_MS, losses)
    assert lock is not None
    lock.release()
    lock.release()
    clock.advance(5)
    assert not lock.held()
    assert not lock.renew(TTL_MS)
    assert losses.lost == []


def test_giving_back_twice_takes_nothing_from_the_next(locker_place: LockerPlace) -> None:
    me = locker_place.open("me")
    lock = me.acquire("l", TTL_MS)
    assert lock is not None
    lock.release()
    again = me.acquire("l", TTL_MS)
    assert again is not None
    lock.release()
    assert again.held()
    assert me.acquire("l", TTL_MS) is None


def test_a_closed_locker_has_given_up_all_its_locks(locker_place: LockerPlace) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    mine = [me.acquire(name, TTL_MS) for name in "abc"]
    yours = you.acquire("d", TTL_MS)
    me.close()
    assert all(lock and not lock.held() for lock in mine)
    assert yours is not None
    assert yours.held()
    assert all(you.acquire(name, TTL_MS) for name in "abc")


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_jump_of_the_wall_clock_ends_no_lock_and_keeps_none(
    locker_place: LockerPlace, clock: ManualClock, jump: float
) -> None:
    me, you = locker_place.open("me"), locker_place.open("you")
    lock = me.acquire("l", TTL_MS)
    assert lock is not None
    clock.jump_wall(jump)
    assert lock.held()
    assert you.acquire("l", TTL_MS) is None
    clock.advance(1)
    assert not lock.held()
    assert you.acquire("l", TTL_MS) is not None


class TickingClock(ManualClock):
    """Time passes between any two looks at it."""

    def boot_ms(self) -> int:
        self.advance(0.001)
        return super().boot_ms()


@pytest.mark.parametrize("locker", LOCKERS)
@pytest.mark.parametrize("ttl_ms", range(1, 9))
def test_a_lock_that_ends_in_the_middle_of_renewing_keeps_nobody_out(
    tmp_path: Path, locker: str, ttl_ms: int
) -> None:
    place = LOCKERS[locker](tmp_path, TickingClock())
    try:
        losses = Losses()
        lock = place.open("me").acquire("l", ttl_ms, losses)
        assert lock is not None
        if lock.renew(FOR_EVER_MS):
            assert lock.held()
            assert place.open("you").acquire("l", TTL_MS) is None
        else:
            assert losses.lost == [lock]
            while place.open("you").acquire("l", TTL_MS) is None:
                assert ttl_ms > 0, "it was never given back"
                ttl_ms -= 1
    finally:
        place.close()


@pytest.mark.parametrize("shared", [False, True], ids=["a locker each", "one locker for all"])
def test_of_many_contenders_one_at_a_time_is_inside(
    locker_place: LockerPlace, shared: bool
) -> None:
    contenders, turns = 6, 10
    everybody = locker_place.open("everybody")
    lockers = [
        everybody if shared else locker_place.open(f"owner {number}")
        for number in range(contenders)
    ]
    inside = threading.Lock()
    tokens: list[int] = []
    failures: list[str] = []
    start = threading.Barrier(contenders)

    def contend(number: int) -> None:
        start.wait(PATIENCE)
        for _ in range(turns):
            while (lock := lockers[number].acquire("l", FOR_EVER_MS)) is None:
                continue
            if not inside.acquire(blocking=False):
                failures.append("two are inside at once")
                return
            tokens.append(lock.token)
            inside.release()
            lock.release()

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(contenders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert failures == []
    assert len(tokens) == contenders * turns
    assert tokens == sorted(set(tokens)), "each holder's token is larger than the one before"
