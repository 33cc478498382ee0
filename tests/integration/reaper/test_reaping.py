"""The reaper over all queues: several at once, leases, what it leaves alone, what heals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

import cassq
from cassq.alerts.targets import AlertTarget
from cassq.base.clock import ManualClock
from cassq.catalog.port import pipe_lock
from cassq.errors import BackendError, UsageError
from cassq.model.rows import ClaimState
from cassq.reaper import DONE, LEASE_MS, Action
from cassq.reaper.actions import Scope
from cassq.reaper.rollup import AT_ONCE
from tests.integration.deadlines import eventually, in_threads
from tests.integration.places import Place
from tests.integration.stage import Connect, alone, drain, extents, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def counted_actions(actions: list[Action]) -> Counter[tuple[str, str, str]]:
    return Counter((action.verb, action.queue, action.outcome) for action in actions)


def test_a_client_reaps_all_queues_or_some(client: cassq.Client) -> None:
    client.reaper.dry_run = True  # also for the housekeeper
    queues = [client.create_queue(name) for name in ("a", "b", "c")]
    for queue in queues:
        push(queue, *numbers(3))
        with queue.popper() as popper:
            popper.commit(popper.pop(10))
    planned = [a for a in client.reap(["b"], dry_run=True) if a.verb != "rollup"]
    assert counted_actions(planned) == {("retire", "b", "planned"): 1}
    client.reaper.dry_run = False
    done = client.reap(["b"]) + client.reap()
    retired = [action for action in done if action.outcome == DONE]
    assert {action.queue for action in retired} <= {"a", "b", "c"}
    eventually("every pipe is retired", lambda: (client.reap(), not extents(client))[1])


def test_the_locks_of_an_exclusive_group_go_with_its_pipes(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    queue.create_group("one", exclusive=True)
    ids = push(queue, *numbers(3))
    for group in ("default", "one"):
        drain(queue.popper(group))
    rows = client.ports.catalog.queues.groups(queue.id)
    (group_id,) = [row.id for row in rows if row.name == "one"]
    lock = pipe_lock(group_id, ids[0].partition(":")[0])
    eventually("the pipe is retired", lambda: (client.reap(), not extents(client))[1])
    leases = client.ports.catalog.leases
    for _ in range(2):  # nothing is known of it, and nothing stays
        assert leases.take(lock, "me", 1000) == 1
        leases.drop(lock, "me")


def test_a_queue_that_is_not_there_is_named(client: cassq.Client) -> None:
    with pytest.raises(cassq.errors.QueueNotFoundError, match="'nope'"):
        client.reap(["nope"])


def test_a_pass_that_is_not_there_is_named(client: cassq.Client) -> None:
    with pytest.raises(UsageError, match="'sweeep'"):
        client.reaper.reap(only=("sweeep",))


def test_a_pass_that_another_is_in_the_middle_of_is_left_to_it(
    client: cassq.Client, connect: Connect
) -> None:
    alone(client)
    queue = client.create_queue("jobs")
    push(queue, *numbers(3))
    drain(queue.popper())
    catalog = client.ports.catalog
    assert catalog.leases.take("reaper:retire", "another", LEASE_MS) is not None
    assert [a for a in client.reaper.reap() if a.verb == "retire"] == []
    assert len(extents(client)) == 1
    # Some queues, that somebody asked for, are not.
    assert [a.outcome for a in client.reap(["jobs"]) if a.verb == "retire"] == [DONE]


def test_the_lease_of_a_reaper_that_died_lapses(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs")
    push(queue, *numbers(3))
    drain(queue.popper())
    assert client.ports.catalog.leases.take("reaper:retire", "a dead one", 50) is not None
    eventually("others go on", lambda: (client.reaper.reap(), not extents(client))[1])


def test_a_lease_is_given_back_after_the_pass_also_when_it_fails(client: cassq.Client) -> None:
    catalog = client.ports.catalog
    client.create_queue("jobs")
    alone(client)
    client.reaper.reap()
    for name in client.reaper.names:
        assert catalog.leases.take(f"reaper:{name}", "another", 1) is not None


@pytest.mark.parametrize("whole", [True, False])
def test_several_reapers_at_once_do_each_thing_once(
    client: cassq.Client, connect: Connect, whole: bool
) -> None:
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False)
    for n in range(30):
        push(queue, b"%d" % n)
    popper = queue.popper()
    reapers = [connect() for _ in range(4)]
    actions: list[Action] = []

    def reap_for_long(number: int) -> None:
        reaper = reapers[number].reaper
        rows = None if whole else reapers[number].ports.catalog.queues.listed()
        for _ in range(20):
            actions.extend(reaper.reap(rows))

    # Half is committed, a third of the rest is spent.
    messages = [message for _ in range(30) for message in popper.pop(1)]
    popper.commit(messages[:20])
    popper.rollback(messages[20:])
    in_threads(4, reap_for_long)
    client.reap()
    done = [a for a in actions if a.outcome == DONE and a.verb in ("retire", "rollback")]
    assert max(Counter((a.verb, a.subject) for a in done).values(), default=0) <= 1
    assert queue.audit().findings == []
    letters = payloads(drain(client.queue("jobs~default~dead").popper()))
    assert sorted(letters) == sorted(m.payload for m in messages[20:])


class TwoClients:
    """Two clients, each with a popper, on one clock. begun: the passes that they begin, in order.

    pass_s: how long each pass of the first one takes; after it the second tries to begin passes.
    """

    def __init__(self, one: cassq.Client, two: cassq.Client, clock: ManualClock) -> None:
        self.one, self.two, self._clock = one, two, clock
        self.begun: list[tuple[int, str]] = []
        self.pass_s = 0.0

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run_one(name: str, scope: Scope, **_: object) -> list[Action] | None:
            self.begun.append((1, name))
            self._clock.advance(self.pass_s)
            self.two.runtime.reap_in_passing()
            return []

        def run_two(name: str, scope: Scope, **_: object) -> list[Action] | None:
            self.begun.append((2, name))
            return []

        monkeypatch.setattr(self.one.reaper, "run", run_one)
        monkeypatch.setattr(self.two.reaper, "run", run_two)

    def round_of(self, number: int) -> list[tuple[int, str]]:
        return [(number, name) for name in self.one.reaper.names]


@pytest.fixture
def two(
    timed: cassq.Client, clock: ManualClock, place: Place, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TwoClients]:
    timed.create_queue("jobs").popper()
    with cassq.Client(place.url, place.open(clock), clock) as other:
        other.runtime.housekeeper.stop()
        other.queue("jobs").popper()
        both = TwoClients(timed, other, clock)
        both.watch(monkeypatch)
        yield both


@pytest.mark.parametrize("pass_s", [0.01, 0.99, 3.99])
def test_no_client_begins_passes_in_passing_while_another_is_at_them(
    two: TwoClients, clock: ManualClock, pass_s: float
) -> None:
    two.pass_s = pass_s
    rest_s = two.one.runtime.reap_in_passing()
    clock.advance(rest_s - 0.001)
    two.two.runtime.reap_in_passing()
    assert two.begun == two.round_of(1)
    clock.advance(0.001)
    two.two.runtime.reap_in_passing()
    assert two.begun == two.round_of(1) + two.round_of(2)


def test_a_client_whose_pass_outlasted_its_lease_leaves_the_rest_to_the_next(
    two: TwoClients,
) -> None:
    two.pass_s = LEASE_MS / 1000
    two.one.runtime.reap_in_passing()
    assert two.begun == [*two.round_of(1)[:1], *two.round_of(2)]


def test_what_is_free_does_not_hide_what_is_held_too_long(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Hundreds of rows that were given back stand before it in line, and nobody pops."""
    queue = timed.create_queue("jobs", claim_timeout=60, max_claim_messages=1)
    push(queue, *numbers(310))
    popper = queue.popper()
    messages = [message for _ in range(310) for message in popper.pop(1)]
    popper.release(messages[:300])
    clock.advance(60)
    (group,) = timed.ports.catalog.queues.groups(queue.row.id)

    def held() -> int:
        timed.reap(["jobs"])
        pipe_id = messages[0].id.partition(":")[0]
        rows = timed.ports.catalog.claims.rows(group.id, pipe_id)
        return sum(row.state is ClaimState.HELD for row in rows)

    eventually("what is held is freed", lambda: held() == 0)


def test_a_pass_reports_what_failed_and_does_the_rest(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    alone(client)
    for n in range(3):
        push(queue, b"%d" % n)
    catalog = client.ports.catalog
    pipes = catalog.pipes.live(queue.row.id)
    drain(queue.popper())
    retire, failing = catalog.pipes.retire, pipes[1].id

    def retire_but_one(pipe_ids: Sequence[str], groups_version: int) -> list[str]:
        if failing in pipe_ids:
            raise BackendError("no luck")
        return retire(pipe_ids, groups_version)

    catalog.pipes.retire = retire_but_one  # type: ignore[method-assign]
    try:
        actions = [a for a in client.reap(["jobs"]) if a.verb == "retire"]
    finally:
        catalog.pipes.retire = retire  # type: ignore[method-assign]
    assert {a.subject: a.outcome for a in actions}[failing] == "failed"
    assert len(extents(client)) == 1


# --- the passes that nobody hurries -----------------------------------------------------------


def test_what_is_too_old_is_removed_where_nobody_pops(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", message_ttl=0.05)
    alone(client)
    push(queue, *numbers(10))

    def expired() -> int:
        client.reap(["jobs"])
        return queue.stats().groups["default"].expired

    eventually("it expires", lambda: expired() == 10)
    assert [a for a in client.reap() if a.verb == "expire"] == [], "nothing is told of nothing"
    assert queue.audit().findings == []


def test_what_is_too_much_goes_to_the_dead_letters_where_nobody_pushes(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs")
    push(queue, *numbers(10))
    queue.update(max_length=4, overflow="drop-oldest")
    eventually("six go", lambda: (client.reap(), queue.stats().groups["default"].dead)[1] == 6)


def test_old_dedup_ids_are_forgotten(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", dedup_window=0.05)
    alone(client)
    with queue.pusher() as pusher:
        pusher.push(b"x", dedup_id="1")

    def forgotten() -> bool:
        actions = client.reap(["jobs"])
        return any(a.verb == "expire" and a.detail == "1 removed" for a in actions)

    eventually("it is forgotten", forgotten)


def test_every_minute_is_noted_by_the_first_pass(client: cassq.Client) -> None:
    """Of very many queues a pass notes as many as its patience allows; the next goes on."""
    alone(client)
    names = [f"q{number}" for number in range(12)]
    for name in names:
        client.create_queue(name)
    client.reaper.patience = 0.0
    most = 1 if client.ports.sharing is None else AT_ONCE  # side by side
    noted: list[str] = []
    while len(set(noted)) < len(names):  # a minute may end in between
        actions = [a for a in client.reaper.reap() if a.verb == "rollup"]
        assert len(actions) <= most
        assert actions, f"only {noted} were noted"
        noted += [action.queue for action in actions]
    assert set(noted) == set(names)


def test_no_alerts_are_sent_unless_targets_are_named(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", alert_oldest_age=0.1)
    push(queue, b"x")

    def told_of() -> list[str]:
        actions = client.reaper.reap(dry_run=True, only=("alert",))
        return [action.queue for action in actions]

    assert told_of() == []
    client.reaper.targets = (AlertTarget("log"),)
    assert eventually("it is old", told_of) == ["jobs"]
