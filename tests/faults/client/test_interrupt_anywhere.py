"""Interrupts at every moment of a call: pusher, popper and client stay usable by all threads.

Python hears a signal where a function begins, after a call and when a loop turns back. The first
two kinds of moments in a push, a pop and so on are tried one by one: what a handler raises comes
out of it, and then another thread pushes, pops and commits. A lead or a lock that the interrupted
thread took along shows as a thread that does not end. The random moments of `test_interrupt.py` and
`test_signals.py` meet such a window once in thousands of rounds.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import cassq
from cassq.errors import ClaimLostError
from cassq.inspect.history import HOUR_MS
from tests.faults.client.test_interrupt import Interruption, is_lost_in
from tests.integration.deadlines import eventually, in_threads
from tests.integration.stage import LaterClock, alone, client_on, drain

Act = Callable[[], object]

MOST = 500  # moments of one call that are tried; of longer calls every so many
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Moment:
    """The `number`th moment of a call at which a signal may be heard; there it is interrupted.

    What a profiler raises comes out where a handler's exception does: of the call that it was told
    of. A tracer's would come out of the next step, behind the end of a `with` block, where Python
    hears none.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.passed = 0
        self.place = ""

    def interrupts(self, act: Act) -> bool:
        """Do it; whether it came as far as to the moment."""
        before = sys.getprofile()
        sys.setprofile(self._heard)
        try:
            act()
        except Interruption:
            return True
        except RuntimeError as exc:  # what Python's own `Thread.start` can make of it
            assert isinstance(exc.__context__, Interruption)
        finally:
            sys.setprofile(before)
        return bool(self.place)

    def _heard(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event not in ("call", "return", "c_return") or code.co_filename == __file__:
            return
        if event != "c_return" and code.co_flags & GENERATORS:
            return  # that it yields, or is thrown away, is no moment
        self.passed += 1
        if self.passed >= self._number and not is_lost_in(frame):
            self.place = f"{code.co_filename}:{frame.f_lineno}, {event} in {code.co_name}"
            sys.setprofile(None)
            raise Interruption


class Scene:
    """A queue with a pusher and a popper, which another thread uses after each interrupt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.client = client_on(directory)
        self.client.create_queue(
            "jobs",
            claim_timeout=600,
            max_deliveries=100_000,
            sick_check=False,
            dedup_window=600,
        )
        self.client.create_queue("lanes", key_lanes=3)
        self._open()
        self.acked: set[str] = set()
        self.pushed: set[str] = set()
        self.seen: set[str] = set()

    def reopen(self) -> None:
        """If it was closed."""
        if self.client.ports.life.closed:
            self.client = client_on(self._directory)
            self._open()

    def _open(self) -> None:
        """Pusher and popper, in a client whose housekeeping does not interfere."""
        self.client.runtime.housekeeper.stop()
        self.queue = self.client.queue("jobs")
        self.pusher, self.popper = self.queue.pusher(), self.queue.popper(keep_alive=0)
        self.lanes_pusher = self.client.queue("lanes").pusher()

    def hold(self) -> cassq.Messages:
        """Messages to settle."""
        self.pushed.add(self.pusher.push(b"x"))
        return self.take(self.popper, 1)

    def take(self, popper: cassq.Popper, most: int) -> cassq.Messages:
        messages = popper.pop(most, wait=60)
        assert messages
        ids = {message.id for message in messages}
        assert not ids & self.acked, "what was acked came again"
        self.seen |= ids
        return messages

    def goes_on(self, moment: Moment) -> None:
        """In another thread."""

        def work(_: int) -> None:
            self.reopen()
            self.pushed.add(self.pusher.push(b"after"))
            messages = self.take(self.popper, 3)
            try:
                self.popper.commit(messages)
            except ClaimLostError:
                return  # what was interrupted has given them back
            self.acked |= {message.id for message in messages}

        what = f"a push and a pop after an interrupt at {moment.place}"
        in_threads(1, work, what=what)

    def ends(self) -> None:
        """Close; all that was pushed is there, be it when claims that nobody knows of are over."""
        in_threads(1, lambda _: self.client.close(), what="closing")
        client = client_on(self._directory, clock=LaterClock(HOUR_MS))
        alone(client)  # hundreds of pipes are ready to be retired, while the audit looks
        try:
            queue = client.queue("jobs")
            popper = queue.popper()

            def all_came() -> bool:
                found = {message.id for message in drain(popper)}
                assert not found & self.acked, "what was acked came again"
                self.seen |= found
                return self.seen >= self.pushed

            eventually("all that was pushed comes", all_came)
            for audit in (queue.audit(), client.queue("lanes").audit()):
                assert audit.findings == []
                assert audit.balanced
        finally:
            client.close()


# --- what is interrupted -----------------------------------------------------------------------


def push(scene: Scene) -> Act:
    return lambda: scene.pusher.push(b"x")


def push_many(scene: Scene) -> Act:
    return lambda: scene.pusher.push_many([b"x", b"y"])


def push_lanes(scene: Scene) -> Act:
    """Some are appended by threads that the call has started, and which go on."""
    scene.client.ports.store.networked = True
    return lambda: scene.lanes_pusher.push_many([b"x"] * 9, keys=[b"%d" % n for n in range(9)])


def push_once(scene: Scene) -> Act:
    return lambda: scene.pusher.push(b"x", dedup_id=f"id {len(scene.pushed)}")


def push_delayed(scene: Scene) -> Act:
    return lambda: scene.pusher.push(b"x", delay=0.001)


def push_soon(scene: Scene) -> Act:
    def act() -> None:
        scene.pusher.push_soon(b"x")
        scene.pusher.flush()

    return act


def pop(scene: Scene) -> Act:
    scene.pushed.add(scene.pusher.push(b"x"))
    return lambda: scene.popper.pop(1)


def iterate(scene: Scene) -> Act:
    scene.pushed.add(scene.pusher.push(b"x"))

    def act() -> None:
        for message in scene.popper:
            scene.seen.add(message.id)
            message.ack()
            break

    return act


def ack(scene: Scene) -> Act:
    (message,) = scene.hold()

    def act() -> None:
        message.ack()
        scene.popper.flush()

    return act


def nack(scene: Scene) -> Act:
    (message,) = scene.hold()

    def act() -> None:
        message.nack(error="it failed", delay=0)
        scene.popper.flush()

    return act


def commit(scene: Scene) -> Act:
    messages = scene.hold()
    return lambda: scene.popper.commit(messages)


def rollback(scene: Scene) -> Act:
    messages = scene.hold()
    return lambda: scene.popper.rollback(messages)


def transaction(scene: Scene) -> Act:
    messages = scene.hold()

    def act() -> None:
        with scene.popper.transaction():
            messages[0].ack()

    return act


def extend(scene: Scene) -> Act:
    (message,) = scene.hold()
    return lambda: message.extend(700)


def close_pusher(scene: Scene) -> Act:
    pusher = scene.queue.pusher()
    scene.pushed.add(pusher.push(b"x"))
    return pusher.close


def close_popper(scene: Scene) -> Act:
    scene.pushed.add(scene.pusher.push(b"x"))
    popper = scene.queue.popper(keep_alive=0)
    scene.take(popper, 1)
    return popper.close


def close_client(scene: Scene) -> Act:
    scene.hold()
    return scene.client.close


CALLS = [
    push, push_many, push_lanes, push_once, push_delayed, push_soon, pop, iterate, ack, nack,
    commit, rollback, transaction, extend, close_pusher, close_popper,
]  # fmt: skip


CLOSING = pytest.param(
    close_client, id="close_client", marks=pytest.mark.long(reason="a client for each interrupt")
)


@pytest.mark.parametrize("call", [*CALLS, CLOSING], ids=lambda call: call.__name__)
def test_wherever_a_call_is_interrupted_all_threads_go_on(
    directory: Path, call: Callable[[Scene], Act]
) -> None:
    scene = Scene(directory)
    whole = Moment(sys.maxsize)
    assert not whole.interrupts(call(scene))
    tried = range(1, whole.passed, max(1, whole.passed // MOST))
    assert len(tried) > 50
    for number in tried:
        scene.reopen()
        moment, act = Moment(number), call(scene)
        moment.interrupts(act)
        if call.__name__.startswith("close"):
            what = f"closing again after an interrupt at {moment.place}"
            in_threads(1, lambda _, act=act: act(), what=what)
        scene.goes_on(moment)
    scene.ends()
