"""What a running popper holds open: few files, and none that was removed."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable, Iterator

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.claiming.candidates import READERS_MAX
from cassq.lifecycle.timers import READERS_MAX as TIMERS_MAX
from tests.integration.stage import drain, numbers, push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

pytestmark = pytest.mark.embedded_only(reason="only pipe files are held open")

ROUNDS = 30
Put = Callable[[cassq.Queue, ManualClock], None]


def open_files() -> Iterator[os.stat_result]:
    """Every open file of this process, descriptor by descriptor."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for fd in range(min(most, 4096)):
        try:
            found = os.fstat(fd)
        except OSError:
            continue  # no descriptor of that number is open
        if stat.S_ISREG(found.st_mode):
            yield found


def removed_files() -> int:
    """How many descriptors keep the space of a file that has no name any more."""
    return sum(found.st_nlink == 0 for found in open_files())


def delayed(queue: cassq.Queue, clock: ManualClock) -> None:
    """Messages that come due at three times."""
    with queue.pusher() as pusher:
        for delay in (1, 2, 3):
            pusher.push_many(numbers(5), delay=delay)
    clock.advance(3)


def failed(queue: cassq.Queue, clock: ManualClock) -> None:
    """Messages that were waiting, came, and were given back in two parts."""
    push(queue, *numbers(9))
    with queue.popper() as other:
        other.rollback(other.pop(5))
        other.rollback(other.pop(4))


def expired(queue: cassq.Queue, clock: ManualClock) -> None:
    """Messages whose popper went silent with them."""
    push(queue, *numbers(9))
    silent = queue.popper()
    silent.pop(5)
    clock.advance(queue.policy.claim_timeout + 1)


@pytest.mark.parametrize("put", [delayed, failed])
def test_the_files_of_retired_pipes_are_closed_while_a_popper_runs(
    timed: cassq.Client, clock: ManualClock, put: Put
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    popper = queue.popper()
    before = removed_files()
    counts: list[int] = []
    for _ in range(ROUNDS):
        put(queue, clock)
        assert drain(popper)
        clock.advance(1)  # it lists anew
        reap(timed)
        assert drain(popper) == []
        counts.append(removed_files() - before)
    assert queue.stats().pipes["sealed"] == 0
    assert counts == [0] * ROUNDS


@pytest.mark.parametrize("put", [delayed, failed, expired])
def test_a_popper_that_is_not_asked_for_anything_closes_them_too(
    timed: cassq.Client, clock: ManualClock, put: Put
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    popper = queue.popper()
    before = removed_files()
    for _ in range(3):
        put(queue, clock)
        assert drain(popper)
    reap(timed)
    for thing in list(timed.runtime.open):  # the silent ones too, as the housekeeper does
        assert thing.maintain() <= 10 or thing.closed
    assert removed_files() == before


def test_what_a_popper_holds_open_is_bounded(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs")
    popper = queue.popper()
    before = sum(1 for _ in open_files())
    count = READERS_MAX + TIMERS_MAX + 20
    for number in range(count):
        with queue.pusher() as pusher:
            pusher.push(b"%d" % number, delay=1)
    clock.advance(1)
    got = popper.pop(count)
    assert len(got) == count
    # A pipe that is read takes two: its own file and the page of shared words.
    assert sum(1 for _ in open_files()) - before <= 2 * (READERS_MAX + TIMERS_MAX)
    popper.commit(got)
