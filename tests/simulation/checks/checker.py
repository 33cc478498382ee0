"""The checker: what was promised to whom, and an error as soon as one is broken.

It knows what the actors saw: what they pushed, what was acknowledged, delivered and committed.
Beside that it looks into the catalog after every commit, for what no actor sees: ends that
change, pipes retired too early.

Time is counted in *ticks*, one for every event and every commit. A delivery counts from the
commit of its claim, not from when the popper, stopped perhaps, came to hand it out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cassq.consumer.delivery import Message
from cassq.lifecycle.retries import DEATH_HEADER
from cassq.message.message_ids import SpilledId
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.queues import is_dead_letter_name, rate_of
from tests.simulation.checks.fairness import FairLines
from tests.simulation.checks.key_limits import KeyLimits
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.checks.lookout import Lookout
from tests.simulation.checks.model import NEVER, Delivery, GroupView, Place, Sent, place_of

if TYPE_CHECKING:
    from tests.simulation.worlds.scheduler import Process
    from tests.simulation.worlds.world import World


LISTED_MS = 1100  # after which a popper knows a new pipe
LATE_MS = 1000  # while somebody waits, and nothing fails
WAITING_MS = 60_000  # where it waits for others
JUMP_MS = 3_600_000  # of the wall clock, forward or back
PUSHING_MS = 1000  # from the call of a push until its message is stamped, at most


class Checker(Lookout):
    """Follows one run."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._batches = itertools.count(1)
        self.acked: dict[str, list[Sent]] = defaultdict(list)  # queue → in order of their acks
        # (group, key) → when each release of it had ended, or NEVER
        self.releases: dict[tuple[str, bytes], list[int]] = defaultdict(list)
        self.dead: dict[tuple[str, bytes], set[Place]] = defaultdict(set)
        self._fair = FairLines()
        self.limits_of_keys: KeyLimits = KeyLimits(world, self)

    # --- pushing --------------------------------------------------------------------------------

    def push(self, sent: Sent) -> None:
        self.sent[sent.payload] = sent

    def push_again(self, sent: Sent, wall_ms: int, now_ms: int) -> None:
        """A push with a dedup id begins, perhaps not the first one. now_ms: catalog time."""
        sent.tries += 1
        sent.walls_ms.append(wall_ms)
        sent.since_ms = min(sent.since_ms or now_ms, now_ms)
        if sent.delay:
            sent.due_ms = min(sent.due_ms, now_ms + round(sent.delay * 1000))
        sent.refused = False
        self.push(sent)

    def pushed(self, batch: Sequence[Sent], ids: Sequence[str]) -> None:
        """A push returned. What is in a spool has no place yet."""
        now = self.tick()
        for sent, id in zip(batch, ids, strict=True):
            if isinstance(id, SpilledId):
                sent.spilled = True
                continue
            place = place_of(id)
            if sent.acked == NEVER:
                sent.acked, sent.id = now, id
                self.acked[sent.queue].append(sent)
            elif sent.id != id and not self.may_come_twice(sent):
                raise BrokenPromiseError(f"{sent.dedup_id} was {sent.id}, and now is {id}")
            self._found(sent, place)
            if place[1] >= self.ends.get(place[0], (NEVER, 0))[0]:
                raise BrokenPromiseError(
                    f"{id} was acknowledged past its pipe's end {self.ends[place[0]]}"
                )

        if batch:
            self._check_length(batch[0].queue)

    def _check_length(self, queue: str) -> None:
        """One pusher alone never goes over the limit of a queue that refuses."""
        scenario = self._world.scenario
        policy, roles = scenario.policy[queue], scenario.roles
        limit = policy.get("max_length")
        alone = roles["pusher"] == 1 and not (scenario.writers or roles.get("clerk", 0))
        if limit is None or policy["overflow"] != "reject" or not alone or self.is_rebuilt:
            return
        if self.cut_off - self.ends.keys() - self.consumed:
            return  # what a power cut left of those is not counted before they are sealed
        for group in self.groups.values():
            if group.alive and group.queue == queue and not group.begun:
                left = sum(self._is_left(group, sent) for sent in self.acked[queue])
                if left > limit:
                    raise BrokenPromiseError(
                        f"{left} messages are left to {group.name}, the limit of {queue} is {limit}"
                    )

    def _is_left(self, group: GroupView, sent: Sent) -> bool:
        """Whether a group has certainly neither committed a message nor given it up."""
        place = place_of(sent.id)
        spent = self._world.max_deliveries(group.queue)
        return not (
            place in group.settling
            or place in self.facts[group.id]
            or place[0] in self.consumed
            or any(each.attempts >= spent for each in group.deliveries.get(place, ()))
        )

    def may_come_twice(self, sent: Sent) -> bool:
        """Whether a dedup id's window may have passed since it was first pushed: catalog time."""
        window = self._world.scenario.policy[sent.queue]["dedup_window"]
        reached_ms = max(self.reached_ms, self.catalog_ms())
        return bool(reached_ms - sent.since_ms > window * 1000)

    def _found(self, sent: Sent, place: Place) -> None:
        """A message lies at a place, now and for ever."""
        other = self.at.setdefault(place, sent)
        if other is not sent:
            raise BrokenPromiseError(f"{place} holds {sent.payload!r}, and held {other.payload!r}")
        self.seen_to[place[0]] = max(self.seen_to.get(place[0], -1), place[1])
        if place in sent.places or self.only_for(place[0]):
            return
        sent.places.add(place)
        if sent.dedup_id:
            excused = self.may_come_twice(sent)
        else:
            excused = sent.troubled or any(pipe_id in self.consumed for pipe_id, _ in sent.places)
        if len(sent.places) > 1 and not excused:
            raise BrokenPromiseError(
                f"{sent.payload!r} is there twice, for no reason: {sent.places}"
            )

    # --- lateness -------------------------------------------------------------------------------

    def waited(self, popper: Any, started_ms: int) -> None:
        """A pop that waited has ended; called before what it returned is known. Whatever was
        there, and due, while it waited and nobody held anything, comes without delay."""
        group = self.groups[popper._group().id]
        if not (self._world.scenario.prompt and self._world.calm):
            return
        if group.exclusive or group.keyed:
            return
        clock = self._world.scheduler.clock
        offset_ms = self.catalog_ms() - clock.boot_ms()
        until_ms = clock.boot_ms() if group.held_ms is None else group.held_ms
        since_ms = max(started_ms, group.quiet_ms)
        for sent in self.acked[group.queue]:
            place = place_of(sent.id)
            if place not in group.deliveries and group.is_owed(sent, place):
                late_ms = until_ms - max(since_ms, sent.acked_ms, sent.due_ms - offset_ms)
                if late_ms > LATE_MS:
                    raise BrokenPromiseError(
                        f"{sent.id} was there, nobody held anything, and {group.name} waited for"
                        f" {late_ms} ms"
                    )

    # --- popping --------------------------------------------------------------------------------

    def delivered(
        self, popper: Any, process: Process | None, messages: Sequence[Message], started_ms: int
    ) -> list[Delivery]:
        """A pop returned messages."""
        process = process or popper._claimer._ports.clock._process
        group = self.groups[popper._group().id]
        timeout_ms = popper._claimer.rules.claim_timeout_ms
        batch = next(self._batches)
        self.tick()
        deliveries = []
        now_ms = popper._catalog.now_ms()
        came_ms = self._world.scheduler.clock.boot_ms()
        to_boot_ms = came_ms - now_ms
        for message in messages:
            sent = self.sent.get(message.payload)
            if sent is None:
                raise BrokenPromiseError(f"{message!r} was never pushed: {message.payload!r}")
            # What was prefetched was claimed a moment before.
            claimed_ms = message._delivery.claimed_ms + to_boot_ms
            due_ms = (started_ms if group.keyed else min(started_ms, claimed_ms)) + timeout_ms
            tick, at_ms, number = self._claim_of(message, process, group)
            delivery = Delivery(
                message, (message.pipe_id, message.seq), sent, group, popper,
                tick, at_ms, came_ms, due_ms, number, message.attempts, batch,
            )  # fmt: skip
            tried = group.deliveries[delivery.place]
            if group.keyed:
                # What was released can be handed out again without another commit.
                released = [old.given for old in tried if old.popper is popper and old.released]
                delivery.claimed = max([delivery.claimed, *released])
            early_ms = sent.due_ms - max(now_ms, sent.reached_ms)
            if early_ms > 0 and not (tried or group.is_letters):
                raise BrokenPromiseError(f"{message.id} came {early_ms} ms too early")
            self._check_content(delivery)
            deliveries.append(delivery)
        for delivery in deliveries:
            self._check_place(delivery)
            self._check_neighbours(delivery)
            group.deliveries[delivery.place].append(delivery)
            self._check_first(delivery)
        self._check_limits(group, len(deliveries))
        self._check_priorities(deliveries)
        if group.strict:
            self._check_order(deliveries)
        if group.keyed:
            for delivery in deliveries if group.ordered else ():
                self._check_key(delivery)
            self.limits_of_keys.check(group, deliveries)
            if self._world.scenario.fair and not self._world.scenario.popping_threads:
                at_once = started_ms == self._world.scheduler.clock.boot_ms()
                self._fair.check(popper, deliveries, at_once=at_once)
        return deliveries

    def _claim_of(
        self, message: Message, process: Process, group: GroupView
    ) -> tuple[int, int, int]:
        """The tick, boot time and number of the commit after which a message was handed out."""
        last = process.committed_tick, process.committed_ms, process.committed_count
        lanes = self._world.scenario.policy.get(group.queue, {}).get("key_lanes", 1)
        if not group.keyed or lanes > 1:
            # What the process claimed in another pipe after that may have taken long.
            found = self._world.commits.written.get((message.pipe_id, process))
            if found is not None or not group.keyed:
                last = found or last
        # Another thread may have claimed it, after the last commit of this one.
        return max(last, self._world.commits.claims.get(message._delivery.holder, last))

    def _check_limits(self, group: GroupView, count: int) -> None:
        """No more came in any second, or minute, than the group's rate allows, and no more are in
        consumers' hands at once; `count` came just now."""
        policy = self._world.scenario.policy.get(group.queue, {})
        rate, concurrency = policy.get("rate"), policy.get("concurrency")
        now_ms = self._world.scheduler.clock.boot_ms()
        group.came_ms += [now_ms] * count
        if rate is not None:
            most, unit_ms = rate_of(rate)
            lately = [came_ms for came_ms in group.came_ms if now_ms - came_ms < unit_ms]
            if len(lately) > most:
                raise BrokenPromiseError(f"{len(lately)} came to {group.name} at {rate}: {lately}")
        if concurrency is not None:
            out = [
                each.place
                for deliveries in group.deliveries.values()
                for each in deliveries
                if each.settling == each.given == NEVER and now_ms < each.due_ms
            ]
            if len(out) > concurrency:
                raise BrokenPromiseError(f"{group.name} has {out}, and may have {concurrency}")

    def _check_priorities(self, batch: Sequence[Delivery]) -> None:
        """Where nothing fails, nothing new passes what is more urgent and was there, and known,
        when it was claimed; or, unless priorities are strict, a popper passes what is least urgent
        in fewer claims than its share."""
        group, scenario = batch[0].group, self._world.scenario
        share = scenario.policy.get(group.queue, {}).get("priority_share", 16)
        if not (scenario.priorities and self._world.calm) or group.is_letters:
            return
        new = [each for each in batch if each.attempts == 1 and not each.sent.due_ms]
        if group.exclusive or group.keyed:
            return
        if share:
            self._check_share(batch, new, share)
            return
        known_ms = max((self._known_ms(each) for each in new), default=0)
        waiting = list(self._known_waiting(group, known_ms))
        for each, other in itertools.product(new, waiting):
            if other.priority > each.sent.priority and other.acked_ms <= self._known_ms(each):
                raise BrokenPromiseError(
                    f"{each.place}, of priority {each.sent.priority}, came to {group.name} before"
                    f" {other.id}, of priority {other.priority}"
                )

    def _check_share(self, batch: Sequence[Delivery], new: Sequence[Delivery], share: int) -> None:
        """Of `share` claims of a popper one is of the least priority that waits."""
        group, popper = batch[0].group, batch[0].popper
        known_ms = min(self._known_ms(each) for each in batch)
        least = min((sent.priority for sent in self._known_waiting(group, known_ms)), default=None)
        holders = {each.message._delivery.holder for each in new} - group.holders
        group.holders |= holders
        if least is None or min(each.sent.priority for each in batch) <= least:
            group.passed[popper] = 0
        elif holders:  # otherwise all was claimed ahead, or had come due
            group.passed[popper] += 1
        if group.passed[popper] >= share:
            raise BrokenPromiseError(
                f"{group.passed[popper]} claims for {group.name} passed what is of priority {least}"
                f" with a share of {share}"
            )

    def _known_ms(self, delivery: Delivery) -> int:
        """The boot time until which all that was pushed was known when a message was claimed."""
        offset_ms = self.catalog_ms() - self._world.scheduler.clock.boot_ms()
        return delivery.message._delivery.claimed_ms - offset_ms - LISTED_MS

    def _known_waiting(self, group: GroupView, known_ms: int) -> Iterator[Sent]:
        """Messages that wait, and were known then; none that was delayed."""
        chains: dict[str, int] = dict(
            self._rows("SELECT pipe_id, chain_seq FROM cursors WHERE group_id = ?", (group.id,))
        )
        for sent in self.acked[group.queue]:
            place = place_of(sent.id)
            if sent.due_ms or sent.acked_ms > known_ms or place in group.deliveries:
                continue
            if chains.get(place[0], 0) <= place[1] and not self.is_gone(group, place):
                if group.is_owed(sent, place):
                    yield sent

    def _check_key(self, new: Delivery) -> None:
        """Nothing of its key that was pushed before, by the same pusher or on a cp queue, is
        unsettled."""
        group, sent = new.group, new.sent
        if sent.key is None or sent.due_ms or sent.dedup_id:
            return
        strict = self._world.scenario.policy.get(group.queue, {}).get("consistency") == "cp"
        for other in self.acked[group.queue]:
            place = place_of(other.id)
            if other.key != sent.key or other is sent or other.due_ms or other.dedup_id:
                continue
            if other.acked >= sent.begun or not (strict or other.pusher is sent.pusher):
                continue
            done = group.settling.get(place, NEVER) < new.claimed or self.is_gone(group, place)
            passed = not done and group.is_owed(other, place) and new.place in sent.places
            if passed and not self._is_leaving(group, place):
                raise BrokenPromiseError(
                    f"{new.place} came to {group.name} before {other.id} of its key was settled"
                )
            if self._is_held_by(group, place, new) and new.place in sent.places:
                raise BrokenPromiseError(
                    f"{new.place} came to {group.name}, though {other.id}, a dead letter, held it"
                )

    def _is_held_by(self, group: GroupView, place: Place, new: Delivery) -> bool:
        """Whether a message was a dead letter when a later one of its key was claimed, and held
        the key: its letter was not committed, moved or purged, nor the key released."""
        fact = self.facts[group.id].get(place)
        if not self._world.scenario.holding or fact is None or fact.kind != "dead":
            return False
        name, letter = f"{group.queue}~{group.name}~dead", fact.dest
        letters = next((g for g in self.groups.values() if g.alive and g.queue == name), None)
        if letters is None or letter is None or fact.tick >= new.claimed:
            return False
        if any(ended >= fact.tick for ended in self.releases[group.id, new.sent.key or b""]):
            return False
        settled = letters.settling.get(letter, NEVER) < NEVER
        return not (settled or self.is_gone(letters, letter))

    def _check_content(self, delivery: Delivery) -> None:
        message, sent, group = delivery.message, delivery.sent, delivery.group
        headers, only_for = message.headers, self.only_for(delivery.place[0])
        if only_for not in ("", group.id):
            raise BrokenPromiseError(f"{delivery.place} came to {group.name}, it is for another")
        died = headers.pop(DEATH_HEADER, None) is not None
        if died != (group.is_letters or bool(only_for)):
            raise BrokenPromiseError(f"{message.id} in {group.queue}: a death record is {died}")
        if group.is_letters:
            self._check_letter(delivery)
        elif sent.queue != group.queue:
            raise BrokenPromiseError(f"{message.id} of {sent.queue} came out of {group.queue}")
        else:
            self._found(sent, delivery.place)
        self._check_time(message, sent)
        if message.priority != sent.priority and not self.is_rebuilt:
            raise BrokenPromiseError(
                f"{message.id} came with priority {message.priority}, and was pushed with"
                f" {sent.priority}"
            )
        if (headers, message.key) != (sent.headers, sent.key):
            found, pushed = (headers, message.key), (sent.headers, sent.key)
            raise BrokenPromiseError(f"{message.id} was altered: {found} is not {pushed}")
        if sent.refused:
            raise BrokenPromiseError(f"{message.id} was delivered, its push said it was not pushed")

    def _check_time(self, message: Message, sent: Sent) -> None:
        if sent.dedup_id:  # it is the time of any of its tries
            if any(self._is_stamp(message.pushed_ms - ms, sent.queue) for ms in sent.walls_ms):
                return
        elif not sent.stamped and self._is_stamp(message.pushed_ms - sent.wall_ms, sent.queue):
            sent.wall_ms, sent.stamped = message.pushed_ms, True
        if message.pushed_ms != sent.wall_ms:
            raise BrokenPromiseError(
                f"{message.id} was pushed at {sent.wall_ms}, and bears {message.pushed_ms}"
            )

    def _is_stamp(self, after_ms: int, queue: str) -> bool:
        """Whether a message may bear a time so long after its push began. Where a push waits for
        another thread's, or looks at the length of its queue first, others go on meanwhile, and the
        wall clock may be set."""
        scenario = self._world.scenario
        policy = scenario.policy.get(queue, {})
        if not scenario.threads and policy.get("max_length") is None:
            return 0 <= after_ms < PUSHING_MS
        if scenario.jump_rate:
            after_ms %= JUMP_MS
        return 0 <= after_ms < WAITING_MS

    def _check_letter(self, delivery: Delivery) -> None:
        message, sent, group = delivery.message, delivery.sent, delivery.group
        places = self.dead[group.queue, message.payload]
        places.add(delivery.place)
        twice = sent.dedup_id or group.queue in self.merging
        # Which of the places that were tried counts, only the catalog knew.
        if len(places) > 1 and not (twice or self.is_rebuilt):
            raise BrokenPromiseError(
                f"{message.id} is in {group.queue} {len(places)} times: {places}"
            )
        first = place_of(message.id)
        if first in sent.places or not sent.id or sent.spilled:
            return
        if sent.dedup_id and self._world.spills:
            return  # the push that put it into a spool, which gave it this id, may have told nobody
        if not self._has_died(first):
            raise BrokenPromiseError(f"dead letter {message.id} was {sent.id} before")
        # Whoever got it there has told nobody, or nobody got it: a queue may drop its oldest.
        self._found(sent, first)

    def _has_died(self, place: Place) -> bool:
        """Whether the books tell of a message's death, or that it is about to be a dead letter."""
        noted = any(place in facts for facts in self.facts.values())
        return noted or bool(self._rows("SELECT 1 FROM moves WHERE pipe_id = ? AND seq = ?", place))

    def _check_place(self, delivery: Delivery) -> None:
        pipe_id, seq = delivery.place
        group, sent = delivery.group, delivery.sent
        self.seen_to[pipe_id] = max(self.seen_to.get(pipe_id, -1), seq)
        if seq >= self.ends.get(pipe_id, (NEVER, 0))[0]:
            raise BrokenPromiseError(
                f"{delivery.place} was delivered past the end {self.ends[pipe_id]}"
            )
        if group.settled.get(delivery.place, NEVER) < delivery.claimed:
            raise BrokenPromiseError(
                f"{delivery.place} was committed by {group.name}, and delivered again"
            )
        fact = self.facts[group.id].get(delivery.place)
        if fact is not None and fact.tick < delivery.claimed:
            raise BrokenPromiseError(
                f"{delivery.place} was {fact.kind} for {group.name}, and delivered again"
            )
        first = sent.id and delivery.place == place_of(sent.id)
        exact = group.start == "now" and not self._world.ends_lag
        if exact and sent.acked < group.begun and first:
            raise BrokenPromiseError(f"{delivery.place} was pushed before group {group.name} began")
        limit = self._world.max_deliveries(group.queue)
        # While nothing succeeds a message is tried on, unless the policy says otherwise.
        if delivery.attempts > limit and not self._world.sick_check(group.queue):
            raise BrokenPromiseError(
                f"{delivery.place} was delivered {delivery.attempts} times of {limit}"
            )

    def _check_neighbours(self, new: Delivery) -> None:
        """Two at once, deliveries not counted, acks accepted from who had lost the claim."""
        for old in new.group.deliveries[new.place]:
            first, then = (old, new) if old.claimed <= new.claimed else (new, old)
            if then.claimed_ms < first.due_ms and first.given > then.claimed:
                raise BrokenPromiseError(
                    f"{new.place} was claimed at {then.claimed_ms} ms, another popper had it from"
                    f" {first.claimed_ms} to {first.due_ms} ms"
                )
            # At the limit a message is delivered once more, alone, before it is given up.
            limit = self._world.max_deliveries(new.group.queue)
            least = first.attempts if first.released else min(first.attempts + 1, limit)
            if then.attempts < least:
                raise BrokenPromiseError(
                    f"{new.place}: delivered with attempts={first.attempts}, then {then.attempts}"
                )
            if first.settled != NEVER:
                self._check_fence(first, then)

    def _check_fence(self, first: Delivery, then: Delivery) -> None:
        """An ack is refused when the message was another's before the ack began."""
        if then.claimed < first.settling and then.settling > first.settled:
            raise BrokenPromiseError(f"{first.place}: an ack was accepted after the claim was lost")
        if then.claimed < first.settling and first.group.exclusive:
            raise BrokenPromiseError(f"{first.place}: a fenced ack was accepted")

    def _check_first(self, delivery: Delivery) -> None:
        """First deliveries of a pipe to one popper are in order, but for what another popper had
        claimed ahead and gave back; and they are counted from one."""
        group = delivery.group
        if delivery.attempts == 1 and group.forgotten[delivery.place] > 1:
            raise BrokenPromiseError(
                f"{delivery.place} came first for the third time, over power cuts"
            )
        before = group.deliveries[delivery.place][:-1]
        if self._world.calm and not before and delivery.attempts != 1:
            raise BrokenPromiseError(
                f"{delivery.place} came first with attempts={delivery.attempts}"
            )
        pipe_id, seq = delivery.place
        came_to = group.came_to[pipe_id]
        came_to.setdefault(seq, delivery.popper)
        if group.keyed or before or delivery.attempts != 1:
            return
        if delivery.sent.due_ms or group.queue in self.merging:
            return  # what a merge has held, and left, comes later
        rows = delivery.message._delivery.rows
        if any(claims.is_suspect(row) for row in rows):
            return  # lost before, by a claim of unknown outcome: at the limit that counts as none
        key = (delivery.popper, pipe_id)
        if group.firsts.get(key, -1) >= seq:
            # A claim is a run: the message before it came to the popper that had claimed both.
            claimer = came_to.get(max((each for each in came_to if each < seq), default=-1))
            if claimer not in (None, delivery.popper):
                came_to[seq] = claimer
                return
            raise BrokenPromiseError(
                f"{delivery.place} was first delivered after {group.firsts[key]}"
            )
        group.firsts[key] = seq

    def _check_order(self, batch: list[Delivery]) -> None:
        """On a strict queue all that was pushed before is acked, dead, or in the same batch: since
        before it was claimed; or, if it was claimed ahead together with some of that, by now."""
        group, head = batch[0].group, batch[0]
        by = NEVER if head.message._delivery.settled else head.claimed
        together = {delivery.sent for delivery in batch}
        order = self.acked[group.queue]
        at = group.frontier
        while at < len(order) and order[at].acked < batch[-1].sent.begun:
            sent = order[at]
            place = place_of(sent.id)
            done = group.settling.get(place, NEVER) < by
            if not done and sent not in together and group.is_owed(sent, place):
                if not self.is_gone(group, place):
                    raise BrokenPromiseError(
                        f"{head.place} was delivered to {group.name} before {sent.id} was acked"
                    )
                done = True
            at += 1
            if done and at == group.frontier + 1:
                group.frontier = at
        pipe_id, seq = head.place
        for start, end, acked in self._rows(
            "SELECT start_seq, end_seq, acked FROM claims WHERE group_id = ? AND pipe_id = ?"
            " AND start_seq < ? AND state < 2",
            (group.id, pipe_id, seq),
        ):
            left = RangeSet.run(start, min(end, seq)) - RangeSet.from_bytes(acked)
            if left:
                raise BrokenPromiseError(f"{head.place} was delivered before {left} was done")

    def is_gone(self, group: GroupView, place: Place) -> bool:
        # That all of a pipe was done was checked when it was retired.
        return place[0] in self.consumed or place in self.facts[group.id]

    def _is_leaving(self, group: GroupView, place: Place) -> bool:
        """Whether somebody has begun to make a dead letter of a message."""
        return bool(
            self._rows(
                "SELECT 1 FROM claims WHERE group_id = ? AND pipe_id = ? AND start_seq <= ?"
                " AND ? < end_seq AND failure LIKE '%\"leaving\"%'",
                (group.id, place[0], place[1], place[1]),
            )
        )

    # --- what actors say of messages ------------------------------------------------------------

    def settling(self, batch: Sequence[Delivery], *, anew: bool = False) -> None:
        """An ack begins. anew: those that were tried before were refused."""
        now = self.tick()
        for delivery in batch:
            delivery.settling = now if anew else min(delivery.settling, now)
            group = delivery.group
            group.settling[delivery.place] = min(group.settling.get(delivery.place, NEVER), now)

    def committed(self, batch: Sequence[Delivery]) -> None:
        """A commit returned."""
        now = self.tick()
        for delivery in batch:
            delivery.settled = now
            delivery.group.settled.setdefault(delivery.place, now)
            for other in delivery.group.deliveries[delivery.place]:
                if other is not delivery and other.claimed > delivery.claimed:
                    self._check_fence(delivery, other)
        self.limits_of_keys.committed(batch)

    def giving(self, batch: Sequence[Delivery], *, uncounted: bool = False) -> None:
        """Messages begin to be given back."""
        now = self.tick()
        for delivery in batch:
            delivery.given = min(delivery.given, now)
            delivery.released |= uncounted

    def closing(self, poppers: Collection[object]) -> None:
        """Poppers begin to give back all they have out."""
        for group in self.groups.values():
            for deliveries in group.deliveries.values():
                self.giving([d for d in deliveries if d.popper in poppers and not d.dated])

    # --- what nobody sees -----------------------------------------------------------------------

    def power_cut(self, kept: int) -> None:
        """Commits past `kept` were forgotten: first deliveries in them do not count."""
        places = {place_of(sent.id)[0] for sent in self.sent.values() if sent.acked != NEVER}
        self.cut_off |= places - self.ends.keys() - self.consumed
        for sent in self.sent.values():
            sent.reached_ms = self.reached_ms
        for group in self.groups.values():
            for place, deliveries in group.deliveries.items():
                for delivery in deliveries:
                    delivery.due_ms = -1  # a boot time of the past
                known = [d for d in deliveries if d.attempts > 1 or d.commit <= kept]
                if len(known) < len(deliveries):
                    group.deliveries[place] = known
                    group.forgotten[place] += 1
        self.look()
        self.forget_undone()

    def catalog_lost(self) -> None:
        """Only the files are left: each message comes again, to a group that starts anew."""
        for group in self.groups.values():
            group.alive = False
        self.ends.clear()
        self.is_rebuilt = True
        for sent in self.sent.values():
            sent.troubled, sent.refused = True, False

    # --- the end --------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether every pipe is retired and removed."""
        return not self._rows("SELECT 1 FROM pipes LIMIT 1")

    def leftovers(self) -> str:
        """What is still there."""
        pipes = self._rows("SELECT id, queue_id, state, end_seq FROM pipes")
        claims = self._rows(
            "SELECT group_id, pipe_id, start_seq, end_seq, state, due_ms, deliveries FROM claims"
        )
        return f"pipes {pipes}, claims {claims}"

    def finish(self) -> None:
        """Everybody got everything; nothing is left over."""
        for group in self.groups.values():
            if group.alive and not is_dead_letter_name(group.queue):
                for sent in self.sent.values():
                    if sent.queue == group.queue:
                        self._check_fate(group, sent)
        if self.is_rebuilt:
            self._check_rebuilt()
        else:
            self.settle_up()
        self.check_unpublished()
        for table in ("pipes", "cursors", "claims", "moves"):
            if rows := self._rows(f"SELECT * FROM {table}"):
                raise BrokenPromiseError(f"left over in {table}: {rows}")
        if leases := self._rows("SELECT name FROM leases WHERE name LIKE 'pop:%'"):
            raise BrokenPromiseError(f"locks of pipes that are gone are left over: {leases}")
        if names := sorted(self._world.platter.names):
            raise BrokenPromiseError(f"files are left over: {names}")

    def _check_rebuilt(self) -> None:
        """No queue is missing of which there were messages in files."""
        queues = {group.queue for group in self.groups.values() if group.alive}
        for sent in self.sent.values():
            kept = [place for place in sent.places if place[0] not in self.consumed]
            if sent.acked != NEVER and kept and sent.queue not in queues:
                raise BrokenPromiseError(f"{kept} (acknowledged) was lost with the catalog")

    def _check_fate(self, group: GroupView, sent: Sent) -> None:
        dead = self.dead.get((f"{group.queue}~{group.name}~dead", sent.payload), set())
        owed = [place for place in sent.places if group.is_owed(sent, place)]
        once = f"{group.queue}~{group.name}~dead" not in self.merging
        if once and dead and any(place in group.settled for place in sent.places):
            if len(sent.places) > 1 or self.is_rebuilt:
                return  # it was there twice, as its push was told
            if sent.spilled and sent.dedup_id and self.may_come_twice(sent):
                return  # what a spool holds has a place when it is read, and may die before
            raise BrokenPromiseError(
                f"{sent.id or owed} was committed by {group.name}, and is dead too"
            )
        for place in owed:
            if place in group.settling or place in self.facts[group.id] or dead:
                continue
            word = "acknowledged" if sent.acked != NEVER else "visible"
            raise BrokenPromiseError(f"{place} ({word}) never came to {group.name}, nor is it dead")
