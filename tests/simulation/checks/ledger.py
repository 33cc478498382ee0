"""The ledger: what became of each message for each group, kept beside the catalog's own books.

It notes every move and removal when it is committed, and who had asked for it. When a pipe is
retired it reads the pipe's file itself: every message in it must be one that somebody pushed, and
for each group that it is for, one that was acked or that the books tell of. At the end each
dead letter must come from one death, and each message that was merged back from one dead letter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cassq.message.frames import FrameError, decode, pipe_key
from cassq.model.rows import Reason
from tests.simulation.checks.model import NEVER, Errand, Fact, GroupView, Place, Sent, place_of

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World

KINDS = ("dead", "expired", "purged", "merged", "lost")


class BrokenPromiseError(Exception):
    """A promise was broken."""


class Ledger:
    """Notes facts, and demands that they add up.

    facts: group id → place → what became of it. homes: pipe → the (queue id, only group) it
    belonged to, one after the other. content: the payloads of pipes that were retired or merged.
    intents: (group id, place) of a dead letter → where it was last about to go, and whose errand
    that was. merging: dead-letter queues that somebody has begun to merge.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: dict[bytes, Sent] = {}
        self.at: dict[Place, Sent] = {}
        self.groups: dict[str, GroupView] = {}
        self.consumed: set[str] = set()
        self.cut_off: set[str] = set()  # pipes that were not sealed when the power was cut
        self.facts: dict[str, dict[Place, Fact]] = defaultdict(dict)
        self.homes: dict[str, list[tuple[str, str]]] = {}
        self.content: dict[str, list[bytes]] = {}
        self.intents: dict[tuple[str, Place], tuple[Place, Errand | None]] = {}
        self.merging: set[str] = set()
        self.unpublished: set[str] = set()  # pipes that were removed while they were staged
        self.is_rebuilt = False  # from the files, after the catalog was lost

    def _rows(self, statement: str, parameters: Sequence[object] = ()) -> list[Any]:
        return self._world.commits.connection.execute(statement, parameters).fetchall()

    def tick(self) -> int:
        raise NotImplementedError

    # --- what is committed ----------------------------------------------------------------------

    def look_at_books(self) -> None:
        """Note the moves and removals that were committed since the last look."""
        commits = self._world.commits
        commits.recorded = False
        errand = commits.committer.errand if commits.committer else None
        for group_id, pipe_id, seq, reason, *dest, settled in self._rows(
            "SELECT group_id, pipe_id, seq, reason, dest_pipe, dest_seq, settled FROM moves"
        ):
            place = (pipe_id, seq)
            if settled:
                if place not in self.facts[group_id]:
                    self._note("dead", group_id, place, None, (dest[0], dest[1]))
            elif reason == "merged":
                before = self.intents.get((group_id, place))
                if before is None or before[0] != (dest[0], dest[1]):
                    self.intents[group_id, place] = (dest[0], dest[1]), errand
        for group_id, place, kind in self._removals():
            if place not in self.facts[group_id]:
                dest, whose = None, errand
                if kind == "merged":
                    # It may be another who finishes it.
                    dest, whose = self.intents.get((group_id, place), (None, None))
                self._note(kind, group_id, place, whose, dest)
            elif self.facts[group_id][place].kind != kind:
                self._broken_twice(group_id, place, kind)

    def _removals(self) -> Iterator[tuple[str, Place, str]]:
        for group_id, pipe_id, start, end, kind in self._rows(
            "SELECT group_id, pipe_id, start_seq, end_seq, reason FROM removed"
        ):
            for seq in range(start, end):
                yield group_id, (pipe_id, seq), Reason(kind).total

    def _note(
        self, kind: str, group_id: str, place: Place, errand: Errand | None, dest: Place | None
    ) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return  # it is being made in this commit, or was deleted
        clock = self._world.scheduler.clock
        fact = Fact(kind, self.tick(), self.catalog_ms(), clock.wall_ms(), errand, dest)
        self.facts[group_id][place] = fact
        if group.settled.get(place, NEVER) < fact.tick:
            self._broken_twice(group_id, place, kind)
        may_be_held = errand is not None and errand.held
        for delivery in group.deliveries.get(place, ()):
            held = delivery.given == delivery.settled == NEVER and not may_be_held
            # After an error a popper of a keyed group no longer knows what it had.
            held = held and not (group.keyed and delivery.message._delivery.lost)
            if held and delivery.due_ms > clock.boot_ms():
                raise BrokenPromiseError(
                    f"{place} is {kind} for {group.name}, and a popper had it until"
                    f" {delivery.due_ms} ms"
                )
        self._check_order_of(kind, group, place, errand)
        if kind == "expired":
            self._check_age(group, place, fact)

    def _broken_twice(self, group_id: str, place: Place, kind: str) -> None:
        before = self.facts[group_id].get(place)
        was = before.kind if before and before.kind != kind else "committed"
        raise BrokenPromiseError(f"{place} of {self.groups[group_id].name} was {was}, now {kind}")

    def _check_order_of(
        self, kind: str, group: GroupView, place: Place, errand: Errand | None
    ) -> None:
        """Somebody has asked for it."""
        if kind == "merged" and group.queue not in self.merging:
            raise BrokenPromiseError(f"{place} of {group.queue} was merged, nobody asked for it")
        if kind != "purged":
            return
        meant = errand is not None and (group.id in errand.groups or group.queue == errand.queue)
        if not meant or errand is None or errand.kind == "merge":
            raise BrokenPromiseError(
                f"{place} of {group.queue}/{group.name} was purged, nobody asked for it"
            )
        if errand.place not in (None, place):
            raise BrokenPromiseError(f"{place} was cancelled, {errand.place} was meant")

    def _check_age(self, group: GroupView, place: Place, fact: Fact) -> None:
        """It was as old as it might become, as far as its pipe tells."""
        limit = self._world.scenario.age_limit(group.queue)
        rows = self._rows("SELECT created_ms, timer_ms FROM pipes WHERE id = ?", (place[0],))
        if limit is None or not rows:
            raise BrokenPromiseError(f"{place} of {group.queue} expired, and never may")
        if rows[0][1] is None and fact.at_ms - rows[0][0] < limit * 1000:
            raise BrokenPromiseError(
                f"{place} expired after {fact.at_ms - rows[0][0]} ms of {limit} s"
            )

    def catalog_ms(self) -> int:
        rows = self._rows("SELECT value FROM meta WHERE key LIKE 'anchor:%'")
        return self._world.scheduler.clock.boot_ms() + int(rows[0][0]) if rows else 0

    def forget_undone(self) -> None:
        """After a power cut: facts that were not durable did not happen, unless somebody was told
        so; those of pipes that are gone stay."""
        found: dict[str, set[Place]] = defaultdict(set)
        for group_id, place, _ in self._removals():
            found[group_id].add(place)
        for group_id, pipe_id, seq in self._rows(
            "SELECT group_id, pipe_id, seq FROM moves WHERE settled"
        ):
            found[group_id].add((pipe_id, seq))
        for group_id, facts in self.facts.items():
            for place, fact in list(facts.items()):
                if place[0] in self.content or place in found[group_id]:
                    continue
                del facts[place]
                group = self.groups.get(group_id)
                confirmed = fact.errand is not None and fact.errand.confirmed
                if confirmed and group is not None and group.alive:
                    raise BrokenPromiseError(
                        f"{place} was {fact.kind} for {group.name}, and is back after a power cut"
                    )

    # --- what is told to clerks -----------------------------------------------------------------

    def purged(self, errand: Errand, count: int) -> None:
        """A purge returned: so many messages."""
        errand.confirmed = True
        noted = sum(
            fact.errand is errand for facts in self.facts.values() for fact in facts.values()
        )
        if noted != count:
            raise BrokenPromiseError(f"a purge told of {count} messages, it removed {noted}")

    def cancelled(self, errand: Errand, groups: Sequence[GroupView], sent: Sent) -> None:
        """A cancel said that nobody has got, or will get, the message: of `groups`, as they were
        when it began."""
        errand.confirmed = True
        place = place_of(sent.id)
        for group in groups:
            if not group.alive or not group.is_owed(sent, place):
                continue
            fact = self.facts[group.id].get(place)
            # What was handed back untried counts as not delivered; of what was purged before
            # nobody can tell.
            got = any(not delivery.released for delivery in group.deliveries.get(place, ()))
            if got and (fact is None or fact.errand is None or fact.errand.kind == "cancel"):
                raise BrokenPromiseError(f"{sent.id} was cancelled, {group.name} had got it")
            if (fact is None or fact.kind != "purged") and place[0] not in self.consumed:
                raise BrokenPromiseError(f"{sent.id} was cancelled, {group.name} may still get it")

    # --- the pipes ------------------------------------------------------------------------------

    def only_for(self, pipe_id: str) -> str:
        """The id of the only group that a pipe is for; empty: for every group."""
        homes = self.homes.get(pipe_id)
        return homes[-1][1] if homes else ""

    def look_at_home(self, pipe_id: str, home: tuple[str, str], end: int | None) -> None:
        """A pipe belongs to a queue, and perhaps to one group, from now on."""
        homes = self.homes.setdefault(pipe_id, [home])
        if homes[-1] == home:
            return
        old_id = homes[-1][0]
        homes.append(home)
        self._read(pipe_id, end or 0)
        for group in self.groups.values():
            if group.alive and group.queue_id == old_id:
                for seq in range(end or 0):
                    place = (pipe_id, seq)
                    if group.deliveries.get(place):
                        raise BrokenPromiseError(
                            f"{place} was merged with its pipe, and {group.queue} had got it"
                        )
                    self._note("merged", group.id, place, None, place)
        self._check_totals(pipe_id, old_id)

    def _read(self, pipe_id: str, end: int) -> None:
        """Read a pipe's messages from where they are."""
        data, key = self._world.stored(pipe_id, end), pipe_key(pipe_id)
        payloads: list[bytes] = []
        pos = 0
        while len(payloads) < end:
            try:
                frame = decode(data, pos, pipe_key=key)
            except FrameError as exc:
                raise BrokenPromiseError(
                    f"{pipe_id} ends at {end}, and cannot be read from {len(payloads)} on"
                ) from exc
            for index, payload in enumerate(frame.payloads(0, frame.count)):
                self._check_id(payload, frame.id_at(index, pipe_id).decode(), pipe_id)
                payloads.append(payload)
            pos += frame.size
        self.content[pipe_id] = payloads[:end]

    def _check_id(self, payload: bytes, id: str, pipe_id: str) -> None:
        sent = self.sent.get(payload)
        if sent is None:
            raise BrokenPromiseError(f"{id} in {pipe_id} was never pushed: {payload!r}")

    def retired(self, pipe_id: str) -> None:
        """A pipe is retired: every group must be done with each of its messages."""
        ((end, queue_id),) = self._rows(
            "SELECT end_seq, queue_id FROM pipes WHERE id = ?", (pipe_id,)
        )
        self._read(pipe_id, end or 0)
        self._check_kept(pipe_id, queue_id)
        only_for = self.only_for(pipe_id)
        for group in self.groups.values():
            if not group.alive or group.queue_id != queue_id or only_for not in ("", group.id):
                continue
            facts = self.facts[group.id]
            for seq, payload in enumerate(self.content[pipe_id]):
                place, sent = (pipe_id, seq), self.sent[payload]
                if place in facts:
                    self._check_meant(facts[place], place, payload)
                elif place not in group.settling and (
                    only_for or group.is_letters or group.is_owed(sent, place)
                ):
                    raise BrokenPromiseError(
                        f"{pipe_id} was retired before {group.name} was done with {place}"
                    )
        self._check_totals(pipe_id, queue_id)

    def _check_kept(self, pipe_id: str, queue_id: str) -> None:
        """It was kept for as long as what is consumed is to be, after its newest push."""
        if self.is_rebuilt:
            return  # its queues have policies of their own
        names = {group.queue for group in self.groups.values() if group.queue_id == queue_id}
        policies = [self._world.scenario.policy.get(name, {}) for name in names]
        kept_ms = 1000 * max((each.get("retain_consumed", 0.0) for each in policies), default=0.0)
        pushed_ms = [self.sent[payload].since_ms for payload in self.content[pipe_id]]
        if kept_ms and pushed_ms and (age_ms := self.catalog_ms() - max(pushed_ms)) < kept_ms:
            raise BrokenPromiseError(
                f"{pipe_id} was retired {age_ms} ms after a push, not {kept_ms:.0f} ms"
            )

    def _check_meant(self, fact: Fact, place: Place, payload: bytes) -> None:
        """Whoever had it removed meant such a message."""
        errand = fact.errand
        if errand is not None and errand.text and fact.kind in ("purged", "merged"):
            if errand.text not in payload:
                raise BrokenPromiseError(
                    f"{place} was {fact.kind}, only what has {errand.text!r} was meant: {payload!r}"
                )
        sent = self.sent[payload]
        if fact.kind == "expired" and sent.due_ms:
            limit = self._world.scenario.age_limit(sent.queue) or 0.0
            if fact.at_ms - sent.due_ms < limit * 1000:
                raise BrokenPromiseError(f"{place} expired before it was due for {limit} s")

    def _check_totals(self, pipe_id: str, queue_id: str) -> None:
        """The totals that the catalog keeps of a pipe are what became of its messages."""
        for group_id, pushed, *counts in self._rows(
            "SELECT group_id, pushed, dead, expired, purged, merged, lost FROM retired"
            " WHERE pipe_id = ? AND queue_id = ?",
            (pipe_id, queue_id),
        ):
            facts = self.facts[group_id]
            kinds = Counter(
                facts[pipe_id, seq].kind
                for seq in range(len(self.content[pipe_id]))
                if (pipe_id, seq) in facts
            )
            noted = [kinds[kind] for kind in KINDS]
            if pushed != len(self.content[pipe_id]) or counts != noted:
                raise BrokenPromiseError(
                    f"the ledger of {pipe_id} says {pushed} pushed and {counts} of {KINDS},"
                    f" they were {len(self.content[pipe_id])} and {noted}"
                )

    # --- the end --------------------------------------------------------------------------------

    def settle_up(self) -> None:
        """Each message is in one place for each time it was pushed, died or was merged back."""
        where: dict[bytes, list[Place]] = defaultdict(list)
        for pipe_id, payloads in self.content.items():
            for seq, payload in enumerate(payloads):
                where[payload].append((pipe_id, seq))
        for sent in self.sent.values():
            if sent.acked != NEVER and place_of(sent.id) not in where[sent.payload]:
                raise BrokenPromiseError(f"{sent.id} (acknowledged) is not in its pipe")
        letters = {g.queue: g for g in self.groups.values() if g.alive and g.is_letters}
        for group in self.groups.values():
            if group.alive and not group.is_letters:
                dead = letters.get(f"{group.queue}~{group.name}~dead")
                for payload, places in where.items():
                    self._settle_up(group, dead, payload, places)

    def _settle_up(
        self, group: GroupView, letters: GroupView | None, payload: bytes, places: list[Place]
    ) -> None:
        facts = self.facts[group.id]
        died = [facts[p].dest for p in places if p in facts and facts[p].kind == "dead"]
        there: list[Place] = []
        if letters is not None:
            there = [p for p in places if self._was_in(p[0], letters.queue_id, "")]
        if sorted(died, key=str) != sorted(there, key=str):
            raise BrokenPromiseError(
                f"{payload!r}: {group.name} gave it up {len(died)} times, to {died},"
                f" its dead letters are {there}"
            )
        facts = self.facts[letters.id] if letters else {}
        merged = [facts[p].dest for p in there if p in facts and facts[p].kind == "merged"]
        back = [p for p in places if self._was_in(p[0], group.queue_id, group.id)]
        if sorted(merged, key=str) != sorted(back, key=str):
            raise BrokenPromiseError(
                f"{payload!r}: it was merged for {group.name} {len(merged)} times, to {merged},"
                f" and came back as {back}"
            )

    def _was_in(self, pipe_id: str, queue_id: str, only_for: str) -> bool:
        return (queue_id, only_for) in self.homes.get(pipe_id, ())
