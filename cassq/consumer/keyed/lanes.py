"""The lanes of a keyed group, and how its poppers share them.

A group has one lane, or as many as its queue has `key_lanes`. One popper at a time has a lane
(`lane.py` beside this). A popper may have several, and takes from them in turn:

- A popper that finds nothing tries all lanes that it does not have; a busy one tries one of them
  now and then. So no lane stays without a popper.
- The share of a popper is the number of lanes divided by the number of poppers present. A popper
  with fewer lanes asks for more, by a lease. While one asks, a popper with more than its share
  gives up one lane at a time: the one with the fewest messages in hand. It hands out no more of
  that lane, and gives it up once these are settled; if that takes too long, it keeps the lane.
- A popper also gives up a lane from which it takes nothing for two seconds.

Not thread-safe: `cassq.popper` holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.claiming.parts import LanePart
from cassq.consumer.delivery import Acknowledger, DeliveredRun, Delivery, Messages
from cassq.consumer.keyed.keys import PopperCallbacks
from cassq.consumer.keyed.lane import IDLE_MS, Lane
from cassq.consumer.presence import GONE_MS
from cassq.consumer.settling import Settler
from cassq.errors import CassqError, ClaimLostError
from cassq.lifecycle.ports import Ports
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.receipts import Receipt
from cassq.model.rows import Claim, GroupRow, QueueRow

# How often a popper that finds nothing tries the lanes that it does not have ...
LOOK_MS = 100
LOOK_BESIDE_MS = 500  # ... where that takes round trips ...
BUSY_MS = 1000  # ... and if it is busy, or has its share
MOVE_MS = 1000  # how often it compares what it has with its share, and may give up a lane
DRAIN_MS = 5000  # how long it waits for the messages in hand of a lane that it wants to give up
_NEVER = 3600.0


class Lanes:
    """The lanes of a group, as one popper works on them. of_part: makes a claimer for the `part` of
    a lane. parts, callbacks, keep_alive_ms: as for `Lane`; the claimer is the popper's."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        parts: tuple[Claimer, Settler, Acknowledger],
        callbacks: PopperCallbacks,
        of_part: Callable[..., Claimer],
        keep_alive_ms: float,
    ) -> None:
        self._catalog, self._clock = ports.catalog, ports.clock
        self._group = group
        self._look_ms = LOOK_MS if ports.sharing is None else LOOK_BESIDE_MS
        claimer, settler, acknowledger = parts
        self._name = claimer.name
        count = queue().policy.key_lanes
        lane_parts = [LanePart(ports.catalog, claimer.name, at, count) for at in range(count)]
        self._claimer = claimer
        self._claimers = [claimer] if count == 1 else [of_part(part=part) for part in lane_parts]
        self.lanes: list[Lane] = [
            Lane(ports, queue, group, own, settler, acknowledger, callbacks, keep_alive_ms, part)
            for own, part in zip(self._claimers, lane_parts, strict=True)
        ]
        self._only = self.lanes[0] if count == 1 else None
        self._first = 0  # the lane whose turn it is
        self._share = count  # at most this many are this popper's
        self._tried_ms = self._moved_ms = -BUSY_MS
        self._used_ms = 0
        self._failed: Exception | None = None  # not raised yet, as messages had been taken
        self._refused: dict[Lane, int] = {}  # when another popper was seen to have them
        self._drained: Lane | None = None  # the lane to give up next ...
        self._drained_ms = 0  # ... since when
        self._asks = False

    @property
    def is_held(self) -> bool:
        """Whether this popper has a lane, as far as it knows."""
        return any(lane.is_held for lane in self.lanes)

    @property
    def broken(self) -> dict[str, CassqError]:
        """As `CandidatePipes.broken`."""
        return {name: exc for each in self._claimers for name, exc in each.window.broken.items()}

    # --- taking -------------------------------------------------------------------------------

    def take(self, limit: int) -> Messages:
        """At most `limit` messages, from the lanes in turn. Cost: that of `Lane.take` for each; if
        there are several lanes, also a read or two per second, and taking the lock of each lane
        that is tried."""
        if self._only is not None:
            found = self._only.take(limit)
            self._only.handed_out()
            return found
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        now_ms = self._used_ms = self._clock.boot_ms()
        for claimer in self._claimers:
            claimer.look()
        self._share_lanes(now_ms)
        lanes = self.lanes[self._first :] + self.lanes[: self._first]
        self._first = (self._first + 1) % len(lanes)
        held = [lane for lane in lanes if lane.is_held and lane is not self._drained]
        others = [lane for lane in lanes if not lane.is_held]
        if others and now_ms - self._tried_ms >= BUSY_MS:
            self._tried_ms = now_ms
            longest = min(others, key=lambda lane: self._refused.get(lane, -1))
            others.remove(longest)
            held.insert(0, longest)
        runs: list[DeliveredRun] = []
        left = self._take_from(held, limit, runs)
        since_ms = now_ms - (BUSY_MS if runs else self._pause_ms(len(held)))
        free = [lane for lane in others if self._refused.get(lane, since_ms) <= since_ms]
        self._take_from(free, left, runs)
        for lane in held + free:
            lane.handed_out()
        return Messages(runs)

    def _take_from(self, lanes: Iterable[Lane], limit: int, runs: list[DeliveredRun]) -> int:
        """Take from lanes until there are `limit` messages; returns how many are missing."""
        for lane in lanes:
            if limit <= 0 or self._failed is not None:
                break
            try:
                found = lane.take(limit)
            except BaseException as exc:
                if not runs:
                    raise
                if isinstance(exc, Exception):
                    self._failed = exc  # the next call raises it
                    break
                self._put_back(runs)  # most likely a signal handler's: they are not handed out
                raise
            runs += found.runs
            limit -= len(found)
            if not lane.is_held:
                self._refused[lane] = self._used_ms
        return limit

    def _put_back(self, runs: Iterable[DeliveredRun]) -> None:
        """Put back messages that were taken but are not handed out."""
        ahead: dict[Delivery, RangeSet] = {}
        for delivery, _, seqs in runs:
            ahead[delivery] = RangeSet.joined([ahead.get(delivery, EMPTY), seqs])
        self.put_back_ahead(ahead)

    def _pause_ms(self, held: int) -> int:
        """How long to wait before lanes that others had are tried again, if nothing was found.
        held: how many lanes this popper has."""
        return self._look_ms if held < self._share else BUSY_MS

    # --- sharing ------------------------------------------------------------------------------

    def _share_lanes(self, now_ms: int) -> None:
        """Ask for lanes, or give one up, if that was not done for a while."""
        if self._drained is not None:
            self._drain(self._drained, now_ms)
        if now_ms - self._moved_ms < MOVE_MS:
            return
        self._moved_ms = now_ms
        since_ms = self._catalog.now_ms() - GONE_MS
        poppers = max(1, len(self._catalog.records.members(self._group().id, since_ms)))
        self._share = -(-len(self.lanes) // poppers)
        held = [lane for lane in self.lanes if lane.is_held]
        if len(held) < max(1, len(self.lanes) // poppers):
            self._asks = True
            self._catalog.leases.take(self._request(), self._name, 3 * MOVE_MS)
            return
        self._ask_no_more()
        if len(held) > self._share and self._drained is None and self._is_asked():
            self._drained, self._drained_ms = min(held, key=Lane.in_hand), now_ms
            self._drain(self._drained, now_ms)

    def _drain(self, lane: Lane, now_ms: int) -> None:
        """Give up a lane once none of its messages is in hand; keep it if that takes too long."""
        if lane.is_held and lane.in_hand() == 0:
            lane.leave({})
        if not lane.is_held:
            self._refused[lane] = now_ms + MOVE_MS  # others come first
            self._moved_ms = now_ms
        if not lane.is_held or now_ms - self._drained_ms >= DRAIN_MS:
            self._drained = None

    def _request(self) -> str:
        """The name of the lease with which a popper asks for a lane."""
        return f"lanes:{self._group().id}"

    def _is_asked(self) -> bool:
        return self._catalog.leases.owner(self._request()) not in (None, self._name)

    def _ask_no_more(self) -> None:
        if self._asks:
            self._asks = False
            self._catalog.leases.drop(self._request(), self._name)

    # --- what the consumers say -----------------------------------------------------------------

    def flushed(self, free: Sequence[Claim]) -> None:
        """As `Lane.flushed`."""
        for lane in self.lanes:
            lane.flushed(free)

    def put_back_ahead(self, ahead: Mapping[Delivery, RangeSet]) -> None:
        """Put back messages that were taken ahead but not used."""
        for lane in self.lanes:
            lane.put_back_ahead(ahead)

    def extend(self, delivery: Delivery, seq: int, ms: int) -> None:
        """Give the consumer of a message `ms` milliseconds from now. Raises ClaimLostError."""
        if not any(lane.extend(delivery, seq, ms) for lane in self.lanes):
            raise ClaimLostError(pipe_id=delivery.pipe_id)

    def in_hand(self) -> int:
        """How many messages consumers have. Cost: linear in the rows held."""
        return sum(lane.in_hand() for lane in self.lanes)

    # --- receivers ------------------------------------------------------------------------------

    def receive(self, ms: int, delay_ms: int) -> None:
        """From now on `take` gives messages deadlines of their own, `ms` from then. It takes only
        messages that were pushed at least `delay_ms` before."""
        for lane in self.lanes:
            lane.receiving.ms, lane.receiving.delay_ms = ms, delay_ms

    def note(self, acked: Iterable[Receipt]) -> None:
        """As `Receiving.note`. Takes no lock."""
        receipts = list(acked)
        for lane in self.lanes:
            lane.receiving.note(receipts)

    def look_soon(self) -> None:
        """Check at the next call what receipts did, as they did something. Takes no lock."""
        for lane in self.lanes:
            lane.look_soon()

    # --- keeping --------------------------------------------------------------------------------

    def maintain_within(self) -> float:
        """In how many seconds `maintain` is due after a call of `take`."""
        within = self.lanes[0].maintain_within()
        return within if self._only is not None else min(within, MOVE_MS / 1000)

    def maintain(self, *, leave: bool = False) -> float:
        """As `Lane.maintain`, for all of them."""
        again = min(lane.maintain(leave=leave) for lane in self.lanes)
        if self._only is not None or again >= _NEVER:
            return again
        for claimer in self._claimers:
            claimer.close_dropped()
        now_ms = self._clock.boot_ms()
        if not leave and now_ms - self._used_ms < IDLE_MS:
            self._share_lanes(now_ms)
        return min(again, MOVE_MS / 1000)

    def leave(self, ahead: Mapping[Delivery, RangeSet]) -> None:
        """As `Lane.leave`, for all of them."""
        with ExitStack() as stack:
            stack.callback(self._ask_no_more)
            for lane in self.lanes:
                stack.callback(lane.leave, ahead)

    def close(self) -> None:
        """Release file handles and mappings."""
        for claimer in dict.fromkeys([self._claimer, *self._claimers]):
            claimer.close()

    # --- waiting --------------------------------------------------------------------------------

    def until_due(self, most: float) -> float:
        """Seconds until there may be something to do; at most `most`."""
        if self._only is not None:
            return self._only.until_due(most)
        held = [lane for lane in self.lanes if lane.is_held]
        if len(held) < len(self.lanes):
            most = min(most, self._pause_ms(len(held)) / 1000)
        return min([most, *(lane.until_due(most) for lane in held)])

    def has_news(self) -> bool:
        """Whether something may be ready. Memory reads only."""
        return any(lane.has_news() for lane in self.lanes if lane is not self._drained)
