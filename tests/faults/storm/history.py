"""The history of a storm: what the journals of all clients say, put together.

Times are nanoseconds of the clock that all journals share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.faults.storm.journal import TICK, Line, Story, tick_key

NEVER = 1 << 62
# What may end a message for a group.
ENDING = frozenset({"commit", "dead"})


@dataclass(slots=True)
class Sent:
    """A message that somebody tried to push. op: of its push; index: its place in that. pusher:
    which one of its process's made the push, one after the other.

    fate: "acknowledged", "refused" (the pusher was told that it is not there), or "unknown".
    is_tick: a schedule pushed it; see `_add_ticks` for its times.
    """

    key: str
    queue: str
    op: tuple[str, int]
    index: int
    begun_ns: int
    pusher: tuple[str, int] = ("", 0)
    done_ns: int = NEVER
    fate: str = "unknown"
    id: str = ""

    @property
    def is_tick(self) -> bool:
        return self.key.startswith(TICK)


@dataclass(slots=True)
class Delivery:
    """What one pop returned. items: (key, (pipe, seq), attempts, id) in their order. priorities:
    by key."""

    popper: str
    batch: int
    called_ns: int
    returned_ns: int
    items: list[tuple[str, tuple[str, int], int, str]]
    priorities: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Settling:
    """A commit, rollback, ... of messages. result: "ok", "lost", or "unknown"."""

    popper: str
    batch: int
    how: str
    keys: list[str]
    begun_ns: int
    done_ns: int = NEVER
    result: str = "unknown"


@dataclass(slots=True)
class Seen:
    """What one group of one queue saw."""

    queue: str
    group: str
    deliveries: list[Delivery] = field(default_factory=list)
    settlings: list[Settling] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.queue}/{self.group}"


@dataclass(frozen=True, slots=True)
class Limit:
    """What all poppers of a group together may do: have so many messages in hand at once
    (`concurrency`), and get so many (`rate`) in less than `window_ns`. claim_ns: for how long what
    a pop returned is certainly claimed, since the pop was called, whatever becomes of its process.

    If clients may be wrong about the time, both are shorter than what was promised.
    """

    concurrency: int
    rate: int
    window_ns: int
    claim_ns: int


@dataclass(slots=True)
class Ticking:
    """A schedule of a queue at the end. ticks: wall milliseconds of those that it says were pushed,
    in their order. next_ms: of the next one, at now_ms. pushing: a push was begun and not
    finished."""

    schedule: str
    queue: str
    ticks: range
    next_ms: int
    now_ms: int
    pushing: bool


@dataclass(slots=True)
class Ledger:
    """An audit at the end. groups: name → waiting, pending, committed, dead, pushed."""

    groups: dict[str, list[int]]
    pushed: int
    findings: list[str]


@dataclass(slots=True)
class History:
    """All of it. strict: the queues that keep one order. keyed: the groups, of any queue, that keep
    the order of keys. schedules: all that there are. limits: of groups, by queue and group. ended:
    whether the journals tell of a drained end.

    pushes: (queue, seconds it took, when it was acknowledged, messages) of each acknowledged push.
    """

    strict: frozenset[str]
    keyed: frozenset[str] = frozenset()
    schedules: frozenset[str] = frozenset()
    limits: Mapping[tuple[str, str], Limit] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    ticking: list[Ticking] = field(default_factory=list)
    pushes: list[tuple[str, float, int, int]] = field(default_factory=list)
    troubles: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    jumps: int = 0
    ended: bool = False

    def view(self, queue: str, group: str) -> Seen:
        return self.seen.setdefault((queue, group), Seen(queue, group))


def history_of(
    stories: Iterable[Story],
    strict: Iterable[str],
    groups: dict[str, list[str]],
    keyed: Iterable[str] = (),
    schedules: Iterable[str] = (),
    limits: Mapping[tuple[str, str], Limit] | None = None,
) -> History:
    """strict: the queues that keep the order. groups: of each queue, all that there are. keyed:
    those that keep the order of keys. schedules: all that there are. limits: see `History`."""
    history = History(frozenset(strict), frozenset(keyed), frozenset(schedules), limits or {})
    for queue, names in groups.items():
        for name in names:
            history.view(queue, name)
    for story in stories:
        match story.role:
            case "pusher":
                _add_pushes(history, story)
            case "popper":
                _add_deliveries(history, story)
            case "drainer":
                _add_end(history, story)
        for line in story.of("trouble"):
            where, error = line.about
            history.troubles[f"{where}: {error.partition(':')[0]}"] += 1
        history.jumps += sum(1 for line in story.of("jumped") if line.about[0])
    return history


def _add_pushes(history: History, story: Story) -> None:
    begun: dict[int, Line] = {}
    pushers = 0
    for line in story.of("opened", "push", "pushed", "failed"):
        if line.word == "opened":
            pushers += 1
            continue
        op = line.about[0]
        if line.word == "push":
            begun[op] = line
            for index, key in enumerate(line.about[1]):
                sent = Sent(key, story.queue, (story.name, op), index, line.at_ns)
                sent.pusher = story.name, pushers
                history.sent[key] = sent
            continue
        keys = begun[op].about[1]
        if line.word == "pushed":
            ids, how = line.about[1], ""
            took = (line.at_ns - begun[op].at_ns) / 1e9
            history.pushes.append((story.queue, took, line.at_ns, len(keys)))
        else:
            how, ids = line.about[1], [""] * line.about[2]
            history.troubles[f"push: {line.about[3].partition(':')[0]}"] += 1
        for index, key in enumerate(keys):
            sent = history.sent[key]
            sent.done_ns = line.at_ns
            sent.fate = "acknowledged" if index < len(ids) else how
            sent.id = ids[index] if index < len(ids) else ""


def _add_deliveries(history: History, story: Story) -> None:
    seen = history.view(story.queue, story.group)
    open_: dict[tuple[int, str], Settling] = {}
    for line in story.of("got", "settle", "settled"):
        match line.word, line.about:
            case "got", (batch, called_ns, items):
                found = [(key, (pipe, seq), tries, id) for key, pipe, seq, tries, id, _ in items]
                levels = {key: priority for key, *_, priority in items}
                seen.deliveries.append(
                    Delivery(story.name, batch, called_ns, line.at_ns, found, levels)
                )
            case "settle", (batch, how, keys):
                settling = Settling(story.name, batch, how, keys, line.at_ns)
                open_[batch, how] = settling
                seen.settlings.append(settling)
            case "settled", (batch, how, keys, result):
                settling = open_.get((batch, how))
                if settling is None or settling.keys != keys:
                    raise ValueError(f"{story.name}: {line} has no beginning")
                settling.done_ns, settling.result = line.at_ns, result


def _add_end(history: History, story: Story) -> None:
    for line in story.of("dead", "audit", "schedule"):
        match line.word, line.about:
            case "dead", (queue, group, keys):
                history.view(queue, group).dead += keys
            case "audit", (queue, groups, pushed, findings):
                history.ledgers[queue] = Ledger(groups, pushed, findings)
            case "schedule", (name, queue, created_ms, every_ms, next_ms, *rest):
                ticks = range(created_ms + every_ms, next_ms, every_ms)
                history.ticking.append(Ticking(name, queue, ticks, next_ms, *rest))
                _add_ticks(history, history.ticking[-1])
    history.ended |= any(True for _ in story.of("end"))


def _add_ticks(history: History, ticking: Ticking) -> None:
    """What a schedule pushed, as if one pusher had. Nobody wrote down when: their order alone is
    known, so their times are 0, 1, ..., and have nothing to do with those of other pushes."""
    for place, tick_ms in enumerate(ticking.ticks):
        key = tick_key(ticking.schedule, tick_ms)
        sent = Sent(key, ticking.queue, (ticking.schedule, place), 0, place)
        sent.pusher = ticking.schedule, 0
        sent.done_ns, sent.fate = place, "acknowledged"
        history.sent[key] = sent
