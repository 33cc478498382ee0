"""What a group that limits each key is promised: how many of a key are in hand, how often one
comes, and that no key waits for another.

That no key waits is looked at in the poppers that have lanes, as nobody else knows who has which,
and only where nothing fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cassq.model.scaling import key_lane_of
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.checks.model import NEVER, Delivery, GroupView, Place, place_of

if TYPE_CHECKING:
    from tests.simulation.checks.checker import Checker
    from tests.simulation.worlds.world import World

KNOWN_MS = 1100  # after which the popper with a lane knows what was pushed, or settled


class KeyLimits:
    """Follows the deliveries of each key of each group of one run."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world, self._checker = world, checker

    def check(self, group: GroupView, batch: Sequence[Delivery]) -> None:
        """A popper has handed these messages out just now."""
        for key in dict.fromkeys(each.sent.key for each in batch):
            if key is None:
                continue
            mine = [each for each in batch if each.sent.key == key]
            if group.limit_per_key:
                self._check_in_hand(group, key)
            if group.interval_ms:
                self._check_interval(group, key, mine)
            group.last_of[key] = mine[-1]

    def _check_in_hand(self, group: GroupView, key: bytes) -> None:
        """No more are in consumers' hands than the limit."""
        out = {each.place for each in self._of_key(group, key) if self._is_out(each)}
        if len(out) > group.limit_per_key:
            raise BrokenPromiseError(
                f"{group.name} has {sorted(out)} of {key!r}, and may have {group.limit_per_key}"
            )

    def _check_interval(self, group: GroupView, key: bytes, mine: Sequence[Delivery]) -> None:
        """They come at least as far apart as the rate says, so that in no time more come than it
        allows: counted from when the same popper handed the one before out; or, if it was another
        popper, from when that one wrote it down, as it may have been stopped then."""
        old, new = group.last_of.get(key), mine[0]
        if old is not None:
            apart_ms = new.claimed_ms - old.claimed_ms
            if old.popper is new.popper:
                apart_ms = new.came_ms - old.came_ms
            if apart_ms < group.interval_ms:
                raise BrokenPromiseError(
                    f"{new.place} of {key!r} came to {group.name} {apart_ms} ms after"
                    f" {old.place}, not {group.interval_ms} ms"
                )
        if len(mine) > 1:
            places = [each.place for each in mine]
            raise BrokenPromiseError(f"{places} of {key!r} came to {group.name} at once")

    def _of_key(self, group: GroupView, key: bytes) -> Iterator[Delivery]:
        for deliveries in group.deliveries.values():
            yield from (each for each in deliveries if each.sent.key == key)

    def _is_out(self, delivery: Delivery) -> bool:
        """Whether a consumer has it, and it is valid."""
        now_ms = self._world.scheduler.clock.boot_ms()
        is_open = delivery.settling == delivery.given == NEVER and now_ms < delivery.due_ms
        return is_open and not self._checker.is_gone(delivery.group, delivery.place)

    def committed(self, batch: Sequence[Delivery]) -> None:
        """A commit returned, so that other messages of their keys may come."""
        now_ms = self._world.scheduler.clock.boot_ms()
        for each in batch:
            if each.sent.key is not None:
                each.group.freed_ms[each.sent.key] = now_ms

    # --- other keys go on -------------------------------------------------------------------------

    def found_nothing(self, popper: Any, started_ms: int) -> None:
        """A pop that began then has found nothing: no key of the popper's lanes could go on for a
        while, unless the group has limits of its own, or a dead letter of the key may hold it, or
        did until a moment ago."""
        claimer = popper._claimer
        if popper.lanes is None or claimer.paused or claimer.rules.limited:
            return
        if not self._world.calm or self._world.scenario.popping_threads:
            return
        group = self._checker.groups[popper._group().id]
        lanes = popper.lanes.lanes
        now_ms = popper._catalog.now_ms()
        begun_ms = {
            number: started_ms - now_ms + lane._line._first_ms
            for number, lane in enumerate(lanes)
            if lane.is_held and lane._known and lane is not popper.lanes._drained
        }
        unsettled = Counter(self._unsettled_keys(group))
        dead = set(self._keys_of_the_dead(group)) if self._world.scenario.holding else set()
        for sent in self._checker.acked[group.queue]:
            key, place = sent.key, place_of(sent.id)
            if key is None or key in dead or sent.due_ms or place in group.deliveries:
                continue
            number = key_lane_of(key, len(lanes))
            if number not in begun_ms or unsettled[key] >= (group.limit_per_key or NEVER):
                continue
            if self._checker.is_gone(group, place) or not group.is_owed(sent, place):
                continue
            free_ms = max(begun_ms[number], sent.acked_ms, group.freed_ms.get(key, 0))
            if (last := group.last_of.get(key)) is not None:
                free_ms = max(free_ms, last.came_ms + group.interval_ms)
            if started_ms - free_ms > KNOWN_MS:
                raise BrokenPromiseError(
                    f"a popper of {group.name} found nothing, though {place} of {key!r} could come"
                    f" since {started_ms - free_ms} ms"
                )

    def _unsettled_keys(self, group: GroupView) -> Iterator[bytes]:
        """The keys of messages that were delivered, one for each that is not settled."""
        for place, deliveries in group.deliveries.items():
            if deliveries and not self._is_settled(group, place):
                yield from (key for key in [deliveries[0].sent.key] if key is not None)

    def _keys_of_the_dead(self, group: GroupView) -> Iterator[bytes | None]:
        facts = self._checker.facts[group.id]
        for sent in self._checker.acked[group.queue]:
            fact = facts.get(place_of(sent.id))
            if fact is not None and fact.kind == "dead":
                yield sent.key

    def _is_settled(self, group: GroupView, place: Place) -> bool:
        return place in group.settled or self._checker.is_gone(group, place)
