"""Deduplication: pushes of one dedup id within the window are one message."""

from __future__ import annotations

from typing import Any

import pytest

import cassq
from cassq import pipes
from cassq.base.clock import ManualClock
from cassq.errors import BackendTimeoutError, ConfigError, InvalidPayloadError
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.frames import Place as At
from cassq.model.rows import Dedup
from cassq.producer.dedup import AT_ONCE, DEDUP_LENGTH_MAX, forget
from tests.integration.deadlines import in_threads
from tests.integration.fronts import Append, FrontStore, client_with, front_catalog
from tests.integration.places import Place
from tests.integration.stage import Connect, drain, payloads, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

WINDOW = 600.0


@pytest.fixture
def once(timed: cassq.Client) -> cassq.Queue:
    """A queue that remembers ids for ten minutes."""
    return timed.create_queue("jobs", dedup_window=WINDOW)


def test_a_second_push_within_the_window_is_the_first_one(once: cassq.Queue) -> None:
    with once.pusher() as pusher:
        first = pusher.push(b"1", dedup_id="order-7", headers={"kind": "order"})
        assert pusher.push(b"2", dedup_id="order-7") == first
        assert pusher.push_soon(b"3", dedup_id="order-7").result(30) == first
        other = pusher.push(b"4", dedup_id="order-8")
    assert once.pusher().push(b"5", dedup_id="order-8") == other != first
    found = drain(once.popper())
    assert [(m.payload, m.id) for m in found] == [(b"1", first), (b"4", other)]
    assert found[0].headers == {"kind": "order", "cassq-dedup": "order-7"}


@pytest.mark.parametrize(("passed", "same"), [(WINDOW - 0.001, True), (WINDOW, False)])
@pytest.mark.parametrize("forgotten", [True, False])
def test_after_the_window_the_same_id_is_a_new_message(
    once: cassq.Queue, timed: cassq.Client, clock: ManualClock, passed: float, same: bool,
    forgotten: bool,
) -> None:  # fmt: skip
    pusher = once.pusher()
    first = pusher.push(b"1", dedup_id="a")
    clock.advance(passed)
    if forgotten:
        forget(timed.ports, once.row)
    assert (pusher.push(b"2", dedup_id="a") == first) is same
    assert len(drain(once.popper())) == (1 if same else 2)


def test_an_id_is_remembered_when_its_pipe_was_retired(
    once: cassq.Queue, timed: cassq.Client
) -> None:
    with once.pusher() as pusher:
        first = pusher.push(b"1", dedup_id="a")
    drain(once.popper())
    reap(timed)
    assert once.stats().pipes["retired"] == 1
    with once.pusher() as pusher:
        assert pusher.push(b"2", dedup_id="a") == first
    assert drain(once.popper()) == []


def test_an_intent_never_written_in_a_retired_pipe_is_not_a_message(
    once: cassq.Queue, timed: cassq.Client
) -> None:
    """Its pusher died before the append; the pipe was sealed below, consumed and removed."""
    with once.pusher() as pusher:
        pipe_id = pusher.push(b"before").partition(":")[0]
    row = Dedup(once.row.id, "a", pipe_id, 1, timed.ports.catalog.now_ms())
    assert timed.ports.catalog.records.dedup(row) == row
    drain(once.popper())
    reap(timed)
    with once.pusher() as pusher:
        pusher.push(b"1", dedup_id="a")
    assert payloads(drain(once.popper())) == [b"1"]


def test_a_place_that_another_message_has_does_not_count(
    once: cassq.Queue, timed: cassq.Client
) -> None:
    with once.pusher() as pusher:
        pipe_id, _, seq = pusher.push(b"another", headers={"a": "b"}).partition(":")
        row = Dedup(once.row.id, "a", pipe_id, int(seq), timed.ports.catalog.now_ms())
        timed.ports.catalog.records.dedup(row)
        pusher.push(b"1", dedup_id="a")
    assert payloads(drain(once.popper())) == [b"another", b"1"]


def test_a_pusher_on_its_way_is_waited_for_then_passed(
    once: cassq.Queue, timed: cassq.Client
) -> None:
    """Its intent names a place in a pipe that it holds open, and where nothing comes."""
    slow, quick = once.pusher(), once.pusher()
    pipe_id = slow.push(b"before").partition(":")[0]
    timed.ports.catalog.records.dedup(
        Dedup(once.row.id, "a", pipe_id, 1, timed.ports.catalog.now_ms())
    )
    mine = quick.push(b"1", dedup_id="a")
    assert slow.push(b"2", dedup_id="a") == mine
    slow.push(b"after")
    assert sorted(payloads(drain(once.popper()))) == [b"1", b"after", b"before"]


def test_pushes_of_one_id_by_many_are_one_message(client: cassq.Client, connect: Connect) -> None:
    queue = client.create_queue("jobs", dedup_window=WINDOW)
    pushers = [connect().queue("jobs").pusher() for _ in range(4)]
    ids: list[dict[int, str]] = [{} for _ in range(8)]

    def work(number: int) -> None:
        for n in range(25):
            ids[number][n] = pushers[number // 2].push(b"%d" % n, dedup_id=f"id {n}")

    in_threads(8, work)
    assert all(found == ids[0] for found in ids)
    found = drain(queue.popper())
    assert sorted(payloads(found)) == sorted(b"%d" % n for n in range(25))
    assert {m.id for m in found} == set(ids[0].values())


def test_of_many_those_that_were_pushed_before_are_left_out(once: cassq.Queue) -> None:
    with once.pusher() as pusher:
        first = pusher.push(b"1", dedup_id="a")
        ids = pusher.push_many(
            [b"2", b"3", b"4", b"5", b"6"],
            dedup_ids=["a", "b", None, "b", "c"],
            headers=[None, {"kind": "x"}, None, None, None],
            keys=[b"2", b"3", b"4", b"5", b"6"],
        )
        again = pusher.push_many([b"7", b"8", b"9"], dedup_ids=["c", "d", "a"])
        assert pusher.push(b"10", dedup_id="b") == ids[1]
    assert len(ids) == 5
    assert (ids[0], ids[3]) == (first, ids[1])
    assert (again[0], again[2]) == (ids[4], first)
    found = drain(once.popper())
    expected = {first: b"1", ids[1]: b"3", ids[2]: b"4", ids[4]: b"6", again[1]: b"8"}
    assert {m.id: m.payload for m in found} == expected
    assert len(found) == len(expected)
    reported = {m.payload: (m.key, m.headers) for m in found}
    assert reported[b"3"] == (b"3", {"kind": "x", "cassq-dedup": "b"})
    assert reported[b"4"] == (b"4", {})


@pytest.mark.parametrize("forgotten", [True, False])
def test_after_the_window_many_are_new_messages(
    once: cassq.Queue, timed: cassq.Client, clock: ManualClock, forgotten: bool
) -> None:
    pusher = once.pusher()
    old = pusher.push_many([b"1", b"2"], dedup_ids=["a", "b"])
    clock.advance(WINDOW / 2)
    young = pusher.push(b"3", dedup_id="c")
    clock.advance(WINDOW / 2)
    if forgotten:
        forget(timed.ports, once.row)
    new = pusher.push_many([b"4", b"5", b"6"], dedup_ids=["c", "a", "b"])
    assert new[0] == young
    assert not set(new) & set(old)
    assert sorted(payloads(drain(once.popper()))) == [b"1", b"2", b"3", b"5", b"6"]


def test_many_go_over_the_ends_of_appends_and_pipes(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", dedup_window=WINDOW, max_pushes_per_pipe=1_800)
    count = 2 * AT_ONCE + 10
    names = [f"id {n}" for n in range(count)]
    with queue.pusher() as pusher:
        # Those at the ends of appends and pipes are there already.
        ends = (0, 1_795, 1_801, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, count - 1)
        early = {n: pusher.push(b"early", dedup_id=names[n]) for n in ends}
        ids = list(pusher.push_many([b"%d" % n for n in range(count)], dedup_ids=names))
        assert list(pusher.push_many([b"again"] * count, dedup_ids=names)) == ids
    assert {n: ids[n] for n in early} == early
    found = {m.id: m.payload for m in drain(queue.popper())}
    assert len(found) == queue.stats().pushed == count
    expected = [b"early" if n in early else b"%d" % n for n in range(count)]
    assert [found[message_id] for message_id in ids] == expected


def test_many_ids_pushed_by_many_are_one_message_each(
    client: cassq.Client, connect: Connect
) -> None:
    queue = client.create_queue("jobs", dedup_window=WINDOW)
    pushers = [connect().queue("jobs").pusher() for _ in range(4)]
    ids: list[dict[int, str]] = [{} for _ in range(4)]

    def work(number: int) -> None:
        for first in range(0, 200, 20):
            # Each in another order, so that they take ids from one another.
            part = [(first + step * 7 * (number + 1)) % 200 for step in range(20)]
            names = [f"id {n}" for n in part]
            pushed_ids = pushers[number].push_many([b"%d" % n for n in part], dedup_ids=names)
            ids[number].update(zip(part, pushed_ids, strict=True))

    in_threads(4, work)
    found = {m.payload: m.id for m in drain(queue.popper())}
    assert queue.stats().pushed == len(found)
    for pushed_ids in ids:
        assert all(found[b"%d" % n] == message_id for n, message_id in pushed_ids.items())


def test_a_column_of_dedup_ids_has_one_for_each(once: cassq.Queue) -> None:
    with pytest.raises(InvalidPayloadError, match="2 payloads came with 1 dedup_ids"):
        once.pusher().push_many([b"1", b"2"], dedup_ids=["a"])
    with pytest.raises(InvalidPayloadError, match="dedup_id"):
        once.pusher().push_many([b"1", b"2"], dedup_ids=["a", ""])
    assert once.stats().pushed == 0


def test_a_delayed_push_is_remembered_too(once: cassq.Queue, clock: ManualClock) -> None:
    pusher = once.pusher()
    first = pusher.push(b"1", dedup_id="a", delay=10)
    assert pusher.push(b"2", dedup_id="a") == first
    assert once.popper().pop() == []
    clock.advance(10)
    assert payloads(drain(once.popper())) == [b"1"]


def test_ids_are_of_one_queue(once: cassq.Queue, timed: cassq.Client) -> None:
    other = timed.create_queue("other", dedup_window=WINDOW)
    first = once.pusher().push(b"1", dedup_id="a")
    assert other.pusher().push(b"1", dedup_id="a") != first


@pytest.mark.parametrize("retired", [True, False])
def test_a_push_that_was_broken_off_before_its_append_loses_nothing(
    place: Place, retired: bool
) -> None:
    """An interrupt right after the intent: the place it names is not given to another message."""
    armed = False

    def interrupt(verb: str) -> None:
        nonlocal armed
        if armed and verb == "records.dedup":
            armed = False
            raise KeyboardInterrupt

    with client_with(place, catalog=lambda real: front_catalog(real, interrupt)) as client:
        queue = client.create_queue("jobs", dedup_window=WINDOW)
        pusher = queue.pusher()
        pusher.push(b"before")
        armed = True
        with pytest.raises(KeyboardInterrupt):
            pusher.push(b"1", dedup_id="a")
        pusher.push(b"after")
        popper = queue.popper()
        assert sorted(payloads(drain(popper))) == [b"after", b"before"]
        if retired:
            pusher.close()
            reap(client)
            pusher = queue.pusher()
        pusher.push(b"2", dedup_id="a")
        assert payloads(drain(popper)) == [b"2"]


@pytest.mark.parametrize("applied", [True, False])
def test_a_push_of_unknown_outcome_is_reported_and_its_retry_looks_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, applied: bool
) -> None:
    """It is not carried over to another pipe: it would be in both, whatever its id."""
    silent = False

    def answers(append: Append) -> At:
        found = append() if applied or not silent else At(0, 0)
        if silent:
            raise BackendTimeoutError("no answer", outcome_unknown=True)
        return found

    def seal(*ports: Any) -> At | None:
        if silent:
            raise BackendTimeoutError("no answer")
        return seal_pipe(*ports)

    monkeypatch.setattr(pipes, "seal_pipe", seal)
    with client_with(place, store=lambda real: FrontStore(real, answers)) as client:
        queue = client.create_queue("jobs", dedup_window=WINDOW)
        pusher = queue.pusher()
        pusher.push(b"before")
        silent = True
        with pytest.raises(BackendTimeoutError) as caught:
            pusher.push(b"once", dedup_id="a")
        assert caught.value.outcome_unknown
        silent = False
        pusher.push(b"once", dedup_id="a")
        assert sorted(payloads(drain(queue.popper()))) == [b"before", b"once"]


def test_an_id_needs_a_window(queue: cassq.Queue) -> None:
    with pytest.raises(ConfigError, match="dedup_window") as caught:
        queue.pusher().push(b"x", dedup_id="a")
    assert "dedup_window=600" in caught.value.hint


@pytest.mark.parametrize("dedup_id", ["", "x" * (DEDUP_LENGTH_MAX + 1), 7, b"a"])
def test_an_invalid_id_is_refused(once: cassq.Queue, dedup_id: str) -> None:
    with pytest.raises(InvalidPayloadError, match="dedup_id"):
        once.pusher().push(b"x", dedup_id=dedup_id)
    assert once.stats().pushed == 0


def test_a_row_that_names_another_s_message_does_not_count(
    once: cassq.Queue, timed: cassq.Client
) -> None:
    """Its pusher died before it wrote there, and another's message has got the place since."""
    pusher = once.pusher()
    other = pusher.push(b"1", dedup_id="other")
    pipe_id, _, seq = other.partition(":")
    catalog = timed.ports.catalog
    catalog.records.dedup(Dedup(once.id, "mine", pipe_id, int(seq), catalog.now_ms()))
    mine = pusher.push(b"2", dedup_id="mine")
    assert mine != other
    pusher.close()
    assert [(m.payload, m.id) for m in drain(once.popper())] == [(b"1", other), (b"2", mine)]
