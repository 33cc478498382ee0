"""Turns: a popper keeps a pipe's lock from one message to the next.

For catalogs on a network, where taking a lock, and raising the epoch that goes with it, takes
several round trips. A turn ends

- when another popper wants it and it has lasted for `TURN_MS`, or longer where taking it took long:
  as soon as nothing is in hand;
- when its popper has taken nothing for `IDLE_MS`, or is paused, stopped or closed.

Poppers of one client pass a turn on in memory. The other clients stand in line, and one is next,
see `line`. The holder's housekeeper checks whether a client is next, so the consumer need not wait
for that. A holder that gave way takes no new turn while another client is next.

A turn decides only in which order poppers are served: claims and acks are conditional on the epoch
that the first claim of a turn raises. A request that is lost or wrong only costs time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from cassq.base.clock import Clock, wait_event
from cassq.catalog.port import Leases
from cassq.errors import BackendError
from cassq.locks.line import REQUEST_MS, WaitingLine
from cassq.locks.port import Lock, Locker
from cassq.model.rows import Cursor

logger: logging.Logger = logging.getLogger("cassq")

TURN_MS = 200  # how long a popper may keep its turn while others wait
# It lasts at least this many times as long as it took to take the lock and raise the epoch, so that
# little of the time is spent between turns; but not longer than this.
TURN_TIMES, TURN_MS_MAX = 8, 1000
IDLE_MS = 200  # how long it may keep a turn that it does not use
OVERSTAY_MS = 400  # how long a popper may keep what it claimed ahead while others wait
LOOK_MS = 100  # how often a holder checks whether another client waits
RELEASE_SECONDS_MAX = 10.0
# After how long a popper in line tries again: if its client is next; if another client is, seldom,
# so that many waiting clients do not slow down the holder; and behind a popper of its own client,
# which wakes it.
NEXT_SECONDS, LINE_SECONDS, BESIDE_SECONDS = 0.02, 0.15, 0.05
# A lock is renewed in the background when a message is handed out after this share of its time ...
_RENEWED_AFTER = 0.05
# ... and before anything is claimed after this share of it. So the lock lapses before the claim by
# at most this share of the claim's time, and the next holder leaves the claim alone until then.
STALE_SHARE = 1 / 8


class TurnState(Enum):
    """in hand → resting → in hand, and from either to over."""

    IN_HAND = "in hand"  # its popper claims, or has messages
    RESTING = "resting"  # kept for its popper's next pop
    OVER = "over"  # another popper may have the lock


class HeldTurn(Lock):
    """A lock while one popper keeps it.

    group_id: whose turn it is. epoch: what the first claim of the turn raised the pipe's epoch to.
    cursor: where the group stands in the pipe; None where that must be read.
    settled: whether all that was last handed out is acked. wanted: by another client. asked_ms:
    when another popper of this client last asked. waited_ms: since when another waits. locked_ms:
    since when this client has the lock; begun_ms: since when this popper has. turn_ms: how long
    this client keeps it while another waits. Times are boot milliseconds.
    """

    def __init__(
        self, turns: Turns, lock: Lock, group_id: str, popper: str, ttl_ms: int, now_ms: int
    ) -> None:
        self.name: str = lock.name
        self.token: int = lock.token
        self.lock = lock
        self.group_id = group_id
        self.popper = popper
        self.ttl_ms = ttl_ms
        self.epoch: int | None = None
        self.cursor: Cursor | None = None
        self.settled: Callable[[], bool] = lambda: False
        self.state: TurnState = TurnState.IN_HAND
        self.wanted: bool = False
        self.asked_ms: int | None = None
        self.waited_ms: int | None = None
        self.begun_ms: int = now_ms
        self.locked_ms: int = now_ms
        self.turn_ms: int = TURN_MS
        self.used_ms: int = now_ms
        self.looked_ms: int = now_ms
        self.released: threading.Event = threading.Event()
        self._turns = turns
        self.renewed_ms: int = now_ms
        self._renewing = threading.Lock()
        self._stale = False  # to be renewed by the housekeeper
        self._long = False  # extended for longer than its ttl

    def held(self) -> bool:
        return self.state is not TurnState.OVER and self.lock.held()

    def renew(self, ttl_ms: int) -> bool:
        with self._renewing:
            self._long |= ttl_ms > self.ttl_ms
            # Noted as the renewal for its own ttl that lapses at the same time: after a renewal for
            # less than that, the lock is renewed again before anything else is claimed.
            return self._renew(self._turns.now_ms() + ttl_ms - self.ttl_ms, ttl_ms)

    def release(self) -> None:
        """What was handed out is settled or lost: keep the lock for the next pop, or end the turn.
        Cost: none if it is kept."""
        acked = self.settled()
        cursor = self.cursor
        self.cursor = replace(cursor, ack=cursor.chain) if acked and cursor is not None else None
        if self._long or not self.held():
            self.end()
        else:
            self._turns.rest(self, used=True)

    def fenced(self, epoch: int) -> None:
        """Note that the pipe's epoch was raised for this turn."""
        self.epoch = epoch
        took_ms = self._turns.now_ms() - self.locked_ms
        self.turn_ms = min(max(TURN_MS, TURN_TIMES * took_ms), TURN_MS_MAX)

    def put_down(self) -> None:
        """Nothing could be claimed: keep the lock, as long as it would be kept anyway."""
        self._turns.rest(self, used=False)

    def end(self) -> None:
        """Release the lock. Cost: the same as `Lock.release`, once."""
        self._turns.end(self)

    def hand_out(self, cursor: Cursor | None, settled: Callable[[], bool], now_ms: int) -> None:
        """Note that messages were claimed. cursor: after that, if all before them is acked."""
        self.cursor, self.settled = cursor, settled
        with self._renewing:
            self._stale = now_ms - self.renewed_ms >= _RENEWED_AFTER * self.ttl_ms

    @property
    def stale(self) -> bool:
        """Whether the lock must be renewed for what is in hand."""
        return self._stale

    def refresh(self, now_ms: int, *, always: bool = False) -> bool:
        """Renew the lock for what was, or will be, handed out, unless that was done meanwhile;
        returns whether it is still ours. Cost: the same as `Lock.renew`."""
        with self._renewing:
            if self._stale or always:
                return self._renew(now_ms, self.ttl_ms)
            return self.lock.held()

    def _renew(self, since_ms: int, ttl_ms: int) -> bool:
        """Renew the lock, which then lapses its own ttl after `since_ms`. If that fails, it may
        lapse then, or when it would have lapsed before."""
        self.renewed_ms = min(self.renewed_ms, since_ms)
        held = self.lock.renew(ttl_ms)
        self._stale, self.renewed_ms = False, since_ms
        return held

    def lapses_early(self, now_ms: int) -> bool:
        """Whether the lock must be renewed before anything is claimed."""
        return now_ms - self.renewed_ms > STALE_SHARE * self.ttl_ms

    def passes_on(self, now_ms: int) -> bool:
        """Whether the next turn is another client's."""
        return self.wanted and self._left_ms(now_ms) <= 0

    def fit(self, count: int, seconds: float, now_ms: int) -> int:
        """How many messages there is time for in this turn, of `count` that take `seconds`: all if
        no other client waits."""
        if not self.wanted:
            return count
        return int(count * min(1.0, max(0, self._left_ms(now_ms)) / (1000 * seconds)))

    def _left_ms(self, now_ms: int) -> int:
        """How much of the turn is left, if another client waits."""
        return self.turn_ms - (now_ms - self.locked_ms)

    def gives_way(self, now_ms: int) -> bool:
        """Whether the next turn is another popper's."""
        asked = self.asked_ms is not None and now_ms - self.asked_ms < TURN_MS
        return self.passes_on(now_ms) or (asked and now_ms - self.begun_ms >= TURN_MS)

    def overstays(self, now_ms: int) -> bool:
        """Whether another popper has waited for longer than for a turn."""
        waited = self.waited_ms is not None and now_ms - self.waited_ms >= OVERSTAY_MS
        return waited and self.gives_way(now_ms)

    def wait(self, now_ms: int, *, waits: bool) -> None:
        """Note whether another popper waits now."""
        if not waits:
            self.waited_ms = None
        elif self.waited_ms is None:
            self.waited_ms = now_ms


class Turns:
    """The turns of one client's poppers. owner: a unique name."""

    def __init__(self, leases: Leases, locker: Locker, clock: Clock, owner: str) -> None:
        self._locker = locker
        self._clock = clock
        self._mutex = threading.Lock()
        self._kept: dict[str, HeldTurn] = {}  # by the lock's name
        self._line = WaitingLine(leases, clock, owner)
        self._gave_way: dict[str, int] = {}  # group → until when another client goes first

    def now_ms(self) -> int:
        """Boot milliseconds."""
        return self._clock.boot_ms()

    # --- taking -------------------------------------------------------------------------------

    def resume(self, name: str, popper: str, ttl_ms: int) -> tuple[HeldTurn | None, bool]:
        """The turn that this client keeps, for a popper that wants to claim; and whether it must
        wait for another popper's. Cost: none, unless a turn ends."""
        now_ms = self._clock.boot_ms()
        turn = self._kept.get(name)
        if turn is None:
            return None, False
        if turn.held():
            with self._mutex:
                if turn.popper != popper:
                    turn.asked_ms = now_ms
                    turn.wait(now_ms, waits=True)
                if turn.state is TurnState.IN_HAND:
                    return None, True
                if turn.state is TurnState.RESTING and not turn.passes_on(now_ms):
                    return self._picked_up(turn, popper, ttl_ms, now_ms)
        turn.end()
        # Another thread may be releasing the lock, which can be had in a moment.
        wait_event(turn.released, RELEASE_SECONDS_MAX)
        return None, False

    def _picked_up(
        self, turn: HeldTurn, popper: str, ttl_ms: int, now_ms: int
    ) -> tuple[HeldTurn | None, bool]:
        """`resume` of a turn that rests, and that no other client waits for."""
        if turn.popper == popper:
            if turn.gives_way(now_ms):
                return None, True
            turn.state, turn.ttl_ms = TurnState.IN_HAND, ttl_ms
            return turn, False
        mine = HeldTurn(self, turn.lock, turn.group_id, popper, ttl_ms, now_ms)
        mine.wanted, mine.looked_ms = turn.wanted, turn.looked_ms
        mine.locked_ms, mine.renewed_ms = turn.locked_ms, turn.renewed_ms
        mine.turn_ms = turn.turn_ms
        turn.state = TurnState.OVER
        turn.released.set()
        self._kept[turn.name] = mine
        return mine, False

    def begin(
        self, name: str, group_id: str, popper: str, ttl_ms: int, *, in_line: bool
    ) -> HeldTurn | None:
        """Take the lock; None while another client has it, or goes first. in_line: the group has no
        other lock that may be free, so a client in line does not try it out of turn.

        Cost: that of `Locker.acquire`; that of `WaitingLine.ask` if the lock is taken, or if this
        client is in line and not next.
        """
        now_ms = self._clock.boot_ms()
        if self._goes_first(group_id, popper, now_ms):
            return None
        if in_line and self._line.waits(group_id) and not self._line.ask(group_id, popper):
            return None
        lock = self._locker.acquire(name, ttl_ms)
        if lock is None:
            self._line.ask(group_id, popper)
            return None
        turn = HeldTurn(self, lock, group_id, popper, ttl_ms, now_ms)
        with self._mutex:
            self._kept[name] = turn
        self._line.granted(group_id)
        return turn

    def line_seconds(self, name: str, group_id: str) -> float:
        """In how many seconds a popper that did not get a lock tries again. Cost: memory reads."""
        if name in self._kept:
            return BESIDE_SECONDS
        return NEXT_SECONDS if self._line.is_next(group_id) else LINE_SECONDS

    def _goes_first(self, group_id: str, popper: str, now_ms: int) -> bool:
        """Whether another client goes first, because it waited for a turn that ended here. This
        client then gets in line."""
        until_ms = self._gave_way.get(group_id)
        if until_ms is None:
            return False
        if now_ms < until_ms:
            if self._line.waits(group_id):
                return not self._line.ask(group_id, popper)
            if self._line.is_wanted(group_id):
                self._line.ask(group_id, popper)
                return True
        self._gave_way.pop(group_id, None)
        return False

    # --- keeping ------------------------------------------------------------------------------

    def rest(self, turn: HeldTurn, *, used: bool) -> None:
        """Keep a turn that has no messages in hand."""
        with self._mutex:
            if turn.state is TurnState.IN_HAND:
                turn.state = TurnState.RESTING
                if used:
                    turn.used_ms = self._clock.boot_ms()

    def end(self, turn: HeldTurn) -> None:
        """End a turn, and release its lock."""
        with self._mutex:
            if turn.state is TurnState.OVER:
                return
            turn.state = TurnState.OVER
        self._release(turn)

    def _release(self, turn: HeldTurn) -> None:
        """Release the lock of a turn that is over. Until that is done, the turn is kept as over."""
        try:
            turn.lock.release()
        finally:
            with self._mutex:
                if turn.wanted:
                    self._gave_way[turn.group_id] = self._clock.boot_ms() + 2 * REQUEST_MS
                if self._kept.get(turn.name) is turn:
                    del self._kept[turn.name]
            turn.released.set()

    def maintain(self, popper: str, *, leave: bool) -> float:
        """Renew, and end, what a popper keeps. leave: it takes nothing for the moment. Returns the
        seconds until the next time. Cost: a read in `LOOK_MS` for each turn; a write where a lock
        must be renewed or released."""
        turns = self._of(popper)
        try:
            self._line.drop_granted()
            for turn in turns:
                self._tend(turn, leave=leave)
        except BackendError as exc:
            logger.info("turns will be checked again in a moment: %s", exc)
        return LOOK_MS / 1000 if turns else 3600.0

    def _tend(self, turn: HeldTurn, *, leave: bool) -> None:
        now_ms = self._clock.boot_ms()
        # Not the lock of a pipe that may have been retired since: it would be left behind.
        if turn.stale and turn.state is TurnState.IN_HAND:
            turn.refresh(now_ms)
        if not turn.held():
            if turn.state is TurnState.RESTING:
                turn.end()
            return
        if now_ms - turn.looked_ms >= LOOK_MS:
            turn.looked_ms = now_ms
            turn.wanted = self._line.is_wanted(turn.group_id)
            asked_ms = turn.asked_ms or 0
            turn.wait(now_ms, waits=turn.wanted or now_ms - asked_ms < TURN_MS)
        with self._mutex:
            rests = turn.state is TurnState.RESTING
            ends = leave or now_ms - turn.used_ms >= IDLE_MS or turn.gives_way(now_ms)
            if not (rests and ends):
                return
            turn.state = TurnState.OVER
        self._release(turn)

    def overstays(self, popper: str) -> bool:
        """Whether what a popper claimed ahead has kept others waiting for too long: it goes back,
        though it is slower to claim again. Cost: memory reads."""
        now_ms = self._clock.boot_ms()
        return any(turn.overstays(now_ms) for turn in self._of(popper))

    def due_seconds(self, popper: str) -> float:
        """In how many seconds `maintain` is due after a popper claimed. Cost: memory reads."""
        return 0.0 if any(turn.stale for turn in self._of(popper)) else LOOK_MS / 1000

    def leave(self, popper: str) -> None:
        """End all turns of a popper that is closed."""
        for turn in self._of(popper):
            try:
                turn.end()
            except BackendError as exc:
                logger.info("lock %s is not released, and will expire: %s", turn.name, exc)
        self._line.leave(popper)

    def _of(self, popper: str) -> list[HeldTurn]:
        """The turns of a popper. Cost: memory reads."""
        return [turn for turn in list(self._kept.values()) if turn.popper == popper]
