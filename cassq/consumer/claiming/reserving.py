"""Reserving: a popper that takes one message after another claims the next one before it is pushed.

So a message that is pushed, popped and committed in turn costs one conditional write instead of
two: the commit of one message also reserves the next (`claims.reservation`). A popper reserves only
while it soon comes back for more, nothing else waits, and no other popper takes from the pipe. It
gives a reservation back if it does not use it soon.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from cassq.consumer.claiming.candidates import CandidatePipes
from cassq.consumer.delivery import TURN_MS, Acknowledger, Delivery, Reserved
from cassq.errors import CassqError
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.queues import Rules
from cassq.model.rows import Claim, ClaimState, Cursor

logger: logging.Logger = logging.getLogger("cassq")

UNUSED_MS = 1_000  # how long it reserves nothing after a reservation was not used
ALONE_MS = 10_000  # how long it reserves nothing after another popper took from the pipe
# A reservation expires after this time, or the claim timeout if that is shorter: if its message is
# handed out, the popper soon extends it.
DUE_MS = 10_000
TIMEOUT_MS_MIN = 4 * TURN_MS  # with a shorter claim timeout it might expire before it is given back
NEVER = 3600.0


class Reserving:
    """The reservation of one popper of a group, at most one at a time.

    name: of the popper. new_holder: returns the holder of a new claim. extends: whether its popper
    extends its claims; None: it reserves nothing. off: nothing is reserved any more. held: the
    claim that is reserved but not handed out yet; None if there is none, or none is known to be
    stored.
    """

    def __init__(
        self,
        ports: Ports,
        name: str,
        window: CandidatePipes,
        new_holder: Callable[[], str],
        rules: Callable[[], Rules],
        *,
        extends: bool | None,
    ) -> None:
        self._catalog, self._version = ports.catalog, ports.ids.version
        self._name = name
        self._in_hand: dict[str, Delivery] = {}  # what was handed out last, by pipe
        self._window, self._new_holder, self._rules = window, new_holder, rules
        self._due_ms = DUE_MS if extends else inf
        self.off: bool = extends is None or not ports.catalog.claims.reserves
        self.held: Claim | None = None
        self._cursor: Cursor | None = None  # as stored with it, without its owner
        self._made_ms = 0
        self._claimed_ms = -TURN_MS  # when this popper last claimed
        self._quick = False  # whether its claim before that was at most `TURN_MS` earlier
        self._alone_ms = 0  # until then it reserves nothing

    # --- making -----------------------------------------------------------------------------------

    def next_of(self, cursor: Cursor, chain: Place, priority: int) -> Claim | None:
        """The claim that reserves the message at `chain`, where the chain is about to end; None
        unless this popper seems to come for it soon. cursor: the one before that move."""
        if self.off or not self._quick or (self.held is not None and self.of(cursor) is None):
            return None
        now_ms = self._catalog.now_ms()
        if now_ms - self._claimed_ms > TURN_MS or now_ms < self._alone_ms:
            return None
        timeout_ms = self._rules().claim_timeout_ms
        if timeout_ms < TIMEOUT_MS_MIN:
            return None
        due_ms = now_ms + int(min(timeout_ms, self._due_ms))
        return claims.reservation(
            cursor, chain, self._new_holder(), due_ms, self._version, priority
        )

    def written(self, cursor: Cursor, chain: Place, claim: Claim | None) -> Cursor:
        """Note that the chain was moved from `cursor` to `chain`. claim: the reservation made with
        it. Returns the cursor as it is stored now, without its owner."""
        if self.of(cursor) is not None:
            self._forget()  # the reserved message was claimed by other means
        after = replace(cursor, chain=chain)
        if claim is not None:
            after = replace(after, epoch=cursor.epoch + 1, owner="")
            self.held, self._cursor, self._made_ms = claim, after, self._catalog.now_ms()
        return after

    def claimed(self) -> None:
        """Note that the popper got new messages."""
        if not self.off:
            now_ms = self._catalog.now_ms()
            self._quick = now_ms - self._claimed_ms <= TURN_MS
            self._claimed_ms = now_ms

    def met_another(self) -> None:
        """Note that another popper takes from the same pipe."""
        if not self.off:
            self._alone_ms = self._catalog.now_ms() + ALONE_MS

    # --- using ------------------------------------------------------------------------------------

    def of(self, cursor: Cursor) -> Claim | None:
        """The claim that is reserved at the end of this cursor's chain, if it is this popper's."""
        known = self._cursor
        if known is None or known.pipe_id != cursor.pipe_id:
            return None
        same = (cursor.chain.seq, cursor.epoch) == (known.chain.seq, known.epoch)
        return self.held if same else None

    def is_ours(self, cursor: Cursor) -> bool:
        """Whether the message at the end of this cursor's chain is reserved for this popper and not
        in hand. True also for a reservation whose write got no answer, so that `held` is not
        set."""
        if self.off or not cursor.owner:
            return False
        found = claims.reserved(cursor)
        if found is None or claims.consumer_of(found.holder) != self._name:
            return False
        delivery = self._reserved_in(cursor.pipe_id)
        return delivery is None or delivery.holder != found.holder

    def use(self, cursor: Cursor, chain: Place, acknowledger: Acknowledger) -> Delivery | None:
        """Hand out what is reserved at the end of this cursor's chain. None unless it ends at
        `chain` and does not expire soon."""
        mine = self.of(cursor)
        if mine is None or mine.end != chain.seq:
            return None
        if 2 * self._catalog.now_ms() > self._made_ms + mine.due_ms:
            return None  # it may expire before its consumer is done
        delivery = Delivery(acknowledger, [mine], self._made_ms, None, None)
        delivery.reserved = Reserved(replace(cursor, owner=""), chain)
        self._in_hand[mine.pipe_id] = delivery
        self._forget()
        return delivery

    def _reserved_in(self, pipe_id: str) -> Delivery | None:
        """What is in hand of a pipe, if its claim is still a reservation."""
        delivery = self._in_hand.get(pipe_id)
        return delivery if delivery is not None and delivery.reserved is not None else None

    def advance(
        self, cursor: Cursor, chain: Place, rows: Sequence[Claim], reserve: Claim | None, *,
        synced: bool,
    ) -> Cursor | None:  # fmt: skip
        """`Claims.claim`; also writes the row of the message just before, if that is in hand but
        only reserved. Returns the cursor as it is stored then, without its owner; None if the write
        was refused."""
        stored, delivery = cursor, self._reserved_in(cursor.pipe_id)
        just_before = delivery is not None and delivery.reserved
        if delivery and just_before and just_before.chain.seq == cursor.chain.seq:
            stored, rows = just_before.cursor, [*delivery.rows, *rows]
        if not self._catalog.claims.claim(stored, chain, rows, synced=synced, reserve=reserve):
            if stored is not cursor:
                del self._in_hand[cursor.pipe_id]
            self.met_another()
            return None
        if delivery and stored is not cursor:
            delivery.reserved = None
        return self.written(cursor, chain, reserve)

    def _forget(self) -> None:
        self.held = self._cursor = None

    def replace(self, delivery: Delivery, rows: Sequence[Claim]) -> bool:
        """Write rows for a message that was handed out under a reservation. False if another popper
        has turned the reservation into a row, or taken the message. Durable. If the message is
        done, the same write may reserve the next one."""
        assert delivery.reserved is not None
        cursor, chain = delivery.reserved
        view = self._window.view(delivery.pipe_id)
        done = all(row.state is ClaimState.DONE for row in rows)
        # Nothing else waits, and more may come.
        last = view is not None and view.row.end is None and view.end_seq <= chain.seq
        reserve = self.next_of(cursor, chain, delivery.priority) if done and last else None
        written = self._catalog.claims.claim(cursor, chain, rows, synced=True, reserve=reserve)
        self._in_hand.pop(delivery.pipe_id, None)
        if not written:
            self.met_another()
            return False
        after = self.written(cursor, chain, reserve)
        if view is not None and view.cursor is not None and view.cursor.chain == chain:
            view.cursor = after
        return True

    # --- giving back ------------------------------------------------------------------------------

    def maintain(self, *, leave: bool) -> float:
        """Give a reservation back if it was not used in time. Returns the seconds until the next
        time. leave: give it back in any case, and reserve nothing more."""
        now_ms = self._catalog.now_ms()
        self.off |= leave
        if self.held is not None:
            left_ms = self._made_ms + TURN_MS - now_ms
            if left_ms > 0 and not leave:
                return left_ms / 1000
            self.give_back()
            self._alone_ms = max(self._alone_ms, now_ms + UNUSED_MS)
        return TURN_MS / 1000 if now_ms - self._claimed_ms <= 2 * TURN_MS else NEVER

    def give_back(self) -> None:
        """Give the reservation back to other poppers, uncounted. If that fails, they get the
        message once the reservation expires. Cost: one conditional write, if anything is
        reserved."""
        mine, cursor = self.held, self._cursor
        if mine is None or cursor is None:
            return
        self._forget()
        self._quick = False
        try:
            after = self._catalog.claims.fence(cursor, "")
            if after is None or after.chain.seq != cursor.chain.seq:
                self._free(mine)
            view = self._window.view(mine.pipe_id)
            if view is not None:
                view.cursor = None  # read it again
        except CassqError as exc:
            logger.info("a reservation in pipe %s stays until it expires: %s", mine.pipe_id, exc)

    def _free(self, mine: Claim) -> None:
        """Give back the row into which another popper has turned the reservation."""
        self.met_another()
        seqs = range(mine.start, mine.end)
        for row in self._catalog.claims.rows(mine.group_id, mine.pipe_id, seqs):
            if row.version == mine.version:
                back = ReturnedSeqs(row.left, 0, row.deliveries - 1)
                free = claims.resolved(row, EMPTY, [back], self._version)
                self._catalog.claims.replace(row, free)
