"""The runtime of a client: what its queues, pushers and poppers share.

It holds the ports, once the place is open, the background threads, the doorbells, and the open
pushers and poppers, to pass changed settings to them and to close them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from cassq.base.clock import Clock
from cassq.base.counters import Requests, Tallies, Tally
from cassq.base.housekeeper import Housekeeper, Maintain
from cassq.client.backends.embedded import Embedded
from cassq.client.watched import WatchedQueue
from cassq.consumer.presence import LOOK_SECONDS, Presence
from cassq.consumer.receiving import Receiver
from cassq.doorbell import Doorbell, PollingDoorbell
from cassq.errors import BackendUnavailableError, ClosedError
from cassq.inspect.degradation import NOTE_SECONDS, Notebook
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.lifecycle.retries import AppendTo, DeadLetters
from cassq.model.queues import is_dead_letter_name
from cassq.model.rows import Claim, GroupRow, QueueRow
from cassq.popper import Popper
from cassq.producer.pusher import Pusher
from cassq.producer.spilling import Overflow
from cassq.producer.tick_push import PushTo
from cassq.reaper import LEASE_MS, Reaper

Openable = Pusher | Popper | Receiver

REAP_SECONDS = 1.0
REFRESH_SECONDS = 0.25
# After a round of passes no client begins another one for this many times as long as it took: they
# take about 1/50 of one core, or more if that rest would exceed `REAP_REST_SECONDS_MAX`.
REAP_REST = 50
REAP_REST_SECONDS_MAX = 10.0
# The lease of the client that reaps in the background, from its passes until the next are due. It
# is renewed while they run: if it lapsed because servers are slow, other clients would begin passes
# as well, and make the servers slower still.
PASSING_LEASE = "reaper:passing"


class Offline:
    """Stands in for a place while no server has answered yet.

    Until then a client can only push to the queues that its spool knows, by its machine's clock.
    Everything else needs the ports of the place, and raises BackendUnavailableError.

    open_place: opens the place, and counts requests in its argument; raises BackendError while no
    server answers. why: the text of its first error. life: the client's, also once the place is
    open.
    """

    def __init__(
        self, open_place: Callable[[Requests], Embedded], why: str, life: Lifecycle | None = None
    ) -> None:
        self.life: Lifecycle = life or Lifecycle()
        self.requests: Requests = Requests()
        self._open_place = open_place
        self._why = why
        self._mutex = threading.Lock()
        self._place: Embedded | None = None
        self._closed = False

    def open(self) -> Embedded:
        """Open the place, if it is not open. Raises BackendError while no server answers."""
        with self._mutex:
            if self._place is None:
                if self._closed:
                    self.opened()
                place = self._open_place(self.requests)
                self._place = place._replace(ports=place.ports._replace(life=self.life))
            return self._place

    def opened(self) -> NoReturn:
        """Raise BackendUnavailableError: the call needs a server."""
        raise BackendUnavailableError(self._why, hint="cassq keeps retrying")

    def doorbell(self, _queue_id: str) -> Doorbell:
        """A doorbell that does not need a server."""
        return PollingDoorbell()

    def abandon(self) -> object:
        """What a forked child must keep, untouched."""
        return None if self._place is None else self._place.abandon()

    def close(self) -> None:
        """Close the place, if it is open. It cannot be opened again."""
        with self._mutex:
            self._closed = True
            if self._place is not None:
                self._place.close()
        self.life.closed = True


class Online:
    """The parts of a client that need its ports."""

    def __init__(self, ports: Ports, append_to: AppendTo, push_to: PushTo) -> None:
        self.ports: Ports = ports
        self.presence: Presence = Presence(ports)
        self.dead_letters: DeadLetters = DeadLetters(ports, append_to)
        self.reaper: Reaper = Reaper(ports, self.dead_letters.add, push_to)

    def opened(self) -> Online:
        return self


class Runtime:
    """The parts that one client's queues, pushers and poppers share. Thread-safe.

    place: already open, or opened by `reach` as soon as a server answers. overflow: if given, takes
    pushes to ap queues while no quorum answers. append_to: pushes dead letters. push_to: pushes the
    messages of schedules.
    """

    def __init__(
        self,
        place: Embedded | Offline,
        clock: Clock,
        overflow: Overflow | None,
        append_to: AppendTo,
        push_to: PushTo,
    ) -> None:
        self.clock: Clock = clock
        self.life: Lifecycle = place.life
        self.overflow: Overflow | None = overflow
        self.open: dict[Openable, WatchedQueue] = {}
        self.closing: bool = False  # whether opening pushers and poppers is refused
        self.tallies: Tallies = Tallies()
        self.notebook: Notebook = Notebook(clock)
        self.housekeeper: Housekeeper = Housekeeper(clock)
        # Has a task called within this many seconds.
        self.run_within: Callable[[Maintain, float], None] = self.housekeeper.run_within
        # Separate: the housekeeper's tasks may block for long, and would delay new settings.
        self.settings: Housekeeper = Housekeeper(clock, "settings")
        self._place = place
        self._append_to = append_to
        self._push_to = push_to
        self._state: Online | Offline = (
            place if isinstance(place, Offline) else Online(place.ports, append_to, push_to)
        )
        self._doorbells: dict[str, Doorbell] = {}

    # --- the place ------------------------------------------------------------------------------

    def reach(self) -> Ports:
        """The ports, opened if needed: for the spool's thread, which keeps retrying.

        Raises BackendError while no server answers.
        """
        if isinstance(self._state, Offline):
            self._state = Online(self._state.open().ports, self._append_to, self._push_to)
        return self._state.ports

    def online(self) -> Online:
        """The parts that need a server; BackendUnavailableError while none has answered yet."""
        return self._state.opened()

    @property
    def ports(self) -> Ports:
        """The backends; BackendUnavailableError while no server has answered yet."""
        return self._state.opened().ports

    @property
    def requests(self) -> Requests | None:
        """Outcomes of requests to servers, including those that opened the place."""
        return self._place.requests

    def appends_side_by_side(self) -> bool:
        """Whether a call may append to several pipes at the same time, in threads of its own: where
        appends wait for servers. A disk syncs one file after another."""
        return not isinstance(self._state, Offline) and self._state.ports.store.networked

    def actions(self) -> Mapping[tuple[str, str], int]:
        """Counts of the reaper's actions, by (pass, outcome)."""
        return {} if isinstance(self._state, Offline) else self._state.reaper.counts()

    def dead_letter(self, queue: QueueRow, group: GroupRow, claim: Claim) -> bool:
        """Make a dead letter of a spent message: see `DeadLetterFn`."""
        return self._state.opened().dead_letters.add(queue, group, claim)

    def doorbell(self, queue_id: str) -> Doorbell:
        """The doorbell of a queue."""
        bell = self._doorbells.get(queue_id)
        if bell is None:
            opened = self._place.doorbell(queue_id)
            bell = self._doorbells.setdefault(queue_id, opened)
            if bell is not opened:  # another thread was quicker
                opened.close()
        return bell

    # --- in the background ----------------------------------------------------------------------

    def call_soon(self, maintain: Maintain) -> None:
        """Have the housekeeper call `maintain` now. Takes no lock: safe in a signal handler."""
        self.housekeeper.call_soon(maintain)

    def add_maintenance(self, maintain: Maintain, first: float) -> None:
        """Have the housekeeper call `maintain`, the first time in `first` seconds."""
        self.housekeeper.add(self.reap_in_passing, REAP_SECONDS)
        self.housekeeper.add(maintain, first)

    def keep_fresh(self, refresh: Maintain, first: float) -> None:
        """Have `refresh` read settings again, the first time in `first` seconds."""
        self.settings.add(refresh, first)

    def attend(self, group: Callable[[], GroupRow], tally: Tally) -> None:
        """Record, now and later, that a popper of this group is present."""
        presence = self._state.opened().presence
        presence.add(group, tally)
        self.add_maintenance(presence.maintain, LOOK_SECONDS)

    def reap_in_passing(self) -> float:
        """Run every pass, unless another client does. The longer they take, the later the next
        run. Returns the seconds until then."""
        if not self.open:
            return REAP_SECONDS
        online, clock = self._state.opened(), self.clock
        leases, owner = online.ports.catalog.leases, online.ports.ids.client
        if leases.take(PASSING_LEASE, owner, LEASE_MS) is None:
            return REAP_SECONDS
        began_ms = kept_ms = clock.boot_ms()

        def keeps_lease() -> bool:
            nonlocal kept_ms
            now_ms = clock.boot_ms()
            if now_ms - kept_ms < LEASE_MS / 5:
                return True
            kept_ms = now_ms
            return leases.take(PASSING_LEASE, owner, LEASE_MS) is not None

        online.reaper.reap(goes_on=keeps_lease)
        took = (clock.boot_ms() - began_ms) / 1000
        rest = min(max(REAP_SECONDS, REAP_REST * took), REAP_REST_SECONDS_MAX)
        leases.take(PASSING_LEASE, owner, round(rest * 1000))
        return rest

    def _note(self) -> float:
        return self.notebook.maintain(self.ports)

    # --- what is open ---------------------------------------------------------------------------

    def opened(self, thing: Openable, queue: WatchedQueue) -> None:
        """Remember a pusher or popper to close it later. If the client is being closed, close it
        now and raise ClosedError, unless it pushes dead letters: closing poppers may need it."""
        if self.closing and not is_dead_letter_name(queue.name):
            thing.close_inside()
            raise ClosedError("this client is being closed")
        for old in [old for old in list(self.open) if old.closed]:  # other threads open some, too
            owner = self.open.pop(old, None)
            self.housekeeper.remove(old.maintain)
            if owner is not None and owner not in self.open.values():
                self.settings.remove(owner.refresh)
        self.tallies.add(queue.name, thing.tally)
        self.notebook.add(queue.id, thing.tally)
        self.add_maintenance(self._note, NOTE_SECONDS)
        self.open[thing] = queue
        self.keep_fresh(queue.refresh, REFRESH_SECONDS)

    def changed(self, row: QueueRow | GroupRow) -> None:
        """Apply settings that this client changed to its own pushers and poppers."""
        for queue in set(self.open.values()):
            queue.use(row)

    def forget(self, names: Iterable[str]) -> set[WatchedQueue]:
        """Stop maintaining these queues' pushers and poppers, and do not close them later. Returns
        the watched queues of those that were open."""
        forgotten: set[WatchedQueue] = set()
        for name in names:
            for thing, queue in list(self.open.items()):
                if queue.name == name:
                    self.open.pop(thing)
                    self.housekeeper.remove(thing.maintain)
                    forgotten.add(queue)
        return forgotten

    def close_place(self) -> None:
        """Close the doorbells and the place, once nothing else is open."""
        for bell in self._doorbells.values():
            bell.close()
        self._place.close()

    def abandon(self) -> object:
        """In a forked child: refuse every call. Returns what the child must keep but not touch,
        because it belongs to the parent."""
        self.life.forked = True
        return self._place.abandon()
