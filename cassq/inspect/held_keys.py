"""Which keys of a keyed group are held up, by what, for how long, and how much waits behind.

A row does not say since when a message is in hand. So every five minutes, with the samples of the
history, a note is written: which messages are in hand, and since when each was seen there. A
message that is still in hand for the same delivery has been there at least that long. Nothing else
is written here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any

from cassq.catalog.port import Catalog
from cassq.errors import UsageError
from cassq.inspect.peeking import READ_MESSAGES, PeekedMessages, moment, to_wall, walk
from cassq.lifecycle.dead_keys import HoldingLetter, held_by_letters
from cassq.lifecycle.ports import Ports
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.claims import consumer_of, first_failure_ms, in_hand, is_moving
from cassq.model.ledger import UNFINISHED, Fate
from cassq.model.queues import GroupPolicy
from cassq.model.rows import NOTED_MS, Claim, ClaimState, GroupRow, Sample

FAILED, IN_HAND, DEAD = "failed", "in hand", "dead"
# How many messages in hand a note has at most: those that were seen first.
NOTED_MAX = 1000
PIPES_AT_ONCE = 64  # of how many pipes the claims are read at once
# How many stuck messages, and how many claimed ones, are read at most to find the key that the most
# messages wait behind.
STUCK_READ_MAX = 1000
BEHIND_READ_MAX = 10_000

_LEFT = attrgetter("left")


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key whose later messages wait for one of its messages, and that message.

    state: "failed": it is delivered again at `due_at`; "in hand": `holder` has it until at least
    `due_at`; "dead": it is a dead letter, and holds the key until it is gone or the key is
    released; `due_at` is None. error: that of its last failure. behind: how many messages of the
    key wait, among those that a popper has claimed ahead. place: where the message is now; its id
    names its first place.
    """

    key: bytes
    message_id: str
    state: str
    attempts: int
    due_at: datetime | None
    holder: str = ""
    error: str = ""
    behind: int = 0
    place: tuple[str, int] = ("", 0)

    def as_dict(self) -> dict[str, Any]:
        """As JSON shows it: the key as text, times in ISO form."""
        shown = self.key.decode("utf-8", "backslashreplace")
        due_at = None if self.due_at is None else self.due_at.isoformat()
        fields = {**asdict(self), "key": shown, "due_at": due_at}
        del fields["place"]
        return fields


def held_keys(ports: Ports, queue: str, group: GroupRow, limit: int) -> list[HeldKey]:
    """The keys that are held by a dead letter, or by a failed message, or by one in hand while
    others wait; the key that the most messages wait behind comes first. Cost: reads the claimed
    messages of the group, and its dead letters if they hold keys.

    Raises UsageError for a group that is not keyed.
    """
    if not group.policy.keyed:
        raise UsageError(
            f"the messages of group {group.name} do not wait for others of their key",
            hint="only groups with order, limit_per_key, rate_per_key or fair can have held keys",
        )
    now_ms = ports.catalog.now_ms()
    to_wall_ms = to_wall(ports, now_ms)
    dead = held_by_letters(ports, queue, group)
    found = {key: held_by_letter(letter) for key, (letter, *_) in dead.items()}
    behind: Counter[bytes] = Counter()
    with closing(walk(ports, group, now_ms, UNFINISHED, READ_MESSAGES, claimed=_LEFT)) as seen:
        for part in seen:
            for index in range(part.first, part.last):
                key = part.frame.key_at(index)
                if key is None:
                    continue
                held = None if key in dead else _held(part, index, key, to_wall_ms)
                if held is None or key in found:
                    behind[key] += 1
                else:
                    found[key] = held
    keys = [replace(held, behind=behind[key]) for key, held in found.items()]
    keys = [held for held in keys if held.state != IN_HAND or held.behind]
    keys.sort(key=lambda held: (-held.behind, held.message_id))
    return keys[:limit]


def held_by_letter(letter: HoldingLetter) -> HeldKey:
    """The key that a dead letter holds; `behind` is not counted."""
    about = (letter.key, letter.id, DEAD, letter.deliveries, None)
    return HeldKey(*about, error=letter.error, place=letter.place)


def delivered_of(ports: Ports, group: GroupRow, key: bytes, most: int) -> list[HeldKey]:
    """At most `most` messages of a key that consumers have; in a group in the order of keys also
    the one that failed and is not settled. `behind` is not counted. Cost: reads the delivered,
    unsettled messages of the group until these are found."""
    now_ms = ports.catalog.now_ms()
    to_wall_ms, found = to_wall(ports, now_ms), list[HeldKey]()
    states = UNFINISHED if group.policy.order == "key" else (Fate.PENDING,)
    with closing(walk(ports, group, now_ms, states, READ_MESSAGES, claimed=delivered)) as seen:
        for part in seen:
            for index in range(part.first, part.last):
                if part.frame.key_at(index) == key:
                    held = _held(part, index, key, to_wall_ms)
                    found += [] if held is None else [held]
                    if len(found) >= most:
                        return found
    return found


def delivered(row: Claim) -> RangeSet:
    """The messages of a row that were delivered, and not settled."""
    return in_hand(row) if row.state is ClaimState.HELD else row.left if row.deliveries else EMPTY


def _held(part: PeekedMessages, index: int, key: bytes, to_wall_ms: int) -> HeldKey | None:
    """The message as the one that holds its key; None if it was not delivered."""
    row, seq = part.part.row, part.frame.base_seq + index
    if row is None or not row.deliveries or is_moving(row):
        return None
    if row.state is ClaimState.FREE:
        state, holder = FAILED, ""
    elif row.tried is None or seq in row.tried:
        state, holder = IN_HAND, consumer_of(row.holder)
    else:
        return None
    failure = json.loads(row.failure) if row.failure else {}
    return HeldKey(
        key,
        part.frame.id_at(index, part.pipe.id).decode(),
        state,
        row.deliveries,
        moment(row.due_ms, to_wall_ms),
        holder,
        failure.get("error", ""),
        place=(part.pipe.id, seq),
    )


# --- for how long ---------------------------------------------------------------------------------

# Since when messages were seen in hand, in catalog time, by (pipe, seq, deliveries).
_Since = dict[tuple[str, int, int], int]


def waits_in_hand(policy: GroupPolicy) -> bool:
    """Whether no message of a key is delivered while another of it is in hand."""
    return (policy.limit_per_key or int(policy.order == "key")) == 1


def note_of(ports: Ports, group: GroupRow, now_ms: int) -> Sample | None:
    """The note of the messages in hand; None if there are none, or a note was already made in the
    present five minutes. Cost: a read; every five minutes, the claims of the group in live pipes
    too, of `PIPES_AT_ONCE` at once."""
    catalog, at_ms = ports.catalog, now_ms - now_ms % NOTED_MS
    before = catalog.records.samples(_subject(group.id), NOTED_MS, at_ms - NOTED_MS)
    if before and before[-1].at_ms >= at_ms:
        return None
    known, found = _since(before), _Since()
    cursors = catalog.claims.cursors(group.id)
    pipe_ids = [cursor.pipe_id for cursor in cursors if cursor.ack.seq < cursor.chain.seq]
    for at in range(0, len(pipe_ids), PIPES_AT_ONCE):
        listed = catalog.claims.rows_in(group.id, pipe_ids[at : at + PIPES_AT_ONCE])
        for row in chain.from_iterable(listed):
            for seq in _in_hand_now(row, now_ms):
                place = row.pipe_id, seq, row.deliveries
                found[place] = known.get(place, now_ms)
    kept = sorted(found.items(), key=lambda each: each[1])[:NOTED_MAX]
    data = json.dumps([[*place, since_ms] for place, since_ms in kept], separators=(",", ":"))
    return Sample(_subject(group.id), NOTED_MS, at_ms, data) if kept else None


def long_in_hand(
    catalog: Catalog, group_id: str, rows: Iterable[Claim], now_ms: int, before_ms: int
) -> int:
    """How many messages of these rows have been in hand since before a time. Cost: a read if any
    are in hand."""
    hands = [row for row in rows if _in_hand_now(row, now_ms)]
    known = _noted(catalog, group_id, now_ms, before_ms) if hands else {}
    return sum(len(_kept(row, known, now_ms)) for row in hands) if known else 0


def failed_before(row: Claim, before_ms: int) -> bool:
    """Whether the messages of a row first failed before a time, and are not settled."""
    failed = row.failure and row.state is not ClaimState.DONE
    return bool(failed) and 0 < first_failure_ms(row) <= before_ms


def worst_stuck(ports: Ports, group: GroupRow, before_ms: int) -> HeldKey | None:
    """The key that the most messages wait behind, among those held by a message that first failed,
    or was in hand, before a time. None if none could be read. Cost: reads at most `STUCK_READ_MAX`
    such messages, and `BEHIND_READ_MAX` claimed ones."""
    catalog, now_ms = ports.catalog, ports.catalog.now_ms()
    found: dict[bytes, HeldKey] = {}
    known = _noted(catalog, group.id, now_ms, before_ms)

    def stuck(row: Claim) -> RangeSet:
        if group.policy.order == "key" and failed_before(row, before_ms):
            return delivered(row)
        return RangeSet.of(sorted(_kept(row, known, now_ms)))

    to_wall_ms = to_wall(ports, now_ms)
    for part, index, key in _keys(ports, group, stuck, STUCK_READ_MAX):
        held = _held(part, index, key, to_wall_ms)
        if held is not None:
            found.setdefault(key, held)
    if not found:
        return None
    claimed = _keys(ports, group, _LEFT, BEHIND_READ_MAX)
    behind = Counter(key for _, _, key in claimed if key in found)
    keys = [replace(held, behind=max(0, behind[key] - 1)) for key, held in found.items()]
    return max(keys, key=lambda held: held.behind)


def _keys(
    ports: Ports, group: GroupRow, claimed: Callable[[Claim], RangeSet], most: int
) -> Iterator[tuple[PeekedMessages, int, bytes]]:
    """The keys of at most `most` claimed messages that have one, and where they are."""
    now_ms, left = ports.catalog.now_ms(), most
    with closing(walk(ports, group, now_ms, UNFINISHED, READ_MESSAGES, claimed=claimed)) as seen:
        for part in seen:
            for index in range(part.first, min(part.last, part.first + left)):
                key = part.frame.key_at(index)
                if key is not None:
                    yield part, index, key
            left -= part.last - part.first
            if left <= 0:
                return


def _in_hand_now(row: Claim, now_ms: int) -> RangeSet:
    return in_hand(row) if row.due_ms > now_ms else EMPTY


def _noted(catalog: Catalog, group_id: str, now_ms: int, before_ms: int) -> _Since:
    """What was seen in hand before a time, if there is a note from the last ten minutes."""
    notes = catalog.records.samples(_subject(group_id), NOTED_MS, now_ms - 2 * NOTED_MS)
    return {place: since for place, since in _since(notes).items() if since <= before_ms}


def _kept(row: Claim, known: _Since, now_ms: int) -> list[int]:
    """The messages of a row that are in hand for a delivery in `known`."""
    hand = _in_hand_now(row, now_ms)
    if not hand:
        return []
    own = (row.pipe_id, row.deliveries)
    return [seq for pipe_id, seq, times in known if (pipe_id, times) == own and seq in hand]


def _since(notes: Sequence[Sample]) -> _Since:
    """What the last of these notes says."""
    last = json.loads(notes[-1].data) if notes else []
    return {(pipe_id, seq, deliveries): since for pipe_id, seq, deliveries, since in last}


def _subject(group_id: str) -> str:
    return f"hand:{group_id}"
