"""Planted bugs: each a small wrong part put in the place of a right one, and surely caught.

A plant names the scenario it shows in and in how many seeds at most. Parts are subclasses that a
world is built with; where a function is a module's own, it is replaced for the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.plants import wrong_keys as keys
from tests.simulation.plants import wrong_limits as limits
from tests.simulation.plants import wrong_moves as moved
from tests.simulation.plants import wrong_parts as wrong
from tests.simulation.plants import wrong_priorities as priorities
from tests.simulation.plants import wrong_writes as writes
from tests.simulation.worlds.scenario import Scenario, draw_calm, draw_scenario
from tests.simulation.worlds.world import World


@dataclass(frozen=True)
class Plant:
    """A bug. seeds: it is caught within so many; shape: what its scenario must have. calm: its
    scenario is one in which nothing fails."""

    name: str
    what: str
    seeds: int
    shape: dict[str, Any] = field(default_factory=dict)
    queues: list[str] | None = None
    parts: dict[str, Any] = field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext
    calm: bool = False

    def world(self, seed: int, *, planted: bool = True, verbose: bool = False) -> World:
        """The world of a seed with the bug, or the same without."""
        scenario = self._scenario(seed)
        world = World(seed, scenario, verbose=verbose)
        if planted:
            for name, part in self.parts.items():
                setattr(world, name, part)
        return world

    def _scenario(self, seed: int) -> Scenario:
        rng = random.Random(seed)
        drawn = draw_calm(rng) if self.calm else draw_scenario(rng, self.queues)
        roles = drawn.roles | self.shape.get("roles", {})
        policy = {
            name: settings | self.shape.get("policy", {}) for name, settings in drawn.policy.items()
        }
        if "dedup_window" not in policy[drawn.queues[0]] and "clerk" in roles:
            policy = {name: QUIET_DESK | settings for name, settings in policy.items()}
        return replace(drawn, **(self.shape | {"roles": roles, "policy": policy}))


# What the queues of a scenario with clerks are like, unless a plant says otherwise.
QUIET_DESK: dict[str, Any] = {"dedup_window": 600.0, "overflow": "drop-oldest"}

CUTS: dict[str, Any] = {"cuts": 2, "switches": 300}
CRASHES: dict[str, Any] = {"crash_rate": 0.02, "cuts": 0, "switches": 400}
PAUSES: dict[str, Any] = {"pause_rate": 0.05, "pause_ms": (100, 5000), "switches": 500}
POISON: dict[str, Any] = {"poison": 0.5, "switches": 500}
CLERKS: dict[str, Any] = POISON | {"roles": {"clerk": 2}, "switches": 800, "catalog_lost": False}
DOOM: dict[str, Any] = {"doom": 0.8, "cuts": 0, "poison": 0.8}
TEMPTED: dict[str, Any] = {"doom": 0.5, "cuts": 3}
ONCE: dict[str, Any] = {"dedup": 0.7, "roles": {"clerk": 0, "pusher": 3}, "catalog_lost": False}
DELAYS: dict[str, Any] = CLERKS | {"delayed": 0.8}
PURGES: dict[str, Any] = CLERKS | {"purging": 1.0}
REFUSES: dict[str, Any] = {
    "roles": {"pusher": 1, "popper": 1}, "catalog_lost": False, "switches": 800, "messages": 200,
    "clumsiness": 0.9, "poison": 0.0, "policy": {"max_length": 40, "overflow": "reject"},
}  # fmt: skip
RECEIPTS: dict[str, Any] = {"receipts": 0.7, "clumsiness": 0.9, "catalog_lost": False}
KEYS: dict[str, Any] = {"keys": 3, "clumsiness": 0.9, "catalog_lost": False, "cuts": 0}
LANES: dict[str, Any] = KEYS | {
    "policy": {"key_lanes": 3}, "roles": {"popper": 3}, "crash_rate": 0.0, "switches": 500,
}  # fmt: skip
LANES_IN_HAND: dict[str, Any] = LANES | {
    "policy": {"key_lanes": 3, "claim_timeout": 5.0}, "keys": 8, "messages": 400, "switches": 2000,
    "roles": {"pusher": 1, "popper": 2, "founder": 0, "visitor": 0}, "groups": {"ap": []},
    "popping_threads": 3, "delayed": 0.0, "poison": 0.0, "pause_rate": 0.0, "fault_rate": 0.0,
    "jump_rate": 0.0,
}  # fmt: skip
FAIR: dict[str, Any] = KEYS | {"keys": 8, "fair": True, "popping_threads": 0}
HELD: dict[str, Any] = KEYS | POISON | {"holding": True, "delayed": 0.0}
KEYS_BY_RECEIPT: dict[str, Any] = KEYS | RECEIPTS | {
    "keys": 2, "switches": 1000, "roles": {"popper": 2, "founder": 0, "visitor": 0},
    "groups": {"ap": []},
}  # fmt: skip
LIMITS: dict[str, Any] = {
    "policy": {"rate": "8/s", "concurrency": 2}, "roles": {"popper": 3}, "clumsiness": 0.9,
    "catalog_lost": False, "cuts": 0, "pause_rate": 0.0,
}  # fmt: skip
RATES_OF_KEYS: dict[str, Any] = KEYS | {"unordered": True, "rate_per_key": "5/s"}
CALM_KEYS: dict[str, Any] = {
    "rate_per_key": "20/m", "popping_threads": 0, "waiting": 0.0, "delayed": 0.0,
    "clumsiness": 0.1, "roles": {"popper": 1},
}  # fmt: skip
LIMITS_OF_KEYS: dict[str, Any] = KEYS | {"unordered": True, "limit_per_key": 2, "keys": 2}
URGENT: dict[str, Any] = {"priorities": 0.8, "catalog_lost": False}
SHARED: dict[str, Any] = {
    "priorities": 0.5, "delayed": 0.0, "policy": {"priority_share": 2}, "messages": 400,
}  # fmt: skip
STRICT: dict[str, Any] = {"priorities": 0.8, "delayed": 0.0, "policy": {"priority_share": 0}}
RESERVES: dict[str, Any] = {
    "reserving": True, "singly": True, "waiting": 0.9, "delayed": 0.0, "clumsiness": 0.5,
    "roles": {"pusher": 1, "popper": 3}, "groups": {"ap": []}, "cuts": 0, "catalog_lost": False,
    "switches": 2000, "messages": 200, "poison": 0.0, "crash_rate": 0.0, "pause_rate": 0.0,
    "policy": {"claim_timeout": 2.0, "max_pushes_per_pipe": 100, "sick_check": False},
}  # fmt: skip
WRITES: dict[str, Any] = {"writers": 3, "catalog_lost": False, "switches": 500}

PLANTS = [
    Plant("published-twice", "a write that was published is begun again", 20,
          WRITES, queues=["ap"], patch=writes.begun_again),
    Plant("publish-unfenced", "a write is published by whoever began it, not who did last", 100,
          WRITES, queues=["ap"], patch=writes.unfenced),
    Plant("losers-kept", "what is staged and not published stays", 20,
          WRITES, queues=["ap"], patch=writes.losers_kept),
    Plant("reservation-ignored", "a popper claims what another has reserved", 40,
          RESERVES, parts={"catalog_part": wrong.IgnoresReservations}, queues=["ap"]),
    Plant("ack-before-sync", "a push returns, its sync comes with the next append", 20,
          CUTS, parts={"disk_class": wrong.SyncsTooLate}),
    Plant("no-data-sync", "appends are never synced", 20,
          CUTS, parts={"disk_class": wrong.NeverSyncsData}),
    Plant("no-directory-sync", "names of new files are never synced", 20,
          CUTS, parts={"disk_class": wrong.NeverSyncsDirectories}),
    Plant("sync-again", "a failed sync is repeated on the same file", 60,
          CUTS | {"fault_rate": 0.03}, parts={"disk_class": wrong.SyncsAgain}),
    Plant("seal-in-the-middle", "a seal amid one push of several frames acknowledged all", 60,
          {"fuel": (1, 4), "frame_messages": 1, "cuts": 0, "crash_rate": 0.0, "pause_rate": 0.15,
           "roles": {"pusher": 4, "popper": 0, "reaper": 0, "founder": 0, "visitor": 0},
           "pause_ms": (5, 60), "messages": 2000, "switches": 2000,
           "policy": {"max_pushes_per_pipe": 100}}, ["cp"],
          patch=wrong.acknowledges_all_of_an_append),
    Plant("seal-unseen", "the pusher does not look at the seal flag", 60,
          PAUSES | {"fuel": (1, 12)}, parts={"store_class": wrong.IgnoresSeals}),
    Plant("seal-at-published-end", "the sealer does not walk on from the published end", 60,
          CUTS | {"fuel": (1, 12)}, parts={"store_class": wrong.SealsWithoutWalking}),
    Plant("end-overwritten", "a second sealer records another end", 100,
          {"fuel": (1, 25), "roles": {"pusher": 5, "popper": 1}, "cuts": 0, "crash_rate": 0.0,
           "pause_rate": 0.03, "pause_ms": (5, 60), "messages": 300, "switches": 2500},
          ["cp"], parts={"catalog_part": wrong.OverwritesEnds}),
    Plant("adopt-drops-frames", "files without a row are dropped unread", 20,
          CRASHES | {"catalog_lost": True}, parts={"store_class": wrong.ForgetsFrames}),
    Plant("acks-unsynced", "the catalog never syncs a commit", 20,
          CUTS, parts={"connection_class": wrong.NeverSyncsCommits, "log_class": wrong.NeverSyncs}),
    Plant("ack-log-unsynced", "an ack is visible, and never synced", 20,
          CUTS, parts={"log_class": wrong.NeverSyncs}),
    Plant("claim-blind", "a claim is written without compare-and-set", 20,
          {"roles": {"popper": 3}}, ["ap"], parts={"catalog_part": wrong.ClaimsBlindly}),
    Plant("take-over-early", "claims expire before their deadline", 20,
          {"roles": {"popper": 3}}, ["ap"], parts={"catalog_part": wrong.TakesOverEarly}),
    Plant("take-over-uncounted", "a take-over does not count the delivery", 20,
          PAUSES, ["ap"], parts={"catalog_part": wrong.TakesOverUncounted}),
    Plant("ack-any-version", "an ack does not look at the claim's version", 40,
          PAUSES | {"clumsiness": 0.9}, ["ap"], parts={"catalog_part": wrong.IgnoresVersions}),
    Plant("ack-fenced", "an exclusive group takes the ack of a fenced popper", 60,
          PAUSES | {"clumsiness": 0.9}, ["cp"], parts={"catalog_part": wrong.IgnoresFences}),
    Plant("ack-over-gap", "the ack offset advances over a gap", 20,
          {"clumsiness": 0.9}, ["ap"], parts={"catalog_part": wrong.AcksOverGaps}),
    Plant("group-forgets-start", "a group made now gets all there is", 40,
          {"roles": {"founder": 1}, "switches": 500}, parts={"catalog_part": wrong.ForgetsStarts}),
    Plant("receipt-of-an-earlier-delivery", "it settles the present one", 20,
          RECEIPTS, ["ap"], patch=wrong.takes_any_receipt),
    Plant("deadline-of-all", "one that is dated by receipt dates its neighbours", 40,
          RECEIPTS, ["ap"], patch=wrong.dates_neighbours_too),
    Plant("dated-given-back", "a popper gives back what has a deadline of its own", 40,
          RECEIPTS, ["ap"], patch=wrong.gives_back_what_is_dated),
    Plant("key-forgotten-at-take-over", "a failed message lets its key go on with the next popper",
          200, KEYS | CRASHES, ["ap"], patch=keys.forgets_keys_at_a_take_over),
    Plant("dead-key-let-go", "a dead letter does not hold its key", 40,
          HELD, ["ap"], patch=keys.lets_keys_of_the_dead_go_on),
    Plant("dead-key-forgotten", "a dead letter lets its key go on with the next popper", 60,
          HELD | CRASHES, ["ap"], patch=keys.forgets_the_dead_at_a_take_over),
    Plant("key-let-go", "a message that failed does not hold its key", 20,
          KEYS, ["ap"], patch=keys.lets_keys_go_on_when_a_message_fails),
    Plant("successor-early", "a keyed group reads a pusher's next pipe before the last", 20,
          KEYS, ["ap"], patch=keys.reads_all_pipes_at_once),
    Plant("tried-unwritten", "a keyed group hands out what its rows do not say is tried", 40,
          KEYS | PAUSES | CRASHES, ["ap"], patch=keys.notes_no_try),
    Plant("key-in-any-lane", "a message goes to a lane that is not its key's", 20,
          LANES, ["ap"], patch=keys.pushes_to_any_lane),
    Plant("lane-of-others", "a lane's popper claims from the pipes of all lanes", 20,
          LANES, ["ap"], patch=keys.works_for_all_lanes),
    Plant("lane-shared", "a popper begins to work for a lane without its lock", 20,
          KEYS | {"roles": {"popper": 2}}, ["ap"], patch=keys.begins_without_the_lock),
    Plant("drain-skipped", "a lane is given up with messages in hand", 40,
          LANES_IN_HAND, ["ap"], patch=keys.gives_lanes_up_at_once),
    Plant("noisy-first", "a fair group does not look at the shares of keys", 20,
          FAIR, ["ap"], patch=keys.takes_the_longest_known_key),
    Plant("share-kept", "what was given back counts as in hand in a fair group", 20,
          FAIR, ["ap"], patch=keys.counts_what_failed_as_in_hand),
    Plant("key-let-go-while-dated", "a key goes on while its message has a deadline of its own", 60,
          KEYS_BY_RECEIPT, ["ap"], patch=keys.lets_keys_go_on_while_dated),
    Plant("receipt-of-an-earlier-keyed-delivery", "a receipt outlives a release", 60,
          KEYS_BY_RECEIPT, ["ap"], patch=keys.releases_in_place_what_has_a_receipt),
    Plant("dated-forgotten-at-take-over", "a dated message's key goes on with the next popper", 60,
          KEYS_BY_RECEIPT | CRASHES, ["ap"], patch=keys.forgets_what_is_dated_at_a_take_over),
    Plant("permits-unread", "a popper counts its own messages alone", 20,
          LIMITS, ["ap"], patch=limits.reads_no_permits),
    Plant("permits-over-early", "a killed popper's permits end before its claims", 20,
          LIMITS | CRASHES, ["ap"], patch=limits.frees_permits_early),
    Plant("slots-unread", "a popper counts its own deliveries alone", 20,
          LIMITS, ["ap"], patch=limits.reads_no_slots),
    Plant("rate-of-keys-forgotten", "a popper that takes a lane hands out of every key at once", 20,
          RATES_OF_KEYS | CRASHES, ["ap"], patch=limits.forgets_rates_of_keys_at_a_take_over),
    Plant("rate-of-keys-from-the-take", "a key is due again however late its message came", 40,
          RATES_OF_KEYS | {
              "rate_per_key": "10/s", "keys": 1, "pause_rate": 0.05, "pause_ms": (100, 300),
              "fuel": (1, 3), "clumsiness": 0.0, "poison": 0.0, "delayed": 0.0, "crash_rate": 0.0,
              "switches": 3000, "groups": {"ap": []}, "policy": {"claim_timeout": 2.0},
              "roles": {"pusher": 1, "popper": 1, "founder": 0, "visitor": 0},
          }, ["ap"], patch=limits.counts_from_the_take),
    Plant("rate-of-keys-holds-up-all", "a key whose rate is over holds up the others", 40,
          RATES_OF_KEYS | CALM_KEYS, patch=limits.lets_rates_hold_up_all, calm=True),
    Plant("rate-of-keys-loses", "what waits for the rate of its key is forgotten", 20,
          RATES_OF_KEYS, ["ap"], patch=limits.forgets_what_waits_for_a_rate),
    Plant("limit-of-keys-passed", "one more of a key is in hand than its limit allows", 20,
          LIMITS_OF_KEYS, ["ap"], patch=limits.allows_one_more_of_a_key),
    Plant("limit-of-keys-failed-twice", "a message that failed makes room for two", 40,
          LIMITS_OF_KEYS, ["ap"], patch=limits.counts_what_failed_twice),
    Plant("limit-of-keys-dated", "what is dated does not count with the next popper", 60,
          LIMITS_OF_KEYS | RECEIPTS | CRASHES | {"roles": {"popper": 2}}, ["ap"],
          patch=limits.counts_nothing_that_is_dated),
    Plant("limit-of-keys-anew", "a lane that begins anew does not count what is in hand", 60,
          LIMITS_OF_KEYS | {"fault_rate": 0.02, "crash_rate": 0.0, "pause_rate": 0.0,
           "policy": {"claim_timeout": 2.0}}, ["ap"], patch=limits.forgets_what_was_in_hand),
    Plant("priority-not-buried", "a dead letter loses its priority", 40,
          URGENT | POISON, ["ap"], patch=priorities.buries_without_priority),
    Plant("priority-not-kept", "what is delivered again has lost its priority", 20,
          URGENT | {"clumsiness": 0.9}, ["ap"], patch=priorities.takes_without_priority),
    Plant("priority-passed", "pipes are claimed from by their age alone", 40,
          STRICT, patch=priorities.goes_by_age_alone, calm=True),
    Plant("share-forgotten", "what is least urgent starves behind the rest", 40,
          SHARED, patch=priorities.never_begins_at_the_least, calm=True),
    Plant("turn-behind-a-nack", "a turn goes on behind what its popper gave back", 20,
          {"turns": True, "clumsiness": 0.9, "roles": {"popper": 2}}, ["cp"],
          patch=wrong.goes_on_behind_a_nack),
    Plant("cp-successor-early", "the next pipe opens before the last is sealed", 20,
          {"roles": {"pusher": 3}, "switches": 500}, ["cp"],
          {"catalog_part": wrong.SucceedsUnsealed}, wrong.passes_turns_unsealed),
    Plant("retire-pending", "a pipe is retired with claims pending", 20,
          {"roles": {"reaper": 2}, "clumsiness": 0.9}, ["ap"], patch=wrong.retires_what_is_claimed),
    Plant("retire-pending-of-keys", "a pipe is retired with claims of a keyed group pending", 20,
          KEYS | {"roles": {"reaper": 2}}, ["ap"],
          patch=wrong.retires_what_a_keyed_group_claimed),
    Plant("retire-other-group", "a pipe is retired when one group is done", 40,
          {"roles": {"reaper": 2}, "switches": 500}, patch=wrong.retires_for_one_group),
    Plant("popper-shared", "threads that share a popper are in it at the same time", 40,
          {"popping_threads": 3, "roles": {"popper": 2}, "fuel": (1, 12), "switches": 1500},
          patch=wrong.lets_threads_into_a_popper),
    Plant("dead-letter-dropped", "a dead letter is intended and never written", 20,
          POISON, parts={"client_class": wrong.DropsDeadLetters}),
    Plant("dead-after-done", "a message is marked done before its dead letter is written", 40,
          POISON | CRASHES, parts={"client_class": wrong.MarksFirstClient}),
    Plant("dead-twice", "a burial that is taken up again does not look first", 60,
          POISON | CRASHES, parts={"client_class": wrong.BuriesTwiceClient}),
    Plant("merge-doubles", "who finishes a merge does not look what has arrived", 60,
          CLERKS | DOOM, patch=moved.finishes_blindly),
    Plant("merge-loses", "who finishes a merge takes its intents for deeds", 60,
          CLERKS | DOOM | {"switches": 1600, "crash_rate": 0.03, "pause_rate": 0.0},
          patch=moved.trusts_intents),
    Plant("merge-for-all", "what is merged back comes to every group", 40,
          CLERKS, ["ap"], patch=moved.merges_for_all),
    Plant("repoint-claimed", "a pipe is merged whole though letters of it were claimed", 60,
          CLERKS | {"roles": {"clerk": 2, "visitor": 2}},
          parts={"catalog_part": moved.RepointsClaimed}, patch=moved.repoints_unseen),
    Plant("purge-held", "a purge takes from poppers what they hold", 40,
          PURGES | {"clumsiness": 0.9}, ["ap"], patch=moved.purges_what_is_held),
    Plant("purge-other-group", "a purge for one group is one for all", 40,
          PURGES, patch=moved.purges_every_group),
    Plant("purge-unsynced", "a purge that returned is undone by a power cut", 60,
          PURGES | TEMPTED, parts={"catalog_part": moved.PurgesUnsynced}),
    Plant("removal-untold", "what is purged is marked as done and not told in the ledger", 40,
          PURGES, parts={"catalog_part": moved.RemovesUntold}),
    Plant("cancel-delivered", "a message that was delivered before is cancelled", 60,
          DELAYS | {"clumsiness": 0.9}, ["ap"], patch=moved.cancels_what_was_delivered),
    Plant("cancel-one-group", "a cancel says it is done after the first group", 40,
          DELAYS, ["ap"], patch=moved.cancels_for_the_first_group),
    Plant("expire-early", "messages expire before they are old enough", 40,
          {"roles": {"clerk": 0, "reaper": 2}, "policy": {"message_ttl": 1.0}},
          patch=moved.expires_early),
    Plant("due-late", "delayed messages with falling due times are delivered late", 60,
          calm=True, patch=wrong.schedules_what_is_due_sooner_late),
    Plant("limit-passed", "a full queue takes what comes between two looks", 40,
          REFUSES, ["ap"], patch=wrong.forgets_what_it_let_through),
    Plant("refused-and-pushed", "a push that a full queue refuses is there in part", 20,
          REFUSES, patch=wrong.pushes_what_it_refuses),
    Plant("kept-too-shortly", "what is consumed goes before its time", 20,
          {"roles": {"reaper": 2}, "switches": 800, "clumsiness": 0.1,
           "policy": {"retain_consumed": 3.0, "max_push_time_of_pipe": 0.2}},
          patch=wrong.keeps_nothing),
    Plant("dedup-blind", "an intent of a dedup id is taken over without a look", 20,
          ONCE | DOOM, patch=moved.pushes_over_intents),
    Plant("dedup-believed", "an intent of a dedup id counts as its message", 40,
          ONCE | DOOM, patch=moved.believes_intents),
    Plant("dedup-overwritten", "an intent of a dedup id is written without compare-and-set", 40,
          ONCE, parts={"catalog_part": moved.DedupsBlindly}),
    Plant("dedup-unsynced", "the intent of a dedup id is not synced", 60,
          ONCE | TEMPTED, parts={"catalog_part": moved.DedupsUnsynced}),
    Plant("totals-wrong", "the totals of retired pipes leave out what was purged", 40,
          PURGES | {"roles": {"clerk": 2, "reaper": 2}}, patch=moved.counts_no_purges),
    Plant("drop-before-retire", "files are removed before their pipes are retired", 60,
          CRASHES | {"roles": {"reaper": 2}, "fuel": (1, 12)}, patch=moved.drops_before_retiring),
    Plant("cp-passed-over", "what follows dropped messages comes before what precedes them", 100,
          {"roles": {"clerk": 0}, "policy": {"max_length": 4}, "clumsiness": 0.9}, ["cp"],
          patch=moved.follows_the_last_only),
]  # fmt: skip


def plant_named(name: str) -> Plant:
    """The plant of that name; KeyError when there is none."""
    return {plant.name: plant for plant in PLANTS}[name]
