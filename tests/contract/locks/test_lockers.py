"""The Locker port: one holder at a time, tokens that grow, and a loss that is told once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cassq.base.clock import Clock, ManualClock
from cassq.locks.port import Lock, Locker
from tests.contract.backends import LockerPlace
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, in_threads, joined

TTL_MS = 1000
FOR_EVER_MS = 10**12


class Losses:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.lost: list[Lock] = []

    def __call__(self, lock: Lock) -> None:
        self.lost.append(lock)


def won(locker: Locker, ttl_ms: int) -> Lock:
    """The lock, as soon as it can be had."""
    return eventually("the lock is free", lambda: locker.acquire("l", ttl_ms))


def test_a_lock_has_one_holder(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    lock = me.acquire("l", FOR_EVER_MS)
    assert lock is not None
    assert (lock.name, lock.held()) == ("l", True)
    assert you.acquire("l", FOR_EVER_MS) is None
    assert me.acquire("l", FOR_EVER_MS) is None, "nor does its holder get it twice"
    assert lock.held()
    lock.release()
    assert not lock.held()
    assert you.acquire("l", FOR_EVER_MS) is not None


def test_locks_of_different_names_are_apart(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    names = ["a", "A", "a/b", "/a", ".", "..", "a b%2F", "pop:1:2", "ä@1"]
    locks = [me.acquire(name, FOR_EVER_MS) for name in names]
    assert all(locks)
    yours = you.acquire("b", FOR_EVER_MS)
    assert yours is not None
    for name, lock in zip(names, locks, strict=True):
        assert you.acquire(name, FOR_EVER_MS) is None
        assert lock is not None
        assert lock.name == name
        lock.release()
        assert you.acquire(name, FOR_EVER_MS) is not None
    assert yours.held()


@pytest.mark.waits(reason="locks on servers run out")
def test_tokens_grow_from_holder_to_holder(any_locker_place: LockerPlace) -> None:
    lockers = [any_locker_place.open(name) for name in ("me", "you")]
    tokens = []
    for number in range(6):
        lapses = number % 2 == 0
        lock = won(lockers[number % 3 % 2], any_locker_place.ttl_ms if lapses else FOR_EVER_MS)
        tokens.append(lock.token)
        if lapses:
            any_locker_place.pass_ms(any_locker_place.ttl_ms)
        else:
            lock.release()
    assert tokens == sorted(set(tokens))


@pytest.mark.waits(reason="locks on servers run out")
def test_a_lock_that_is_not_renewed_is_the_next_ones(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    lock = me.acquire("l", any_locker_place.ttl_ms)
    assert lock is not None
    assert you.acquire("l", FOR_EVER_MS) is None
    any_locker_place.pass_ms(any_locker_place.ttl_ms)
    assert not lock.held()
    assert won(you, FOR_EVER_MS).held()
    assert not lock.held()


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


@pytest.mark.waits(reason="locks on servers run out")
def test_a_renewed_lock_is_held_on_with_the_same_token(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    ttl_ms = any_locker_place.ttl_ms
    long_ms = 3 * ttl_ms  # so that a machine may stand still for a while before it is renewed
    lock = me.acquire("l", long_ms)
    assert lock is not None
    token = lock.token
    for _ in range(4):
        any_locker_place.pass_ms(ttl_ms)
        assert lock.renew(long_ms)
        assert lock.token == token
        assert you.acquire("l", ttl_ms) is None
    assert lock.held()
    assert lock.renew(ttl_ms)
    any_locker_place.pass_ms(ttl_ms)
    assert not lock.held()
    theirs = won(you, FOR_EVER_MS)
    assert theirs.token > token


def test_a_renewed_lock_is_held_until_its_new_time_is_over(
    locker_place: LockerPlace, clock: ManualClock
) -> None:
    lock = locker_place.open("me").acquire("l", TTL_MS)
    assert lock is not None
    clock.advance(0.9)
    assert lock.renew(TTL_MS)
    clock.advance(0.999)
    assert lock.held()
    clock.advance(0.001)
    assert not lock.held()


@pytest.mark.waits(reason="locks on servers run out")
def test_a_short_lock_may_be_renewed_for_longer(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    lock = me.acquire("l", any_locker_place.ttl_ms)
    assert lock is not None
    assert lock.renew(FOR_EVER_MS)
    any_locker_place.pass_ms(2 * any_locker_place.ttl_ms)
    assert lock.held()
    assert you.acquire("l", FOR_EVER_MS) is None


@pytest.mark.waits(reason="locks on servers run out")
@pytest.mark.parametrize("learn", ["held", "renew"])
def test_a_loss_is_reported_once(any_locker_place: LockerPlace, learn: str) -> None:
    losses, ttl_ms = Losses(), any_locker_place.ttl_ms
    lock = any_locker_place.open("me").acquire("l", ttl_ms, losses)
    assert lock is not None
    any_locker_place.pass_ms(2 * ttl_ms)
    if any_locker_place.tells_unasked:
        eventually("the loss is told", lambda: losses.lost)
    else:
        assert losses.lost == []
    assert not (lock.held() if learn == "held" else lock.renew(ttl_ms))
    assert losses.lost == [lock]
    assert not lock.held()
    assert not lock.renew(ttl_ms)
    lock.release()
    assert losses.lost == [lock]


def test_a_lock_that_was_lost_is_lost_for_good(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    lock = me.acquire("l", any_locker_place.ttl_ms)
    assert lock is not None
    any_locker_place.pass_ms(any_locker_place.ttl_ms)
    assert not lock.renew(FOR_EVER_MS), "though nobody else wanted it"
    assert not lock.renew(FOR_EVER_MS)
    theirs = won(you, FOR_EVER_MS)
    lock.release()
    assert theirs.held()
    assert me.acquire("l", FOR_EVER_MS) is None, "a lost lock gives back nothing of another's"
    theirs.release()
    again = won(me, FOR_EVER_MS)
    assert not lock.held()
    lock.release()
    assert again.held()
    assert you.acquire("l", FOR_EVER_MS) is None


@pytest.mark.waits(reason="the time of a lock that was given back goes by")
def test_giving_back_is_not_loss(any_locker_place: LockerPlace) -> None:
    losses = Losses()
    lock = any_locker_place.open("me").acquire("l", any_locker_place.ttl_ms, losses)
    assert lock is not None
    lock.release()
    lock.release()
    any_locker_place.pass_ms(2 * any_locker_place.ttl_ms)
    assert not lock.held()
    assert not lock.renew(TTL_MS)
    assert losses.lost == []


def test_giving_back_twice_takes_nothing_from_the_next(any_locker_place: LockerPlace) -> None:
    me = any_locker_place.open("me")
    lock = me.acquire("l", FOR_EVER_MS)
    assert lock is not None
    lock.release()
    again = me.acquire("l", FOR_EVER_MS)
    assert again is not None
    lock.release()
    assert again.held()
    assert me.acquire("l", FOR_EVER_MS) is None


def test_a_closed_locker_has_given_up_all_its_locks(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    mine = [me.acquire(name, FOR_EVER_MS) for name in "abc"]
    yours = you.acquire("d", FOR_EVER_MS)
    me.close()
    assert all(lock and not lock.held() for lock in mine)
    assert yours is not None
    assert yours.held()
    assert all(you.acquire(name, FOR_EVER_MS) for name in "abc")


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


@pytest.mark.parametrize("ttl_ms", range(1, 9))
def test_a_lock_that_ends_in_the_middle_of_renewing_keeps_nobody_out(
    open_locker_place: Callable[[Clock], LockerPlace], ttl_ms: int
) -> None:
    place = open_locker_place(TickingClock())
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


@pytest.mark.parametrize("shared", [False, True], ids=["a locker each", "one locker for all"])
@pytest.mark.parametrize("wait_ms", [0, 100], ids=["asking", "waiting"])
def test_one_of_many_contenders_at_a_time_has_the_lock(
    any_locker_place: LockerPlace, shared: bool, wait_ms: int
) -> None:
    contenders, turns = 6, 10
    everybody = any_locker_place.open("everybody")
    lockers = [
        everybody if shared else any_locker_place.open(f"owner {number}")
        for number in range(contenders)
    ]
    inside = threading.Lock()
    tokens: list[int] = []
    start = threading.Barrier(contenders)

    def contend(number: int) -> None:
        start.wait(DEADLINE_SECONDS)
        for _ in range(turns):
            lock = eventually(
                "its turn comes", lambda: lockers[number].acquire("l", FOR_EVER_MS, wait_ms=wait_ms)
            )
            assert inside.acquire(blocking=False), "two are inside at once"
            tokens.append(lock.token)
            inside.release()
            lock.release()

    in_threads(contenders, contend)
    assert len(tokens) == contenders * turns
    assert tokens == sorted(set(tokens)), "each holder's token is larger than the one before"


def test_a_waiter_gets_the_lock_when_it_is_given_up(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    mine = me.acquire("l", FOR_EVER_MS)
    assert mine is not None
    asks, got = threading.Event(), list[Lock | None]()

    def wait_for_it() -> None:
        asks.set()
        got.append(you.acquire("l", FOR_EVER_MS, wait_ms=int(1000 * DEADLINE_SECONDS)))

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    assert asks.wait(DEADLINE_SECONDS)
    assert mine.held()
    mine.release()
    joined("the waiter", waiter)
    (yours,) = got
    assert yours is not None
    assert yours.held()
    assert yours.token > mine.token
    assert me.acquire("l", FOR_EVER_MS) is None


def test_a_waiter_that_gives_up_leaves_nothing_behind(any_locker_place: LockerPlace) -> None:
    me, you = any_locker_place.open("me"), any_locker_place.open("you")
    mine = me.acquire("l", FOR_EVER_MS)
    assert mine is not None
    assert you.acquire("l", FOR_EVER_MS, wait_ms=50) is None
    assert me.acquire("l", FOR_EVER_MS, wait_ms=50) is None
    assert mine.held()
    mine.release()
    assert me.acquire("l", FOR_EVER_MS) is not None
