"""Pauses: processes stopped past their leases are passed over, and find out when they go on."""

from __future__ import annotations

import pytest

import cassq
from tests.faults.actors import Act
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, drain, numbers, payloads, push, reap


def sealed(client: cassq.Client, queue: cassq.Queue) -> bool:
    reap(client)
    return queue.stats().pipes["open"] == 0


def test_a_stopped_pushers_pipe_is_sealed_after_its_lease_and_it_goes_on_in_another(
    client: cassq.Client, act: Act, url: str
) -> None:
    queue = client.create_queue("jobs", lease=0.5)
    pusher = act("push_on_word", url)
    pusher.expect("ready")
    pusher.say(b"before")
    pusher.expect("pushed")
    pusher.stop()
    pusher.say(b"while it slept")
    eventually("its pipe is sealed", lambda: sealed(client, queue))
    assert payloads(drain(queue.popper())) == [b"before"]
    pusher.go_on()
    eventually("it has pushed", lambda: len(pusher.reports("pushed")) == 2)
    first, second = (found[1].partition(":")[0] for found in pusher.reports("pushed"))
    assert first != second
    assert payloads(drain(queue.popper())) == [b"while it slept"]
    pusher.say(None)
    pusher.expect("done")
    assert queue.audit().findings == []


@pytest.mark.waits(reason="its lease of three seconds would run out twice")
def test_a_pusher_that_shows_life_is_never_sealed(client: cassq.Client, act: Act, url: str) -> None:
    queue = client.create_queue("jobs", lease=3.0)  # a busy machine stands still for two, at most
    pusher = act("push_on_word", url)
    pusher.expect("ready")
    pusher.say(b"only")
    pusher.expect("pushed")
    catalog = client.ports.catalog
    end_ms = catalog.now_ms() + 7000

    def long_after() -> bool:
        reap(client)
        return catalog.now_ms() > end_ms

    eventually("more than two leases pass", long_after)
    assert queue.stats().pipes["open"] == 1


@pytest.mark.parametrize("consistency", ["ap", "cp"])
@pytest.mark.parametrize("meanwhile", ["held", "done"])
def test_a_stopped_popper_learns_that_it_lost_its_claim(
    client: cassq.Client, act: Act, url: str, consistency: str, meanwhile: str
) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.3, consistency=consistency)
    push(queue, *numbers(5))
    stopped = act("pop_and_hold", url, "default", 5)
    stopped.expect("got")
    stopped.stop()
    queue.update(claim_timeout=60)  # what is taken over is kept
    mine = queue.popper()
    taken = eventually("its claim passes on", lambda: mine.pop(5))
    assert [(m.payload, m.attempts) for m in taken] == [(p, 2) for p in numbers(5)]
    if meanwhile == "done":
        mine.commit(taken)
    stopped.go_on()
    stopped.say("commit")
    eventually("it has tried", lambda: stopped.reports("lost") or stopped.reports("committed"))
    assert stopped.reports("lost")
    if meanwhile == "held":
        mine.commit(taken)
    audit = queue.audit()
    assert audit.findings == []
    assert audit.groups["default"].committed == 5


def test_a_stopped_popper_may_still_commit_a_claim_that_was_not_taken(
    client: cassq.Client, act: Act, url: str
) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.2)
    push(queue, *numbers(5))
    stopped = act("pop_and_hold", url, "default", 5)
    stopped.expect("got")
    stopped.stop()
    catalog = client.ports.catalog
    end_ms = catalog.now_ms() + 400
    eventually("its deadline passes", lambda: catalog.now_ms() > end_ms)
    stopped.go_on()
    stopped.say("commit")
    stopped.expect("committed")
    assert queue.audit().groups["default"].committed == 5


def test_a_strict_queue_passes_a_stopped_pusher(client: cassq.Client, act: Act, url: str) -> None:
    queue = client.create_queue("jobs", consistency="cp", lease=0.5)
    pusher = act("push_on_word", url)
    pusher.expect("ready")
    pusher.say(b"1")
    pusher.expect("pushed")
    pusher.stop()
    mine = queue.pusher()
    mine.push(b"2")
    pusher.say(b"3")
    pusher.go_on()
    eventually("it has pushed", lambda: len(pusher.reports("pushed")) == 2)
    mine.push(b"4")
    assert payloads(drain(queue.popper())) == [b"1", b"2", b"3", b"4"]
