"""The audit: proves from the data itself that every pushed message is accounted for.

It walks every frame of every live pipe, and checks each checksum and that seqs have no gap. Then it
checks that the rows of each group give each message one fate, see `cassq.model.ledger`, and that
every dead letter is where its move says, by its id. It trusts no running total; for retired pipes
it takes the totals written once at their end. Nor does it trust the published ends of open pipes,
which may lag: what was claimed or moved was acknowledged, so its frames must be there.

Other processes may push, pop and retire meanwhile. The rows of a pipe are read before its frames,
so the frames of all claimed messages are there. The totals of retired pipes are read last, and
replace what was found in these pipes before. So no pipe counts twice, or as half retired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from cassq.catalog.cover import fault
from cassq.catalog.port import Catalog
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader, Slice
from cassq.inspect.expired_groups import ExpiredGroup, expired_groups
from cassq.inspect.stats import LEDGER, GroupStats, permits_in_use, view_of
from cassq.lifecycle.damage import excused
from cassq.lifecycle.moves import slices_of
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import known_end, live_pipe, sealed_end
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.ledger import Account, GroupView, faults, named, tally, tally_retired
from cassq.model.queues import rules_of
from cassq.model.rows import (
    SUMMED,
    ClaimState,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    PipeState,
    QueueRow,
    Retired,
    RetiredSum,
    summed,
)
from cassq.model.scaling import key_lane_of, key_lane_of_pipe
from cassq.model.schedules import GRACE_MS, ScheduleRow, due_tick_ms, iso_time, late_ms
from cassq.plurals import counted

WALK_MESSAGES = 65_536
MENDED = "`cassq reap` repairs this without loss"
FINISHED = "`cassq reap` finishes it"
FORWARD = "`cassq pipe show` shows what skipping it costs"
WALK_BYTES = 8 * 1024 * 1024
# How often rows that others keep changing are read before a fault in them is reported, and the
# first pause between two reads; each further pause is twice as long.
LOOKS_MAX = 8
PAUSE_SECONDS = 0.002


@dataclass(slots=True)
class Audit:
    """What an audit found. expired_groups: those of the last 60 days. findings: what is wrong, one
    sentence for each fault."""

    queue: str
    balanced: bool = True
    pushed: int = 0
    bytes: int = 0
    pipes: int = 0
    retired_pipes: int = 0
    groups: dict[str, GroupStats] = field(default_factory=dict)
    expired_groups: list[ExpiredGroup] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def find(self, what: str) -> None:
        self.balanced = False
        self.findings.append(what)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "expired_groups": [each.as_dict() for each in self.expired_groups]}


class Walked(NamedTuple):
    """How many messages of a pipe were read, and the bytes of the frames that begin among them.
    finding: a sentence if not all could be read, else empty. cause: the error; walks of later
    ranges meet the same one. astray: the seqs of messages whose keys belong to another key lane
    than the pipe."""

    pipe_id: str
    messages: int
    size_bytes: int
    finding: str = ""
    cause: str = ""
    astray: RangeSet = EMPTY


class Standing(NamedTuple):
    """A pipe according to its rows. end: everything acknowledged by then is below it. groups: by
    id, the accounts of the groups it is for. findings: what is wrong. astray: by the name of the
    group, findings about dead letters that are not where they should be."""

    pipe: PipeRow
    end: int
    groups: dict[str, Account]
    findings: list[str]
    astray: dict[str, list[str]]


class Examined(NamedTuple):
    """A pipe, and what was read from it."""

    standing: Standing
    messages: int
    size_bytes: int
    findings: list[str]


def audit_queue(ports: Ports, queue: QueueRow) -> Audit:
    """Audit a queue. Exact when nothing else is running. Pipes whose pusher is gone are sealed
    first. Cost: reads every live pipe once, its dead messages and their letters once more, and rows
    with faults up to LOOKS_MAX times while others change them."""
    groups = ports.catalog.queues.groups(queue.id)
    pipes = ports.catalog.pipes.live(queue.id)
    cursors = {group.id: cursors_of(ports, group) for group in groups}
    found: list[Examined] = []
    for pipe in pipes:
        stood = standing(ports, groups, cursors, pipe)
        walk = walk_through(ports, pipe.id, Place(0, 0), stood.end, queue.policy.key_lanes)
        found.append(examined(stood, [walk]))
    return added_up(ports, queue, groups, found)


# --- what the rows say ----------------------------------------------------------------------------


def cursors_of(
    ports: Ports, group: GroupRow, pipe_ids: Sequence[str] | None = None
) -> dict[str, Cursor]:
    """The cursors of a group, by pipe: in these pipes, or in all of them."""
    return {each.pipe_id: each for each in ports.catalog.claims.cursors(group.id, pipe_ids)}


def standing(
    ports: Ports,
    groups: Sequence[GroupRow],
    cursors: Mapping[str, Mapping[str, Cursor]],
    pipe: PipeRow,
) -> Standing:
    """Check the rows of a pipe. cursors: by group and pipe. Cost: for each group three ranges of
    keys, and for each dead message a frame in its old pipe and one in the new."""
    accounts: dict[str, Account] = {}
    findings: list[str] = []
    astray: dict[str, list[str]] = {}
    for group in groups:
        if pipe.is_for(group.id):
            view, wrong = _consistent(ports, group, pipe, cursors[group.id].get(pipe.id))
            accounts[group.id] = tally(view, ports.catalog.now_ms())
            findings += wrong
            moves = [move for move in view.moves if move.settled]
            astray[group.name] = misplaced(ports, pipe, moves)
    # Read after the rows, so nothing past this end can have been claimed.
    claimed = max((account.claimed for account in accounts.values()), default=0)
    try:
        end = known_end(ports.catalog, ports.store, pipe, claimed)
    except (ExtentMissingError, CorruptionError) as exc:
        end = 0
        findings.append(str(exc))
    return Standing(pipe, end, accounts, findings, astray)


def _consistent(
    ports: Ports, group: GroupRow, pipe: PipeRow, cursor: Cursor | None
) -> tuple[GroupView, list[str]]:
    """What the catalog has of a group in a pipe, and what is wrong there. The rows are not one
    snapshot: while they show a fault and others change them, they are read again, at most
    LOOKS_MAX times in all."""
    view = view_of(ports.catalog, group.id, pipe.id, cursor)
    found = _inconsistencies(group, pipe, view, ports.catalog.now_ms())
    for look in range(1, LOOKS_MAX):
        if not found:
            break
        if look > 1:
            ports.clock.sleep(PAUSE_SECONDS * 2 ** (look - 2))
        before, now = view, ports.catalog.claims.find_cursor(group.id, pipe.id)
        view = view_of(ports.catalog, group.id, pipe.id, now)
        if view == before:
            break
        found = _inconsistencies(group, pipe, view, ports.catalog.now_ms())
    return view, found


def _inconsistencies(group: GroupRow, pipe: PipeRow, view: GroupView, now_ms: int) -> list[str]:
    """What is wrong with rows: the group is wedged, a claim has another priority than its pipe, or
    a message does not have exactly one fate. Pure."""
    why = fault(view.cursor, view.rows) if view.cursor else ""
    wedged = [f"group {group.name} is wedged in pipe {pipe.id}: {why}; {MENDED}"] if why else []
    others = {
        row.priority
        for row in view.rows
        if row.state is not ClaimState.DONE and row.priority != pipe.priority
    }
    wedged += [
        f"group {group.name}: messages of pipe {pipe.id} wait with priority {priority}, but were"
        f" pushed with {pipe.priority}"
        for priority in sorted(others)
    ]
    return wedged + [f"group {group.name}, pipe {pipe.id}: {it}" for it in faults(view, now_ms)]


# --- adding up ------------------------------------------------------------------------------------


def examined(stood: Standing, walks: Sequence[Walked]) -> Examined:
    """Join the walks of a pipe that was read in parts. Of findings with the same cause, only the
    first counts."""
    causes = {walk.cause: walk.finding for walk in reversed(walks) if walk.finding}
    findings = [*stood.findings, *chain(*stood.astray.values()), *reversed(causes.values())]
    astray = RangeSet.joined([EMPTY, *(walk.astray for walk in walks)])
    if astray:
        count, pipe_id = counted(len(astray), "message"), stood.pipe.id
        findings.append(
            f"pipe {pipe_id} has {count} whose keys belong to other key lanes, so they are not in"
            f" order with the other messages of their keys: {named(astray)}"
        )
    messages = sum(walk.messages for walk in walks)
    return Examined(stood, messages, sum(walk.size_bytes for walk in walks), findings)


def added_up(
    ports: Ports, queue: QueueRow, groups: Sequence[GroupRow], pipes: Sequence[Examined]
) -> Audit:
    """What became of the messages of these pipes, and of retired ones, for each of these groups
    that still exists; and of the groups that expired. Cost: the totals of retired pipes, the
    schedules, and two reads for each group with `concurrency`."""
    catalog, audit = ports.catalog, Audit(queue.name)
    retired = _retired(catalog, queue, audit)
    counts = {row.pipe_id: row.pushed for row in retired}
    live = [each for each in pipes if _counts(catalog, each, counts)]
    audit.pipes, audit.retired_pipes = len(live), len(counts)
    audit.pushed = sum(each.messages for each in live) + sum(counts.values())
    audit.bytes = sum(each.size_bytes for each in live)
    for each in live:
        for finding in each.findings:
            audit.find(finding)
    there = {group.id: group for group in catalog.queues.groups(queue.id)}
    for group in groups:
        if group.id in there:
            _add_group(audit, group, live, retired)
            _check_permits(audit, catalog, queue, there[group.id])
    for finding in _unfinished_ticks(ports, queue):
        audit.find(finding)
    audit.expired_groups = expired_groups(catalog, queue.id)
    for expired in audit.expired_groups:
        if sum(expired.counts.values()) != expired.pushed:
            parts = _terms(expired.counts)
            audit.find(
                f"expired group {expired.name}: {parts} does not equal pushed {expired.pushed}"
            )
    return audit


def _unfinished_ticks(ports: Ports, queue: QueueRow) -> list[str]:
    """Findings about ticks of schedules whose push was begun and not finished, and which no process
    is finishing. Cost: a read of the schedules; up to LOOKS_MAX if there are such ticks."""
    left = _begun_ticks(ports, queue)
    for look in range(1, LOOKS_MAX):
        if not left:
            break
        ports.clock.sleep(PAUSE_SECONDS * 2 ** (look - 1))
        now = _begun_ticks(ports, queue)
        left = [row for row in left if row in now]
    return [
        f"schedule {row.name}: the tick of {iso_time(due_tick_ms(row))} was begun and not finished,"
        f" more than a minute after its time; {FINISHED}"
        for row in left
    ]


def _begun_ticks(ports: Ports, queue: QueueRow) -> list[ScheduleRow]:
    now_ms = ports.catalog.wall_ms()
    return [
        row
        for row in ports.catalog.records.schedules()
        if queue.id in (row.queue_id, row.firing_queue_id)
        and row.firing is not None
        and late_ms(row, now_ms) > GRACE_MS
    ]


def _counts(catalog: Catalog, each: Examined, retired: Mapping[str, int]) -> bool:
    """Whether a pipe still counts: it was not retired, nor removed with the group it was for."""
    pipe_id = each.standing.pipe.id
    if pipe_id in retired:
        return False
    return not each.findings or live_pipe(catalog, pipe_id) is not None


def _add_group(
    audit: Audit, group: GroupRow, live: Sequence[Examined], retired: Sequence[Retired]
) -> None:
    """Check that everything pushed for a group is accounted for, exactly once."""
    stats = audit.groups[group.name] = GroupStats()
    for each in live:
        pipe, account = each.standing.pipe, each.standing.groups.get(group.id)
        if account is None:
            continue
        if account.claimed > each.messages:
            audit.find(
                f"group {group.name} has claimed {counted(account.claimed, 'message')}"
                f" of pipe {pipe.id}, which holds {each.messages}"
            )
        there = account.up_to(each.messages, timed=pipe.timer_ms is not None)
        stats.add(there, pipe.priority)
    for row in retired:
        if row.group_id == group.id:
            stats.add(tally_retired(row))
    parts = {name: getattr(stats, name) for name in LEDGER}
    if sum(parts.values()) != stats.pushed or min(parts.values()) < 0:
        audit.find(f"group {group.name}: {_terms(parts)} does not equal pushed {stats.pushed}")


def _check_permits(audit: Audit, catalog: Catalog, queue: QueueRow, group: GroupRow) -> None:
    """Check that poppers do not have more permits than `concurrency` allows. Cost: two reads in a
    group with that limit."""
    if rules_of(queue.policy, group.policy).concurrency is None:
        return
    stats = audit.groups[group.name]
    stats.permits = permits_in_use(catalog, group)
    now = catalog.queues.by_id(queue.id)  # read after the permits: the limit may have been raised
    most = stats.concurrency = rules_of((now or queue).policy, group.policy).concurrency
    if most is not None and stats.permits > most:
        audit.find(
            f"group {group.name}: consumers may have {counted(stats.permits, 'message')} at once,"
            f" but concurrency is {most}; if it was lowered, they may still finish what they had"
        )


def _terms(parts: Mapping[str, int]) -> str:
    return " + ".join(f"{name} {count}" for name, count in parts.items())


def _retired(catalog: Catalog, queue: QueueRow, audit: Audit) -> list[Retired]:
    """The totals of retired pipes. Checks that the stored sums equal what the rows add up to, or,
    while pipes keep being retired, lie between the sums before and after."""
    before, found, after = _with_sums(catalog, queue)
    for _ in range(LOOKS_MAX - 1):
        if set(before) == set(after):
            break
        before, found, after = _with_sums(catalog, queue)
    expected = summed(found)
    if not _lies_between(before, expected, after):
        audit.find(f"the sums of retired pipes are {after}, not {expected}")
    return found


def _with_sums(
    catalog: Catalog, queue: QueueRow
) -> tuple[list[RetiredSum], list[Retired], list[RetiredSum]]:
    before, found = catalog.pipes.retired_sums(queue.id), catalog.pipes.retired(queue.id)
    return before, found, catalog.pipes.retired_sums(queue.id)


def _lies_between(
    low: Iterable[RetiredSum], sums: Iterable[RetiredSum], high: Iterable[RetiredSum]
) -> bool:
    """Whether each number of `sums` is at least that of `low`, and at most that of `high`."""
    by_group = [{row.group_id: astuple(row)[1:] for row in rows} for rows in (low, sums, high)]
    none = (0,) * (1 + len(SUMMED))
    return all(
        a <= b <= c
        for group_id in set().union(*by_group)
        for a, b, c in zip(*(rows.get(group_id, none) for rows in by_group), strict=True)
    )


# --- what the frames say --------------------------------------------------------------------------


def walk_through(ports: Ports, pipe_id: str, start: Place, end_seq: int, key_lanes: int) -> Walked:
    """Read every frame of a pipe from `start` to `end_seq`. Damage, or a missing extent, is
    reported and ends the walk. In a pipe in which messages were given up as lost, it is passed over
    among messages that all groups are done with. key_lanes: of the queue. Cost: damaged parts are
    read again, see `ExtentReader.after_damage`; the pipe's row if there are several key lanes."""
    pipe = ports.catalog.pipes.by_id(pipe_id) if key_lanes > 1 else None
    lane = None if pipe is None else (key_lane_of_pipe(pipe.owner, key_lanes), key_lanes)
    try:
        reader = ports.store.reader(pipe_id)
    except (ExtentMissingError, CorruptionError) as exc:
        known = excused(ports, pipe_id)
        if known.covers(start.seq, end_seq):
            return Walked(pipe_id, end_seq - start.seq, 0)
        return Walked(pipe_id, 0, 0, exc.message, exc.message)
    try:
        walked = read_through(reader, pipe_id, start, end_seq, lane)
        if walked.finding and (known := excused(ports, pipe_id)):
            walked = read_through(reader, pipe_id, start, end_seq, lane, known)
        return walked
    finally:
        reader.close()


def read_through(
    reader: ExtentReader,
    pipe_id: str,
    start: Place,
    end_seq: int,
    lane: tuple[int, int] | None,
    known: RangeSet = EMPTY,
) -> Walked:
    """Read every frame of a pipe from `start` to `end_seq`; verify each checksum, and that seqs
    have no gap. Damage, or a missing extent, is reported and ends the walk, except in `known`.
    lane: the pipe's key lane, and how many there are; None: keys are not checked."""
    place, size, finding, cause = start, 0, "", ""
    astray: list[int] = []
    try:
        while place.seq < end_seq:
            try:
                slices = reader.read(place, end_seq, WALK_MESSAGES, WALK_BYTES)
            except CorruptionError:
                after = _behind(reader, place, end_seq, known)
                if after is None:
                    raise
                place = after
                continue
            size += sum(each.frame.size for each in slices if each.first == 0)
            astray += [] if lane is None else _astray(slices, *lane)
            place = reader.place_after(place, slices)
    except ExtentMissingError as exc:
        finding = cause = exc.message
    except CorruptionError as exc:
        cause = exc.message
        finding = f"pipe {pipe_id} is damaged after seq {place.seq}: {cause}; {FORWARD}"
    messages = place.seq - start.seq
    return Walked(pipe_id, messages, size, finding, cause, RangeSet.of(astray))


def _astray(slices: Iterable[Slice], lane: int, key_lanes: int) -> list[int]:
    """The seqs of messages whose keys belong to another lane."""
    return [
        frame.base_seq + index
        for frame, first, last in slices
        if frame.keys
        for index in range(first, last)
        if (key := frame.keys[index]) is not None and key_lane_of(key, key_lanes) != lane
    ]


def _behind(reader: ExtentReader, place: Place, end_seq: int, known: RangeSet) -> Place | None:
    """The place to continue after damage at `place`; None if that damage is not in `known`."""
    if place.seq not in known:
        return None
    after = reader.after_damage(place, end_seq) or Place(end_seq, place.pos)
    return after if known.covers(place.seq, after.seq) else None


def bounded(findings: Iterable[str], most: int) -> list[str]:
    """At most `most` findings, and how many more there are."""
    texts = list(findings)
    return (
        texts if len(texts) <= most else [*texts[:most], f"and {len(texts) - most} more like these"]
    )


# --- where dead letters are -----------------------------------------------------------------------


def misplaced(ports: Ports, pipe: PipeRow, moves: Sequence[Move]) -> list[str]:
    """Findings about a pipe's dead messages that are not where their settled moves say. A new pipe
    that was retired is not checked: every group of the dead letters has committed them. Cost: the
    frames of the dead messages, in both places."""
    if not moves:
        return []
    try:
        ids = _ids(ports, pipe, [move.seq for move in moves])
    except (ExtentMissingError, CorruptionError):
        return []  # reported where the frames are read
    findings: list[str] = []
    there: dict[str, list[Move]] = {}
    for move in moves:
        there.setdefault(move.dest_pipe, []).append(move)
    for dest_id, arrivals in there.items():
        findings += _not_in(ports, dest_id, arrivals, ids)
    return findings


def _not_in(
    ports: Ports, dest_id: str, moves: Sequence[Move], ids: Mapping[int, bytes]
) -> list[str]:
    row = ports.catalog.pipes.by_id(dest_id)
    if row is None or row.state is PipeState.CONSUMED:
        return []
    try:
        found = _ids(ports, row, [move.dest_seq for move in moves])
    except (ExtentMissingError, CorruptionError) as exc:
        row = ports.catalog.pipes.by_id(dest_id)
        gone = row is None or row.state is PipeState.CONSUMED
        return [] if gone else [f"dead letters in pipe {dest_id} cannot be read: {exc.message}"]
    return [
        f"message {move.pipe_id}:{move.seq} is not in the dead letters,"
        f" where it should be {move.dest_pipe}:{move.dest_seq}"
        for move in moves
        if found.get(move.dest_seq) != ids.get(move.seq, b"")
    ]


def _ids(ports: Ports, pipe: PipeRow, seqs: Iterable[int]) -> dict[int, bytes]:
    """The ids of these messages, by seq, as far as the pipe has them."""
    wanted = RangeSet.of(sorted(set(seqs)))
    sealed = sealed_end(ports.catalog, ports.store, pipe)
    reader = ports.store.reader(pipe.id)
    try:
        end = sealed or reader.published()
        found = dict(_read_ids(reader, pipe.id, wanted.within(0, end.seq)))
        if sealed is None:
            # What lies beyond was written but not published yet, or is reported as misplaced.
            further = wanted - RangeSet.run(0, end.seq)
            with suppress(CorruptionError):
                found.update(_read_ids(reader, pipe.id, further))
        return found
    finally:
        reader.close()


def _read_ids(reader: ExtentReader, pipe_id: str, seqs: RangeSet) -> Iterator[tuple[int, bytes]]:
    for _, (frame, first, last) in slices_of(reader, Place(0, 0), seqs):
        for index in range(first, last):
            yield frame.base_seq + index, frame.id_at(index, pipe_id)
