"""A model of keyed groups: whatever pushers, consumers and poppers do, what is handed out keeps to
the group's rules, attempts are exact, and in the end everything was committed, or died, once."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.delivery import Message
from cassq.errors import ClaimLostError, ReceiptError
from cassq.model.scaling import key_lane_of
from tests.integration.places import DirectoryPlace

TIMEOUT = 2.0
KNOWN_SECONDS = 1.0  # after which a popper knows what was pushed or settled
KEYS = [None, b"a", b"b", b"c"]
INTERVALS = {"1/s": 1.0, "40/m": 1.5}


@dataclass(eq=False)
class Sent:
    """A message. tries: how often it was handed out and not released. until: while it is in the
    future, a consumer has it. dated: whatever its popper does. latest: as it was handed out last.
    back: that delivery is settled, or given back. since: when it was pushed, or settled last. dead:
    it is a dead letter, which may hold its key."""

    key: bytes | None
    pusher: int
    number: int
    tries: int = 0
    until: float = 0.0
    dated: bool = False
    back: bool = False
    done: bool = False
    dead: bool = False
    holds: bool = False
    since: float = 0.0
    latest: Message | None = None


@dataclass(eq=False)
class Member:
    """A popper, and what its consumers have. left: to those who have the receipts."""

    popper: cassq.Popper
    hands: list[tuple[Message, Sent]] = field(default_factory=list)
    left: list[tuple[Message, Sent]] = field(default_factory=list)


class KeyedGroup(RuleBasedStateMachine):
    """Two clients with a pusher each, and up to three members of a group."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="cassq-model-")
        self.clock = ManualClock()
        place = DirectoryPlace(Path(self._directory.name) / "data")
        self.client, self.other = self.clients = [
            cassq.Client(place.url, place.open(self.clock), self.clock) for _ in range(2)
        ]
        for client in self.clients:
            client.runtime.housekeeper.stop()
        self.sent: dict[bytes, Sent] = {}
        self.members: list[Member] = []
        self.receipts: list[tuple[str, Message, Sent]] = []
        self.by_line: dict[tuple[int, bytes | None], list[Sent]] = defaultdict(list)

    @initialize(
        group=st.sampled_from(
            [
                {"order": "key"},
                {"order": "key", "fair": True},
                {"order": "key", "on_dead": "hold"},
                {"limit_per_key": 2},
                {"limit_per_key": 3, "fair": True},
                {"rate_per_key": "40/m"},
                {"rate_per_key": "1/s", "order": "key"},
                {"rate_per_key": "40/m", "limit_per_key": 2},
                {"fair": True},
            ]
        ),
        pipe=st.sampled_from([2, 5, 1000]),
        lanes=st.sampled_from([1, 1, 3]),
        strict=st.sampled_from([False, False, True]),
    )
    def begin(self, group: dict[str, object], pipe: int, lanes: int, *, strict: bool) -> None:
        self.group, self.strict = group, strict
        self.interval = INTERVALS.get(str(group.get("rate_per_key")), 0.0)
        self.came: dict[bytes, float] = {}  # by key, when one was handed out last
        self.queue = self.client.create_queue(
            "jobs",
            consistency="cp" if strict else "ap",
            claim_timeout=TIMEOUT,
            max_deliveries=1000,
            sick_check=False,
            max_pushes_per_pipe=pipe,
            key_lanes=1 if strict else lanes,
        )
        self.queues = [self.queue, self.other.queue("jobs")]
        self.queue.create_group("keyed", **group)  # type: ignore[arg-type]
        self.pushers = [queue.pusher() for queue in self.queues]
        self.join(elsewhere=False)

    # --- what may happen --------------------------------------------------------------------------

    @rule(pusher=st.integers(0, 1), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def push(self, pusher: int, keys: list[bytes | None]) -> None:
        payloads = [b"%d" % (len(self.sent) + at) for at in range(len(keys))]
        self.pushers[pusher].push_many(payloads, keys=keys)
        for payload, key in zip(payloads, keys, strict=True):
            line = self.by_line[self._order(pusher), key]
            self.sent[payload] = Sent(key, pusher, len(line), since=self._now())
            line.append(self.sent[payload])

    def _order(self, pusher: int) -> int:
        """Whose messages those of a pusher are in order with."""
        return 0 if self.strict else pusher

    @precondition(lambda self: len(self.members) < 3)
    @rule(elsewhere=st.booleans())
    def join(self, *, elsewhere: bool) -> None:
        """By either client."""
        popper = self.queues[elsewhere].popper("keyed", keep_alive=None)
        self.members.append(Member(popper))

    @rule(at=st.integers(0, 2), count=st.integers(1, 9))
    def pop(self, at: int, count: int) -> None:
        member = self.members[at % len(self.members)]
        found = member.popper.pop(count)
        for message in found:
            sent = self.sent[message.payload]
            self._check(message, sent)
            if sent.key is not None:
                since = self._now() - self.came.get(sent.key, -self.interval)
                assert since >= self.interval, "another one of its key came just now"
                self.came[sent.key] = self._now()
            sent.tries += 1
            sent.until = self._now() + TIMEOUT
            sent.latest, sent.dated, sent.back = message, False, False
            member.hands.append((message, sent))
        if not found:
            self._check_nothing_is_free(member)

    @rule(
        at=st.integers(0, 2),
        verb=st.sampled_from(["ack", "ack", "nack", "release", "dead"]),
        n=st.randoms(),
    )
    def settle(self, at: int, verb: str, n: random.Random) -> None:
        member = self.members[at % len(self.members)]
        if not member.hands:
            return
        message, sent = member.hands.pop(n.randrange(len(member.hands)))
        try:
            if verb == "nack":
                message.nack(delay=n.choice([0, 1, 5]))
            else:
                getattr(message, verb)()
            member.popper.flush()
        except ClaimLostError:
            assert sent.dated or not self._in_hand(message, sent), "it was taken away too early"
            return
        if sent.dated or (sent.back and sent.latest is message):
            return  # its receipt was used: this says nothing any more
        assert sent.latest is message, "an earlier delivery of it was settled"
        self._settled(sent, verb)

    @rule(at=st.integers(0, 2), n=st.randoms())
    def work(self, at: int, n: random.Random) -> None:
        """A popper's consumers take all they can get, settle it, and ask for more soon."""
        self.pop(at, 20)
        for _ in range(len(self.members[at % len(self.members)].hands)):
            self.settle(at, "ack", n)
        self.wait(1)
        self.pop(at, 20)

    @rule(at=st.integers(0, 2), kept=st.booleans(), n=st.randoms())
    def leave_receipt(self, at: int, kept: bool, n: random.Random) -> None:
        """A consumer writes a receipt down, for others; it may forget the message then."""
        member = self.members[at % len(self.members)]
        if not member.hands:
            return
        message, sent = found = member.hands[n.randrange(len(member.hands))]
        try:
            self.receipts.append((message.receipt, message, sent))
        except ClaimLostError:
            assert sent.dated or not self._in_hand(message, sent), "it was taken away too early"
        if not kept:
            member.hands.remove(found)
            member.left.append(found)

    @precondition(lambda self: self.receipts)
    @rule(
        verb=st.sampled_from(["ack", "ack", "nack", "release", "dead", "extend", "extend"]),
        n=st.randoms(),
    )
    def settle_by_receipt(self, verb: str, n: random.Random) -> None:
        """Of late or of long ago."""
        receipt, message, sent = n.choice(self.receipts[-6:])
        settlement, seconds = self.queue.settle(receipt), n.choice([0, 1, 5, 30])
        try:
            if verb == "extend":
                settlement.extend(seconds)
            elif verb == "nack":
                settlement.nack(delay=n.choice([0, 1, 5]))
            else:
                getattr(settlement, verb)()
        except ReceiptError:
            assert not self._in_hand(message, sent), "its receipt is valid"
            return
        assert sent.latest is message, "the receipt of an earlier delivery was valid"
        assert not sent.back, "the receipt of a message that was given back was valid"
        if verb == "extend":
            sent.dated, sent.until = True, self._now() + seconds
        else:
            self._settled(sent, verb)

    def _in_hand(self, message: Message, sent: Sent) -> bool:
        return sent.latest is message and not sent.back and sent.until > self._now()

    def _settled(self, sent: Sent, verb: str) -> None:
        sent.until, sent.back, sent.dated, sent.since = 0.0, True, False, self._now()
        sent.done |= verb in ("ack", "dead")
        sent.dead |= verb == "dead"
        sent.holds = sent.dead and self.group.get("on_dead") == "hold"
        sent.tries -= verb == "release"

    @precondition(lambda self: self.group.get("on_dead") == "hold")
    @rule(key=st.sampled_from(KEYS[1:]), purged=st.booleans())
    def let_go(self, key: bytes, purged: bool) -> None:
        """A key is released, or the dead letters of all are purged."""
        if purged:
            self.queue.dead_letters("keyed").purge(everything=True)
        else:
            held = [sent for sent in self.sent.values() if sent.holds and sent.key == key]
            assert self.queue.release_key("keyed", key) == len(held)
        for sent in self.sent.values():
            if sent.holds and (purged or sent.key == key):
                sent.holds, sent.since = False, self._now()

    @rule(seconds=st.sampled_from([1, 1, 3, 10]))
    def wait(self, seconds: int) -> None:
        for _ in range(2 * seconds):
            self.clock.advance(0.5)
            for client in self.clients:
                client.runtime.online().presence.maintain()
            for member in self.members:
                member.popper.maintain()

    @precondition(lambda self: len(self.members) > 1)
    @rule(at=st.integers(0, 2), killed=st.booleans())
    def leave(self, at: int, killed: bool) -> None:
        """A popper closes, or is never heard of again."""
        member = self.members.pop(at % len(self.members))
        if not killed:
            self._close(member)

    def _close(self, member: Member) -> None:
        member.popper.close()
        for message, sent in member.hands + member.left:
            if sent.latest is message and not sent.dated:
                sent.until, sent.back = 0.0, True

    # --- what must hold ---------------------------------------------------------------------------

    def _now(self) -> float:
        return self.clock.boot_ms() / 1000

    def _check(self, message: Message, sent: Sent) -> None:
        assert not sent.done, "it was committed, and came again"
        assert message.attempts == sent.tries + 1
        out = [
            each
            for each in self.sent.values()
            if each.key == sent.key and each is not sent and not each.done
            if each.until > self._now()
        ]
        if sent.key is None:
            return
        assert not any(each.holds for each in self.sent.values() if each.key == sent.key), (
            "a dead letter holds its key"
        )
        if self.group.get("order") == "key":
            earlier = self.by_line[self._order(sent.pusher), sent.key][: sent.number]
            assert all(each.done for each in earlier), "an earlier one of its key is unsettled"
            assert not out, "another one of its key is in hand"
        elif "limit_per_key" in self.group:
            assert len(out) < int(str(self.group["limit_per_key"]))

    def _check_nothing_is_free(self, member: Member) -> None:
        """A popper that found nothing has no lane with a key of which nothing was
        handed out that is not settled, and something could have been for a while."""
        lanes = member.popper.lanes
        assert lanes is not None
        count = len(lanes.lanes)
        ours = {  # and when a message of each key may have come first, because of the rate
            number: self._now() + (lane._line._first_ms - member.popper._catalog.now_ms()) / 1000
            for number, lane in enumerate(lanes.lanes)
            if lane.is_held and lane._known and lane is not lanes._drained
        }
        for key in KEYS[1:]:
            number = key_lane_of(key or b"", count)
            if number not in ours:
                continue
            mine = [sent for sent in self.sent.values() if sent.key == key]
            if any(sent.holds or (sent.latest and not sent.done) for sent in mine):
                continue
            pushed = [sent.since for sent in mine if not sent.done]
            since = max([min(pushed), *(sent.since for sent in mine if sent.done)]) if pushed else 0
            if self.interval:
                came = self.came.get(key or b"", -self.interval)
                since = max(since, ours[number], came + self.interval)
            late = pushed and self._now() - since >= KNOWN_SECONDS
            assert not late, f"{key!r} is free since {since}"

    def teardown(self) -> None:
        """Everything that is left comes, and is committed; nothing is lost on the way."""
        try:
            if hasattr(self, "queue"):
                self._drain()
        finally:
            for client in self.clients:
                client.close()
            self._directory.cleanup()

    def _drain(self) -> None:
        for member in self.members:
            self._close(member)
        self.members.clear()
        for key in KEYS[1:] if self.group.get("on_dead") == "hold" else []:
            self.queue.release_key("keyed", key or b"")
        for sent in self.sent.values():
            sent.holds = False
        self.join(elsewhere=True)
        (member,) = self.members
        for _ in range(400):
            if all(sent.done for sent in self.sent.values()):
                break
            self.pop(0, 9)
            if member.hands:
                member.popper.commit([message for message, _ in member.hands])
                for _, sent in member.hands:
                    sent.done = True
                member.hands.clear()
            else:
                self.wait(1)
        assert all(sent.done for sent in self.sent.values()), "some never came"
        dead, stats = sum(sent.dead for sent in self.sent.values()), self.queue.stats()
        assert stats.groups["keyed"].committed == len(self.sent) - dead
        assert stats.groups["keyed"].dead == dead
        assert self.queue.audit().findings == []


KeyedGroup.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestKeyedGroup = KeyedGroup.TestCase
