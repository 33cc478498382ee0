"""How many round trips to Cassandra each step of a message takes: as many as the docs say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import cassq
from cassq.base.clock import ManualClock, Stopwatch, SystemClock
from cassq.base.ids import Ids
from cassq.base.sharing import Background, Sharing
from cassq.catalog.cassandra import CassandraCatalog
from cassq.client.backends.embedded import Embedded
from cassq.consumer.claiming.claimer import LOOK_BESIDE_MS
from cassq.doorbell import PollingDoorbell
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.locks.turns import Turns

pytest.importorskip("cassandra")

from cassq.catalog.cassandra.claims.cursor_tables import LIST_PIPES
from cassq.catalog.cassandra.pipes.pipe_lists import ENTRIES
from cassq.extents.cassandra import CassandraStore, reader
from cassq.extents.cassandra.published import STALE_SECONDS
from cassq.extents.cassandra.statements import READ_FRAMES
from cassq.extents.port import ExtentReader
from tests.contract.cassandra_place import CassandraPlace
from tests.contract.catalog_cassandra.counting import CountingCql
from tests.integration.deadlines import eventually

pytestmark = pytest.mark.usefixtures("midday")

TABLE = Path(__file__).parents[3] / "docs" / "round_trips.md"
# "| push one | 2 | 1 |", with what they are in brackets.
LINE = re.compile(r"\| (?P<what>[a-z][^|]*?) \| (?P<ap>\d+)[^|]* \| (?P<cp>\d+)[^|]* \|")
KINDS = ("ap", "cp")
FIRST = "first pop, of any number of pipes"
ELSEWHERE = "pop one, of another client's pusher"
RESERVED = "pop one, reserved"
TURN_STATEMENTS = 4
RECEIPT_TRIPS = 2


@pytest.fixture
def counting(cassandra_place: CassandraPlace) -> CountingCql:
    return CountingCql(cassandra_place.keyspace)


@pytest.fixture
def client(cassandra_place: CassandraPlace, counting: CountingCql) -> Iterator[cassq.Client]:
    with still(cassandra_place, counting) as made:
        yield made


@pytest.fixture
def another(cassandra_place: CassandraPlace) -> Iterator[cassq.Client]:
    """A client like it, as another process has it."""
    with still(cassandra_place, CountingCql(cassandra_place.keyspace)) as made:
        yield made


@contextmanager
def still(
    place: CassandraPlace,
    counting: CountingCql,
    clock: ManualClock | None = None,
    background: Background | None = None,
) -> Iterator[cassq.Client]:
    """A client whose clock stands still, and that does nothing in passing: what is done once a
    second is not done here."""
    clock, ids = clock or ManualClock(), Ids()
    catalog = CassandraCatalog(counting, clock, time=place.time.of(clock))
    store, locker = CassandraStore(counting, clock), LeaseLocker(catalog, ids.client)
    turns = Turns(catalog.leases, locker, clock, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, Lifecycle(), Sharing(background), turns=turns)
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    with cassq.Client("cassandra://", embedded, clock) as made:
        made.runtime.housekeeper.stop()
        yield made


def documented() -> dict[tuple[str, str], int]:
    """(step, kind of queue) → how many round trips the docs say it takes."""
    text = TABLE.read_text(encoding="utf-8")
    return {
        (found["what"], kind): int(found[kind]) for found in LINE.finditer(text) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_takes_more_round_trips_than_the_docs_say(
    client: cassq.Client, counting: CountingCql, kind: str
) -> None:
    most: dict[tuple[str, str], int] = {}

    def count(what: str, act: Callable[[], object]) -> Any:
        before = counting.waited
        done = act()
        most[what, kind] = max(most.get((what, kind), 0), counting.waited - before)
        return done

    queue = client.create_queue("jobs", consistency=kind)
    with queue.pusher() as pusher, queue.popper() as popper:
        for _ in range(2):  # both begin
            pusher.push(b"first")
            popper.commit(popper.pop(1))
        for _ in range(3):
            count("push one", lambda: pusher.push(b"a"))
            messages = count("pop one", lambda: popper.pop(1))
            assert len(messages) == 1
            count("commit", partial(popper.commit, messages))
            count("push many, one frame", lambda: pusher.push_many([b"a"] * 100))
            messages = count("pop many of a frame", lambda: popper.pop(100))
            assert len(messages) == 100
            popper.commit(messages)
            assert not count("pop of nothing", lambda: popper.pop(1))
        pusher.push_many([b"a"] * 1000)
        for _ in range(2):  # the popper's pace is known, and it prefetches
            popper.commit(popper.pop(1))
        for _ in range(5):
            messages = count("pop one, prefetched", lambda: popper.pop(1))
            count("commit one of several prefetched", partial(popper.commit, messages))
            messages = popper.pop(1)
            count("ack", messages[0].ack)
    left_out = (FIRST, ELSEWHERE, RESERVED)
    assert most == {
        (w, k): n for (w, k), n in documented().items() if k == kind and w not in left_out
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_priority_that_is_not_used_takes_no_round_trip(
    client: cassq.Client, counting: CountingCql, kind: str
) -> None:
    """Of a queue that has a share for the least urgent, and of one whose priorities are strict:
    each step takes as many as in a queue that says nothing of priorities."""
    found: list[list[int]] = []
    settings: list[dict[str, Any]] = [{}, {"priority_share": 2}, {"priority_share": 0}]
    for number, more in enumerate(settings):
        queue = client.create_queue(f"jobs{number}", consistency=kind, **more)
        counts: list[int] = []
        with queue.pusher() as pusher, queue.popper() as popper:
            for _ in range(5):
                before = counting.waited
                pusher.push(b"a", priority=0)
                counts.append(counting.waited - before)
                popper.commit(popper.pop(1))
                counts.append(counting.waited - before)
                assert not popper.pop(1)
                counts.append(counting.waited - before)
        found.append(counts)
    assert found[0] == found[1] == found[2]
    known = documented()
    steps = ("push one", "pop one", "commit", "pop of nothing")
    assert found[0][-1] <= sum(known[step, kind] for step in steps)


def ends_after(watching: ExtentReader, seq: int) -> bool:
    return watching.published().seq > seq


@pytest.mark.parametrize(("idle_seconds", "more"), [(math.inf, 0), (-1.0, 1)], ids=["busy", "idle"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_another_client_s_pusher_is_read_together_with_the_end_of_its_pipe(
    client: cassq.Client,
    another: cassq.Client,
    counting: CountingCql,
    kind: str,
    idle_seconds: float,
    more: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While messages come; after a pause it is read when it is known to be there."""
    monkeypatch.setattr(reader, "IDLE_SECONDS", idle_seconds)
    queue = client.create_queue("jobs", consistency=kind)
    with another.queue("jobs").pusher() as pusher, queue.popper() as popper:
        pipe_id = pusher.push(b"first").partition(":")[0]
        popper.commit(eventually("the first comes", lambda: popper.pop(1)))
        # What it learns, the popper does not know.
        watching = CassandraStore(counting, SystemClock()).reader(pipe_id)
        for number in range(1, 4):
            pusher.push(b"%d" % number)
            eventually("its end is known", partial(ends_after, watching, number))
            popper._claimer.reserving.off = True  # its claim is a write
            watch = Stopwatch()
            eventually("the popper looks again", lambda of=watch: of.seconds() > STALE_SECONDS)
            counting.texts.clear()
            before = counting.waited
            messages = popper.pop(1)
            assert messages.payloads == [b"%d" % number]
            assert counting.waited - before == documented()[ELSEWHERE, kind] + more
            assert (READ_FRAMES in counting.texts) is bool(more)
            popper.commit(messages)


@pytest.mark.parametrize(("order", "more"), [("any", 0), ("key", 1)])
def test_settling_by_receipt_takes_as_many_round_trips_as_the_docs_say(
    client: cassq.Client,
    another: cassq.Client,
    counting: CountingCql,
    order: Literal["any", "key"],
    more: int,
) -> None:
    """Of the client that settles: one that neither pushes nor pops."""
    queue = another.create_queue("jobs")
    queue.create_group("ordered", order=order)
    with queue.pusher() as pusher, queue.popper("ordered") as popper:
        pusher.push_many([b"%d" % number for number in range(4)])
        receipts = [message.receipt for message in popper.pop(4)]
        mine = client.queue("jobs")
        mine.settle(receipts[0]).ack()  # it reads the policies
        for verb in (
            mine.settle(receipts[1]).ack,
            partial(mine.settle(receipts[2]).extend, 600),
            mine.settle(receipts[2]).ack,
        ):
            before = counting.waited
            verb()
            assert counting.waited - before == RECEIPT_TRIPS + more
    assert f"takes {RECEIPT_TRIPS}: a read and an LWT" in TABLE.read_text(encoding="utf-8")


def test_poppers_with_new_messages_look_five_times_a_second_for_others(
    cassandra_place: CassandraPlace, counting: CountingCql
) -> None:
    clock, background = ManualClock(), Background()
    with still(cassandra_place, counting, clock, background) as client:
        queue = client.create_queue("jobs")
        with queue.pusher() as pusher, queue.popper() as popper:
            pusher.push(b"a")
            popper.commit(popper.pop(1))
            counting.texts.clear()
            for _ in range(40):
                clock.advance(LOOK_BESIDE_MS / 4000)
                pusher.push(b"a")
                popper.commit(popper.pop(1))
            eventually("it looks", lambda: LIST_PIPES in counting.texts)
            background.close()
            assert counting.texts.count(LIST_PIPES) <= 11
    assert popper.tally.committed == 41


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_in_turn_takes_as_many_round_trips_as_the_docs_say(
    client: cassq.Client, counting: CountingCql, kind: str
) -> None:
    """The statements that nobody waits for count, too."""
    queue = client.create_queue("jobs", consistency=kind)
    with queue.pusher() as pusher, queue.popper() as popper:

        def turn() -> int:
            pusher.push(b"a")
            before = counting.waited
            messages = popper.pop(1)
            waited = counting.waited - before
            popper.commit(messages)
            return waited

        for _ in range(3):
            turn()
        counting.sent.clear()
        for _ in range(5):
            assert turn() == documented()[RESERVED, kind]
        if kind == "ap":
            # On a slow machine a pusher also looks for the seal beforehand, beside what it does.
            assert counting.sent.pop(("read", "extents")) >= 5
            assert counting.sent.total() <= 5 * (TURN_STATEMENTS - 1), counting.sent
    assert popper.tally.committed == 8


def test_what_a_popper_has_listed_its_client_does_not_list_again_for_another(
    client: cassq.Client, counting: CountingCql
) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher, queue.popper() as popper, queue.popper() as another:
        pusher.push_many([b"a"] * 4)
        popper.commit(popper.pop(1))
        another.commit(another.pop(1))  # where the group stands is read once by each
        counting.texts.clear()
        with queue.popper() as third:
            assert len(third.pop(1)) == 1
            assert ENTRIES not in counting.texts
            assert len(third.pop(2)) == 1
            assert not third.pop(1)
            assert ENTRIES in counting.texts
            counting.texts.clear()
            with queue.popper() as fourth:
                assert not fourth.pop(1)
                assert ENTRIES in counting.texts, "what was pushed since is not to be missed"


def test_to_take_over_a_lane_takes_one_round_trip_more_for_each_more_pipe(
    cassandra_place: CassandraPlace,
) -> None:
    """That which reads its messages."""
    one, seven = (taking_over(cassandra_place, f"jobs-{pipes}", pipes) for pipes in (1, 7))
    assert seven - one == 6


def taking_over(place: CassandraPlace, name: str, pipes: int) -> int:
    """How often a popper waits whose group's lane another had, which died with messages of so many
    pipes in hand."""
    counting, clock = CountingCql(place.keyspace), ManualClock()
    with still(place, counting, clock) as client:
        queue = client.create_queue(name, claim_timeout=10)
        queue.create_group("keyed", order="key")
        for number in range(pipes):
            queue.pusher().push(b"a", key=b"%d" % number)
        dead = queue.popper("keyed")
        assert len(dead.pop(pipes)) == pipes
        clock.advance(60)
        heir = queue.popper("keyed")
        before = counting.waited
        assert len(heir.pop(pipes)) == pipes
        return counting.waited - before


def test_a_commit_takes_as_many_round_trips_however_many_pipes_it_is_of(
    client: cassq.Client, counting: CountingCql
) -> None:
    queue = client.create_queue("jobs")
    waited: list[int] = []
    for pipes in (1, 2, 6):
        pushers = [queue.pusher() for _ in range(pipes)]
        for pusher in pushers:
            pusher.push_many([b"a", b"b"])
        with queue.popper() as popper:
            messages = [message for _ in pushers for message in popper.pop(2)]
            assert len({message.id.partition(":")[0] for message in messages}) == pipes
            before = counting.waited
            popper.commit(messages)
            waited.append(counting.waited - before)
    assert waited[1:] == [1, 1], "the first one does more"


@pytest.mark.parametrize(("kind", "pipes"), [("ap", 1), ("ap", 6), ("cp", 1)])
def test_a_first_pop_takes_as_many_round_trips_however_many_pipes_are_new_to_it(
    client: cassq.Client, counting: CountingCql, kind: str, pipes: int
) -> None:
    queue = client.create_queue("jobs", consistency=kind)
    for _ in range(pipes):
        queue.pusher().push_many([b"a"] * 3)
    with queue.popper() as popper:
        before = counting.waited
        messages = list(popper.pop(1))
        assert counting.waited - before == documented()[FIRST, kind]
        for _ in range(pipes):
            messages += popper.pop(3)
    assert len({message.id.partition(":")[0] for message in messages}) == pipes
