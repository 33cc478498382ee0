"""Whereabouts: where one message is for one group, what happened to it, what comes next. Pure.

`MessageState` is what the catalog knows of a message at one of its places; `step_of` puts it
into words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cassq.inspect.held_keys import DEAD, FAILED, HeldKey
from cassq.lifecycle.retries import death_of
from cassq.model.claims import consumer_of, hold_ends_ms, is_doomed, is_moving, is_sick, is_spent
from cassq.model.ledger import UNFINISHED, Fate, GroupView, fates, tally_retired
from cassq.model.limits import next_us_of, permits_of, slots_of
from cassq.model.queues import is_dead_letter_name, rules_of
from cassq.model.rows import (
    Claim,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    QueueRow,
    Reason,
    Removed,
    Retired,
)
from cassq.plurals import counted

REASONS = {
    "delivery_limit": "it was delivered as often as allowed",
    "rejected": "a consumer gave it up",
    "maxlen": "the queue was full",
}
REMOVALS = {
    Reason.EXPIRED: "It expired",
    Reason.PURGED: "It was purged",
    Reason.CANCELLED: "It was cancelled",
    Reason.MERGED: "It was merged back into its queue",
    Reason.LOST: "It was damaged, and given up as lost by a command",
}
# What became of uncommitted messages of a retired pipe; their number comes before these words.
ENDS = {
    Fate.DEAD: "moved to the dead letters",
    Fate.EXPIRED: "expired",
    Fate.PURGED: "purged or cancelled",
    Fate.MERGED: "merged back",
    Fate.LOST: "damaged and given up",
}
TURN = "It waits for its turn, or for an earlier message of its key to be settled."
STAYS = "It stays among the dead letters until it is merged back, purged, or popped from there."


@dataclass(frozen=True, slots=True)
class MessageStep:
    """Where a message is, or was, for one group.

    state: "waiting", "delayed", "pending", "committed", "dead" (moved to the dead letters, or
    there, in whatever state), "merged" (moved back from there), "expired", "purged", "cancelled",
    "lost" (damaged, and given up), "skipped" (the group starts after it), "gone" (done, but no
    record says how) or "missing" (there is no such message).
    holder: the consumer that has it until `due_at`; a delayed message comes due at `due_at`.
    happened, next: sentences. failure: of the last one, if any: reason, error, consumer, first_at
    and last_at.
    """

    queue: str
    group: str
    pipe_id: str
    seq: int
    state: str
    holder: str = ""
    due_at: datetime | None = None
    deliveries: int = 0
    failure: Mapping[str, Any] = field(default_factory=dict)
    happened: tuple[str, ...] = ()
    next: tuple[str, ...] = ()


class FrameContent(NamedTuple):
    """What a frame says about a message; times in wall milliseconds, `due_ms` in catalog time."""

    id: str
    pushed_ms: int
    size: int
    headers: Mapping[str, str]
    due_ms: int | None = None
    key: bytes | None = None


class Times(NamedTuple):
    """The moment of an explanation, in catalog time, and what to add to get wall time."""

    now_ms: int
    to_wall_ms: int

    def moment(self, at_ms: int) -> datetime:
        return _moment(at_ms + self.to_wall_ms)

    def shown(self, at_ms: int) -> str:
        return said(self.moment(at_ms))


def said(when: datetime) -> str:
    """A time, for a sentence."""
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


@dataclass(frozen=True, slots=True)
class MessageState:
    """The state of a message at one place, for a group. pipe: None if it was retired; `retired`
    then has its totals. success_ms: when the group last succeeded, 0 for never. shared: the state
    of the group's rate and of its permits, which its poppers share. above: greater priorities whose
    messages go first, the greatest first. held_by: what holds its key: a dead letter, or as many
    delivered messages of the key as may be at once."""

    queue: QueueRow
    group: GroupRow
    pipe_id: str
    seq: int
    pipe: PipeRow | None = None
    end_seq: int = 0
    cursor: Cursor | None = None
    claim: Claim | None = None  # the row that covers it
    move: Move | None = None
    removed: Removed | None = None
    retired: Retired | None = None
    content: FrameContent | None = None
    success_ms: int = 0
    shared: tuple[str, str] = ("", "")
    above: tuple[int, ...] = ()
    held_by: Sequence[HeldKey] = ()

    def fate(self, now_ms: int) -> Fate | None:
        """Its fate for the group; None: there is no such message. One that was never claimed counts
        as waiting, because only its frame says when it is due."""
        rows = [self.claim] if self.claim else []
        moves = [self.move] if self.move else []
        view = GroupView(self.cursor, rows, moves, [self.removed] if self.removed else [])
        found = fates(view, self.end_seq, now_ms)
        fate = next((fate for fate, seqs in found.items() if self.seq in seqs), Fate.WAITING)
        return fate if self.seq < self.end_seq or fate is Fate.SKIPPED else None


def step_of(there: MessageState, times: Times) -> MessageStep:
    """A message's state in words."""
    words = _words(there, times)
    if is_dead_letter_name(there.queue.name) and words["state"] in UNFINISHED:
        words["state"] = "dead"
    failure = words.pop("failure", None)
    death = _death(there)
    return MessageStep(
        there.queue.name,
        there.group.name,
        there.pipe_id,
        there.seq,
        words.pop("state"),
        happened=(*_of_death(death), *words.pop("happened", ())),
        failure=failure or _record(death, 0),
        **words,
    )


def _words(there: MessageState, times: Times) -> dict[str, Any]:
    if there.pipe is None:
        return _retired(there)
    fate = there.fate(times.now_ms)
    match fate:
        case None:
            text = "No acknowledged message is at this place."
            return {"state": "missing", "happened": (text,)}
        case Fate.SKIPPED:
            return _skipped()
        case Fate.COMMITTED:
            return {"state": str(fate), "happened": ("It was committed.",)}
        case Fate.WAITING | Fate.DELAYED if there.claim is not None:
            return _free(there, there.claim, fate, times)
        case Fate.PENDING if there.claim is not None:
            return _pending(there, there.claim, times)
    if there.removed is not None:
        reason = there.removed.reason
        text = f"{REMOVALS[reason]} at {times.shown(there.removed.at_ms)}."
        return {"state": str(reason), "happened": (text,)}
    if there.move is not None and fate is Fate.DEAD:
        return _moved(there.move, times)
    return _unclaimed(there, times)


def _retired(there: MessageState) -> dict[str, Any]:
    totals = there.retired
    if totals is None or there.seq < totals.start:
        return _skipped()
    counts = tally_retired(totals).counts
    went = [f"{counts[fate]} {how}" for fate, how in ENDS.items() if counts[fate]]
    if not went:
        text = "It was committed, like everything in its pipe, which is retired."
        return {"state": "committed", "happened": (text,)}
    pushed = counted(totals.pushed, "message")
    text = f"Its pipe, of {pushed}, was retired: {', '.join(went)}."
    return {"state": "gone", "happened": (text,)}


def _skipped() -> dict[str, Any]:
    text = "The group starts after it: it was never for this group."
    return {"state": "skipped", "happened": (text,)}


def _moved(move: Move, times: Times) -> dict[str, Any]:
    at, place = times.shown(move.at_ms), f"{move.dest_pipe}:{move.dest_seq}"
    if move.reason == str(Reason.MERGED):
        text = f"It was merged back into its queue at {at}, as {place}."
        return {"state": "merged", "happened": (text,)}
    why = REASONS.get(move.reason, move.reason)
    text = f"It went to the dead letters at {at}, as {place}, because {why}."
    return {"state": "dead", "happened": (text,)}


# --- what is not done yet ---------------------------------------------------------------------


def _unclaimed(there: MessageState, times: Times) -> dict[str, Any]:
    due_ms = there.content.due_ms if there.content else None
    if due_ms is not None and due_ms > times.now_ms:
        text = [f"It will be delivered at {times.shown(due_ms)} or later."]
        due_at = times.moment(due_ms)
        return {"state": "delayed", "due_at": due_at, "next": (*text, *_limits(there, times))}
    chain = there.cursor.chain.seq if there.cursor else 0
    before = there.seq - chain
    if is_dead_letter_name(there.queue.name):
        text = [STAYS]
    elif due_ms is not None:
        text = ["It is due, and will be delivered in its turn."]
    elif before:
        noun = "message before it" if before == 1 else "messages before it"
        text = [f"It will be delivered after the {before:,} {noun} in its pipe."]
    else:
        text = ["It is the next message of its pipe to be delivered."]
    text += [*_held(there, times), *_key_rules(there), *_before(there)]
    return {"state": "waiting", "next": (*text, *_limits(there, times))}


def _held(there: MessageState, times: Times) -> tuple[str, ...]:
    """What holds the key of a message; empty if nothing does."""
    if not there.held_by:
        return ()
    held, most = there.held_by[0], len(there.held_by)
    if held.state == DEAD:
        text = f"Its key is held by the dead letter {held.message_id}: it waits until that is"
        return (f"{text} merged back or purged, or the key is released (cassq group release-key).",)
    due_at = held.due_at or times.moment(times.now_ms)
    if held.state == FAILED:
        soon = due_at <= times.moment(times.now_ms)
        again = "soon" if soon else f"at {said(due_at)} or later"
        text = f"Its key is held by message {held.message_id}, which failed, and is tried again"
        until = (
            "it waits until that is settled, dead, or given up (cassq group release-key --give-up)."
        )
        return (f"{text} {again}: {until}",)
    if there.group.policy.order == "key":
        text = f"Its key is held by message {held.message_id}, which consumer {held.holder} has"
        return (f"{text} until {said(due_at)} at least: it waits until that is settled.",)
    text = f"Consumers have {counted(most, 'message')} of its key, as many as they may at once"
    first = f"it waits for one of these; the first is {held.message_id}, of {held.holder}."
    return (f"{text} (limit_per_key): {first}",)


def _key_rules(there: MessageState) -> tuple[str, ...]:
    """What else may delay a message that has a key."""
    policy, text = there.group.policy, list[str]()
    if there.content is None or there.content.key is None:
        return ()
    if policy.rate_per_key is not None:
        text.append(f"A key gets at most {policy.rate_per_key} (rate_per_key).")
    if policy.fair:
        text.append("The key with the smallest share of what is in hand comes first (fair).")
    return tuple(text)


def _before(there: MessageState) -> tuple[str, ...]:
    """What is more urgent, and goes before it."""
    if not there.above or there.pipe is None:
        return ()
    share, own = there.queue.policy.priority_share, there.pipe.priority
    levels = " and ".join(map(str, there.above))
    text = f"Messages of priority {levels} go before it, as its own is {own}"
    if not share:
        return (f"{text}.",)
    return (f"{text}; one of {share} claims begins with the lowest priority (priority_share).",)


def _free(there: MessageState, claim: Claim, fate: Fate, times: Times) -> dict[str, Any]:
    rules = rules_of(there.queue.policy, there.group.policy)
    again = "again " if claim.deliveries else ""
    kept = _kept(there, claim, times)
    if is_moving(claim):
        text = "It was being moved; the next reader will finish the move."
    elif is_doomed(claim) or (is_spent(claim, rules.max_deliveries) and not kept):
        text = "It goes to the dead letters as soon as a popper or the reaper finds it."
    elif fate is Fate.DELAYED:
        text = f"It will be delivered {again}at {times.shown(claim.due_ms)} or later."
    else:
        text = f"It will be delivered {again}in its turn, after what was waiting when it came back."
        if claim.due_ms == 0:
            text = f"It will be delivered {again}to the next popper that asks."
        kept = (*kept, *_held(there, times), *_key_rules(there), *_before(there))
    common = {**_of_claim(claim, times), "state": str(fate)}
    if fate is Fate.DELAYED:
        common |= {"due_at": times.moment(claim.due_ms)}
    return {**common, "next": (text, *kept, *_intent(there), *_limits(there, times))}


def _kept(there: MessageState, claim: Claim, times: Times) -> tuple[str, ...]:
    """Why a failed message is retried more rarely, or is not a dead letter yet, and until when;
    empty unless its group seems to be sick."""
    rules = rules_of(there.queue.policy, there.group.policy)
    if not rules.sick_check or is_doomed(claim) or is_moving(claim):
        return ()
    if claim.deliveries < 2 or not is_sick(claim, there.success_ms):
        return ()
    ends_ms = hold_ends_ms(claim, rules.sick_hold_ms, there.success_ms)
    spent = claim.deliveries >= rules.max_deliveries
    if spent and ends_ms is not None and ends_ms <= times.now_ms:
        return ()
    why = f"nothing of group {there.group.name} has succeeded since it first failed"
    if not spent:
        return (f"It is retried more and more rarely, because {why} (sick_check).",)
    kept = (
        f"It was delivered as often as max_deliveries ({rules.max_deliveries}) allows, and is kept"
        f" because {why}: its consumers may be at fault (sick_check)."
    )
    if ends_ms is None:
        return (kept, "Its failures count again when something of the group succeeds.")
    until = times.shown(ends_ms)
    return (kept, f"As nothing of the group has ever succeeded, that ends at {until} (sick_hold).")


def _pending(there: MessageState, claim: Claim, times: Times) -> dict[str, Any]:
    rules = rules_of(there.queue.policy, there.group.policy)
    until, consumer = times.shown(claim.due_ms), consumer_of(claim.holder)
    if is_moving(claim):
        moving = f"It is being moved by {consumer}, until {until} at most."
        return {**_of_claim(claim, times), "state": "pending", "next": (moving, *_intent(there))}
    if claim.tried is not None and there.seq not in claim.tried:
        untried = replace(claim, deliveries=claim.deliveries - 1)
        text = [
            f"Consumer {consumer} claimed it ahead, until {until}, and has not handed it out.",
            *(_held(there, times) or (TURN,)),
            *_key_rules(there),
            *_stops(there, times),
        ]
        common = _of_claim(untried, times)
        return {**common, "state": "pending", "holder": consumer, "next": tuple(text)}
    now = f"Consumer {consumer} has it until {until}: delivery {claim.deliveries} of"
    text = [f"{now} {rules.max_deliveries}."]
    if claim.due_ms <= times.now_ms:
        text = [f"Consumer {consumer} had it until {until}, and has not acked it."]
    alone = claim.left_count == 1
    if claim.deliveries < rules.max_deliveries:
        wait_ms = rules.retry_ms(claim.deliveries, 0.0)
        when = f"{wait_ms / 1000:g} seconds later" if wait_ms else "at once"
        text.append(f"Unless it is acked, it will then be delivered again, {when}.")
    elif alone:
        text += _kept(there, claim, times) or (
            "Unless it is acked, it then goes to the dead letters.",
        )
    else:
        text.append("Unless it is acked, it will then be delivered once more, in a smaller piece.")
    common = _of_claim(claim, times)
    return {
        **common,
        "state": "pending",
        "holder": consumer,
        "due_at": times.moment(claim.due_ms),
        "next": (*text, *_intent(there)),
    }


def _intent(there: MessageState) -> tuple[str, ...]:
    if there.move is None:
        return ()
    where = f"{there.move.dest_pipe}:{there.move.dest_seq}"
    return (f"It is being moved to {where}; the next reader will finish the move.",)


def _limits(there: MessageState, times: Times) -> list[str]:
    """What keeps a message from being delivered now, and when it expires."""
    text = _stops(there, times)
    limit_ms = there.queue.policy.age_limit_ms
    if limit_ms is not None and there.content is not None and there.pipe is not None:
        since_ms = there.content.due_ms
        if since_ms is None:
            since_ms = max(there.content.pushed_ms - times.to_wall_ms, there.pipe.created_ms)
        text.append(f"It expires at {times.shown(since_ms + limit_ms)}.")
    return text


def _stops(there: MessageState, times: Times) -> list[str]:
    """What keeps its group from getting any message now."""
    rules, text = rules_of(there.queue.policy, there.group.policy), []
    if there.queue.policy.pop_paused:
        text.append("The queue is paused: nothing is delivered until it is resumed.")
    permits = permits_of(there.shared[1], times.now_ms)
    used = sum(count for count, _ in permits.values())
    if rules.concurrency is not None and used >= rules.concurrency:
        text.append(
            f"Consumers of group {there.group.name} have, or are about to take, as many messages as"
            f" they may at once (concurrency is {rules.concurrency:,}): it waits for one of these."
        )
    if rules.rate is not None:
        slots = slots_of(rules.rate)
        next_ms = next_us_of(there.shared[0], slots, times.now_ms * 1000) // 1000
        if next_ms > times.now_ms:
            text.append(
                f"Group {there.group.name} gets at most {rules.rate} (rate): the next slot is at"
                f" {times.shown(next_ms)}."
            )
    return text


def _of_claim(claim: Claim, times: Times) -> dict[str, Any]:
    """What a claim row says about the past."""
    failure: dict[str, Any] = json.loads(claim.failure) if claim.failure else {}
    text = [f"It was delivered {_often(claim.deliveries)}."] if claim.deliveries else []
    if failure:
        at_ms, first_ms = failure.get("at_ms", 0), failure.get("first_ms", 0)
        text.append(f"{_failed(failure)} at {times.shown(at_ms)}{_error(failure)}.")
        if first_ms and first_ms != at_ms:
            text.append(f"It failed for the first time at {times.shown(first_ms)}.")
    return {
        "deliveries": claim.deliveries,
        "failure": _record(failure, times.to_wall_ms),
        "happened": tuple(text),
    }


def _often(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _record(failure: Mapping[str, Any], to_wall_ms: int) -> dict[str, Any]:
    """A failure for the report; empty for none. to_wall_ms: what to add to its times."""
    if not failure.get("reason"):
        return {}
    last_ms = failure.get("last_ms", failure.get("at_ms", 0))
    return {
        "reason": failure["reason"],
        "error": failure.get("error", ""),
        "consumer": failure.get("consumer", ""),
        "first_at": _moment(failure.get("first_ms", last_ms) + to_wall_ms),
        "last_at": _moment(last_ms + to_wall_ms),
    }


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def _failed(failure: Mapping[str, Any]) -> str:
    who = f"Consumer {failure.get('consumer')}" if failure.get("consumer") else "A consumer"
    match failure.get("reason"):
        case "expired":
            return f"{who} let its claim expire"
        case "maxlen":
            return "It was given up because the queue was full,"
        case _ if failure.get("doomed"):
            return f"{who} gave it up"
        case _:
            return f"{who} gave it back"


def _error(failure: Mapping[str, Any]) -> str:
    return f": {failure['error']!r}" if failure.get("error") else ""


# --- dead letters -----------------------------------------------------------------------------


def _death(there: MessageState) -> dict[str, Any]:
    """The death record of a dead letter in its queue."""
    if there.content is None or not is_dead_letter_name(there.queue.name):
        return {}
    death = death_of(there.content.headers)
    numbers = ("deliveries", "first_ms", "last_ms", "at_ms", "count")
    return death if all(_is_count(death.get(name, 0)) for name in numbers) else {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 45


def _of_death(death: Mapping[str, Any]) -> list[str]:
    if not death.get("deliveries"):
        return []
    at_ms = death.get("last_ms") or death.get("at_ms") or 0
    when = said(_moment(at_ms))
    often = _often(death["deliveries"])
    text = [f"Before, it was delivered {often}; it last failed at {when}{_error(death)}."]
    if death.get("count", 1) != 1:
        text.append(f"It became a dead letter for that reason {_often(death['count'])}.")
    return text
