"""Which keys of a keyed group are held up, by what, and how much waits behind. Writes nothing."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from cassq.errors import UsageError
from cassq.inspect.peeking import READ_MESSAGES, PeekedMessages, moment, to_wall, walk
from cassq.lifecycle.dead_keys import HoldingLetter, held_by_letters
from cassq.lifecycle.ports import Ports
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.claims import consumer_of, in_hand, is_moving
from cassq.model.ledger import UNFINISHED, Fate
from cassq.model.rows import Claim, ClaimState, GroupRow

FAILED, IN_HAND, DEAD = "failed", "in hand", "dead"

_LEFT = attrgetter("left")


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A key whose next messages wait for one of it.

    state: "failed", to be delivered again at `due_at`, or "in hand" of `holder`, until `due_at` at
    least; or "dead": a dead letter, which holds it until that is gone or the key is released, and
    `due_at` is None. error: of its last failure. behind: how many messages of the key wait, of
    those that a popper has claimed ahead. place: where the message is, which has the id of its
    first place.
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
    """The keys that a dead letter holds, those that a failed message holds up, and those of which
    one is in hand and others wait;
    those with most messages behind come first. Cost: reads the claimed messages of the group, and
    its dead letters if they hold keys.

    Raises UsageError for a group that is not keyed.
    """
    if not group.policy.keyed:
        raise UsageError(
            f"the messages of group {group.name} do not wait for others of their key",
            hint="this is for groups with order, limit_per_key, rate_per_key or fair",
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
    """What a dead letter holds; `behind` is not counted."""
    about = (letter.key, letter.id, DEAD, letter.deliveries, None)
    return HeldKey(*about, error=letter.error, place=letter.place)


def delivered_of(ports: Ports, group: GroupRow, key: bytes, most: int) -> list[HeldKey]:
    """At most `most` messages of a key that a consumer has, and in a group in the order of keys the
    one that failed and is not settled; `behind` is not counted. Cost: reads the messages of the
    group that were delivered, until these are found."""
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
    """What the message says of its key, if it was delivered."""
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
