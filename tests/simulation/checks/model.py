"""What the checker remembers: messages sent, deliveries, errands, and what each group is owed.

Times are *ticks*, which count events, unless a name ends in `_ms`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from cassq.consumer.delivery import Message
from cassq.model.queues import is_dead_letter_name

NEVER = 1 << 60
Place = tuple[str, int]


@dataclass(slots=True, eq=False)
class Errand:
    """What a clerk was asked to do. told: it was told that it is done.

    groups: ids of those whose messages it is about. queue: or all of this queue's. place: of the
    one message that is meant. text: what the payloads have in them that are meant. held: what
    poppers hold is meant, too.
    """

    kind: str  # "merge", "purge" or "cancel"
    groups: frozenset[str]
    queue: str = ""
    place: Place | None = None
    text: bytes = b""
    held: bool = False
    confirmed: bool = False


@dataclass(slots=True, eq=False)
class Fact:
    """What became of a message at a place for a group, other than that it was committed.

    kind: "dead", "merged", "purged" or "expired". dest: where it went. at_ms: catalog time.
    """

    kind: str
    tick: int
    at_ms: int
    wall_ms: int
    errand: Errand | None = None
    dest: Place | None = None


@dataclass(slots=True, eq=False)
class Sent:
    """A message as its pusher knows it."""

    payload: bytes
    queue: str
    begun: int
    headers: dict[str, str]
    key: bytes | None
    wall_ms: int
    since_ms: int = 0  # catalog time when its push, or the first of its tries, began
    acked: int = NEVER  # when its push returned ...
    acked_ms: int = 0  # ... in boot time
    spilled: bool = False  # a push of it returned that had put it into a spool
    refused: bool = False  # its push failed, and said that it is not in the queue
    troubled: bool = False  # a fault was met in its push
    stamped: bool = False  # wall_ms is its push time, and no lower bound of it any more
    due_ms: int = 0  # catalog time before which it must not be delivered
    reached_ms: int = 0  # the catalog time at the last power cut after it was pushed
    id: str = ""
    places: set[Place] = field(default_factory=set)
    dedup_id: str = ""
    delay: float | None = None
    tries: int = 0  # of pushes under a dedup id
    walls_ms: list[int] = field(default_factory=list)  # wall_ms of each try
    pusher: object = None
    priority: int = 0


@dataclass(slots=True, eq=False)
class Delivery:
    """One message handed to one popper. Times are ticks, those in `_ms` boot times."""

    message: Message
    place: Place
    sent: Sent
    group: GroupView
    popper: object
    claimed: int
    claimed_ms: int
    came_ms: int
    due_ms: int
    commit: int
    attempts: int
    batch: int
    given: int = NEVER  # when it began to be given back
    released: bool = False
    settling: int = NEVER  # when its ack began
    settled: int = NEVER  # when its commit returned
    dated: bool = False  # has a deadline of its own, perhaps


@dataclass(slots=True, eq=False)
class GroupView:
    """What a group is owed, and what it got. keyed: it matters which messages have the same key;
    ordered: these come one after another. limit_per_key: how many of a key may be in hand; 0: any
    number. interval_ms: the least time between two of a key."""

    id: str
    name: str
    queue: str
    strict: bool
    exclusive: bool
    keyed: bool
    ordered: bool
    limit_per_key: int
    interval_ms: int
    queue_id: str
    start: str
    begun: int  # when its creation began ...
    created: int  # ... and when it was there
    since_ms: int
    gone: frozenset[str]  # pipes retired before
    alive: bool = True
    deliveries: dict[Place, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    settling: dict[Place, int] = field(default_factory=dict)
    settled: dict[Place, int] = field(default_factory=dict)
    firsts: dict[tuple[object, str], int] = field(default_factory=dict)
    # By pipe and seq, the popper that a message came to first.
    came_to: defaultdict[str, dict[int, object]] = field(default_factory=lambda: defaultdict(dict))
    forgotten: dict[Place, int] = field(default_factory=lambda: defaultdict(int))
    frontier: int = 0
    came_ms: list[int] = field(default_factory=list)  # when each delivery was handed out: boot time
    # By popper, how many claims in a row were of greater priorities than the least that waited; and
    # the holders of its claims.
    passed: dict[object, int] = field(default_factory=lambda: defaultdict(int))
    holders: set[str] = field(default_factory=set)
    # By key, the last delivery, and when a commit of one returned last: boot time.
    last_of: dict[bytes, Delivery] = field(default_factory=dict)
    freed_ms: dict[bytes, int] = field(default_factory=dict)
    # Boot times: since when somebody has claims of it, and since when, before that, nobody had.
    held_ms: int | None = None
    quiet_ms: int = 0

    @property
    def is_letters(self) -> bool:
        """Whether its queue holds dead letters."""
        return is_dead_letter_name(self.queue)

    def is_owed(self, sent: Sent, place: Place) -> bool:
        """Whether this message must reach the group."""
        if place[0] in self.gone:
            return False
        if self.start == "now":
            return sent.begun > self.created
        if self.start == "time":
            return min([sent.wall_ms, *sent.walls_ms]) >= self.since_ms
        return True


def place_of(id: str) -> Place:
    """The place a message's id names."""
    pipe_id, _, seq = id.rpartition(":")
    return pipe_id, int(seq)
