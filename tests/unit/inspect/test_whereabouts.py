"""What is said of a message for each state of its claim; pure, from rows alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cassq.inspect.held_keys import FAILED, HeldKey
from cassq.inspect.whereabouts import FrameContent, MessageState, Times, step_of
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.claims import failure_record
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import (
    Claim,
    ClaimState,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    PipeState,
    QueueRow,
    Reason,
    Removed,
    Retired,
)

NOW = Times(now_ms=100_000, to_wall_ms=0)
POLICY = QueuePolicy(max_deliveries=3, sick_check=False)
SIGHT = MessageState(
    QueueRow("q", "jobs", POLICY, 1, 1),
    GroupRow("g", "q", "default", GroupPolicy()),
    "p",
    5,
    pipe=PipeRow("p", "q", PipeState.SEALED, "", 0, 0),
    end_seq=10,
    cursor=Cursor("g", "p", Place(2, 0), Place(8, 0)),
    claim=Claim("g", "p", 4, 8, 0, ClaimState.HELD, 120_000, 1, holder="me"),
)


def seen(**claim: Any) -> MessageState:
    """The state with some of its claim's fields changed."""
    assert SIGHT.claim is not None
    return replace(SIGHT, claim=replace(SIGHT.claim, **claim))


FREE = {"state": ClaimState.FREE, "holder": ""}
ALONE = {"start": 5, "end": 6}
DOOMED = failure_record("rejected", "bad", "me", 90_000, doomed=True)


@pytest.mark.parametrize(
    ("there", "state", "said"),
    [
        (seen(), "pending", "Consumer me has it until 1970-01-01 00:02:00 UTC: delivery 1 of 3."),
        (seen(), "pending", "then be delivered again, at once"),
        (seen(due_ms=99_999), "pending", "and has not acked it"),
        (seen(tried=RangeSet([(5, 7)])), "pending", "Consumer me has it until"),
        (seen(tried=RangeSet([(6, 7)])), "pending", "for an earlier message of its key"),
        (seen(deliveries=3), "pending", "once more, in a smaller piece"),
        (seen(deliveries=3, **ALONE), "pending", "then goes to the dead letters"),
        (seen(**FREE, due_ms=0), "waiting", "delivered again to the next popper"),
        (seen(**FREE, due_ms=99_999), "waiting", "in its turn, after what was waiting"),
        (seen(**FREE, due_ms=100_001), "delayed", "again at 1970-01-01 00:01:40 UTC or later"),
        (seen(**FREE, due_ms=200_000, deliveries=0), "delayed", "It will be delivered at"),
        (seen(**FREE, due_ms=0, failure=DOOMED, **ALONE), "waiting", "goes to the dead letters"),
        (seen(**FREE, due_ms=0, deliveries=3, **ALONE), "waiting", "goes to the dead letters"),
        (seen(state=ClaimState.DONE), "committed", "It was committed"),
        (seen(acked=RangeSet([(5, 6)])), "committed", "It was committed"),
        (replace(SIGHT, seq=1, claim=None), "committed", "It was committed"),
        (replace(SIGHT, seq=9, claim=None), "waiting", "after the 1 message before it"),
        (replace(SIGHT, seq=8, claim=None), "waiting", "the next message of its pipe"),
        (replace(SIGHT, seq=10, claim=None), "missing", "No acknowledged message"),
        (replace(SIGHT, cursor=Cursor("g", "p", Place(6, 0), Place(8, 0), start=6)), "skipped",
         "The group starts after it"),
        (replace(SIGHT, removed=Removed("g", "p", 5, 6, Reason.EXPIRED, 50_000)), "expired",
         "It expired at 1970-01-01 00:00:50 UTC"),
        (replace(SIGHT, removed=Removed("g", "p", 5, 6, Reason.PURGED, 50_000)), "purged",
         "It was purged at 1970-01-01 00:00:50 UTC"),
        (replace(SIGHT, removed=Removed("g", "p", 5, 6, Reason.CANCELLED, 50_000)), "cancelled",
         "It was cancelled at 1970-01-01 00:00:50 UTC"),
        (replace(SIGHT, move=Move("g", "p", 5, "rejected", "d", 0, 50_000, settled=True)), "dead",
         "because a consumer gave it up"),
        (replace(SIGHT, move=Move("g", "p", 5, "rejected", "d", 7, 50_000)), "pending",
         "It is being moved to d:7"),
        (replace(SIGHT, pipe=None), "skipped", "starts after it"),
        (replace(SIGHT, pipe=None, retired=Retired("p", "g", "q", 0, 9, 0)), "committed",
         "is retired"),
        (replace(SIGHT, pipe=None, retired=Retired("p", "g", "q", 0, 9, 2, purged=1)), "gone",
         "of 9 messages, was retired: 2 moved to the dead letters, 1 purged or cancelled"),
    ],
)  # fmt: skip
def test_every_state_has_its_words(there: MessageState, state: str, said: str) -> None:
    step = step_of(there, NOW)
    assert step.state == state
    assert said in " ".join((*step.happened, *step.next))


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (replace(SIGHT, seq=9, claim=None), "It stays among the dead letters until"),
        (seen(), "Consumer me has it until"),
        (seen(**FREE, due_ms=200_000), "It will be delivered again at"),
    ],
)
def test_what_is_among_the_dead_letters_is_dead(there: MessageState, said: str) -> None:
    queue = replace(SIGHT.queue, name="jobs~default~dead")
    step = step_of(replace(there, queue=queue), NOW)
    assert step.state == "dead"
    assert step.next[0].startswith(said)


@pytest.mark.parametrize(
    ("due_at", "said"),
    [(90.0, "is tried again soon:"), (130.0, "again at 1970-01-01 00:02:10 UTC or later:")],
)
def test_what_waits_behind_a_failed_message_says_when_that_comes_again(
    due_at: float, said: str
) -> None:
    failed = HeldKey(b"k", "p:3", FAILED, 1, datetime.fromtimestamp(due_at, UTC))
    there = replace(SIGHT, seq=9, claim=None, held_by=(failed,))
    (found,) = (text for text in step_of(there, NOW).next if "p:3" in text)
    assert said in found


def test_what_is_spared_is_delivered_again() -> None:
    """Though its deliveries are spent: the last does not count."""
    spared = json.dumps({**json.loads(failure_record("rejected", "", "me", 1)), "spared": 2})
    there = seen(**FREE, due_ms=0, deliveries=3, failure=spared, **ALONE)
    queue = replace(SIGHT.queue, policy=QueuePolicy(max_deliveries=3))
    text = " ".join(step_of(replace(there, queue=queue), NOW).next)
    assert "It will be delivered again" in text
    assert "goes to the dead letters" not in text
    assert "goes to the dead letters" in " ".join(step_of(there, NOW).next), "without the check"


SICK = failure_record("rejected", "", "me", 90_000)
KEPT = (
    "It was delivered as often as max_deliveries (3) allows, and is kept because nothing of group"
)


@pytest.mark.parametrize(
    ("claim", "success_ms", "said", "unsaid"),
    [
        ({"deliveries": 2}, 0, "It is retried more and more rarely, because nothing of", KEPT),
        ({"deliveries": 3}, 0, KEPT, "goes to the dead letters"),
        ({"deliveries": 3}, 0, "that ends at 1970-01-01 00:11:30 UTC (sick_hold)", "count again"),
        ({"deliveries": 3}, 89_999, "Its failures count again when something", "sick_hold"),
        ({"deliveries": 3}, 90_000, "It goes to the dead letters as soon as", "sick_check"),
        ({"deliveries": 3, "state": ClaimState.HELD}, 0, KEPT, "then goes to the dead letters"),
    ],
)
def test_what_a_sick_group_keeps_says_why_and_until_when(
    claim: dict[str, Any], success_ms: int, said: str, unsaid: str
) -> None:
    there = seen(**{**FREE, "due_ms": 0, "failure": SICK, **ALONE, **claim})
    queue = replace(SIGHT.queue, policy=QueuePolicy(max_deliveries=3))
    text = " ".join(step_of(replace(there, queue=queue, success_ms=success_ms), NOW).next)
    assert said in text
    assert unsaid not in text


def test_what_was_kept_for_long_enough_goes_to_the_dead_letters() -> None:
    there = seen(**FREE, due_ms=0, failure=SICK, deliveries=3, **ALONE)
    queue = replace(SIGHT.queue, policy=QueuePolicy(max_deliveries=3, sick_hold=10))
    text = " ".join(step_of(replace(there, queue=queue), NOW).next)
    assert text == "It goes to the dead letters as soon as a popper or the reaper finds it."


def test_failures_are_reported_with_their_times() -> None:
    failure = json.dumps({**json.loads(DOOMED), "first_ms": 10_000})
    step = step_of(seen(**FREE, due_ms=0, failure=failure, **ALONE), NOW)
    assert step.happened == (
        "It was delivered once.",
        "Consumer me gave it up at 1970-01-01 00:01:30 UTC: 'bad'.",
        "It failed for the first time at 1970-01-01 00:00:10 UTC.",
    )
    assert (step.failure["error"], step.failure["consumer"]) == ("bad", "me")
    assert step.failure["first_at"].timestamp() == 10.0


@pytest.mark.parametrize("header", ["", "5", "[]", '{"deliveries": "x"}', '{"at_ms": 1e300}'])
def test_a_death_record_that_a_user_made_up_is_passed_over(header: str) -> None:
    queue = replace(SIGHT.queue, name="jobs~default~dead")
    content = FrameContent("p:5", 0, 1, {"cassq-death": header})
    step = step_of(replace(SIGHT, queue=queue, content=content), NOW)
    assert (step.state, step.failure, step.happened) == ("dead", {}, ("It was delivered once.",))
