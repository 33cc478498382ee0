"""Gateways and clients are killed, clocks set and connections cut: nothing that was answered is
lost, and a FIFO queue keeps the order of each group."""

from __future__ import annotations

from pathlib import Path

import pytest

import cassq
from tests.integration.gateway.asking import Asker, served
from tests.integration.gateway.storm import stormed
from tests.integration.gateway.storm_clients import Said
from tests.integration.gateway.storm_judge import StormJudge

SECONDS = 45.0
# What clients may say of one message after another, by the clock.
WELL = (
    *(Said(1.0, "asked", "a-0"), Said(2.0, "sent", "a-0"), Said(3.0, "seen", "a-0", 2.5)),
    *(Said(4.0, "ended", "a-0"), Said(5.0, "deleted", "a-0")),
    *(Said(1.0, "asked", "a-1"), Said(2.0, "sent", "a-1"), Said(6.0, "seen", "a-1", 5.5)),
    *(Said(7.0, "ended", "a-1"), Said(8.0, "deleted", "a-1")),
)


@pytest.mark.long(reason="three gateways and programs are killed for a minute")
@pytest.mark.parametrize(("name", "seed"), [("storm", 1), ("storm.fifo", 2)])
def test_what_gateways_answered_holds_while_they_are_killed(
    url: str, client: cassq.Client, tmp_path: Path, name: str, seed: int
) -> None:
    if name.endswith(".fifo"):

        async def create(sqs: Asker) -> None:
            await sqs.create(name, FifoQueue="true")

        served(url, create)
        queue = client.queue(name)
    else:
        queue = client.create_queue(name, sick_check=False, max_deliveries=1_000_000)
    storm = stormed(url, name, tmp_path, SECONDS, seed)
    judge, left = storm.judge, queue.stats().groups["default"]
    found = f"{storm.kills} kills, {storm.program_kills} of clients, {dict(judge.counts)}"
    print(found)
    assert judge.wrong == [], found
    assert judge.lost == set(), found
    assert storm.kills >= 5, found
    assert storm.program_kills >= 3, found
    assert judge.deleted, found
    assert any(body.startswith("p") for body in judge.sent), found
    assert left.waiting + left.pending == 0, found
    assert queue.audit().findings == []


def test_a_judge_finds_nothing_wrong_with_a_queue_that_is_well() -> None:
    judge = StormJudge(reversed(WELL), fifo=True)
    assert (judge.wrong, judge.lost) == ([], set())


def test_a_judge_leaves_open_what_was_not_answered() -> None:
    killed = Said(8.5, "asked", "b-0"), Said(9.0, "seen", "b-0", 8.7), Said(9.5, "ended", "b-0")
    again = Said(40.0, "seen", "b-0", 39.0)
    for more in (killed[:1], killed[:2], killed, (*killed, again)):
        judge = StormJudge((*WELL, *more), fifo=True)
        assert (judge.wrong, judge.lost) == ([], set())


@pytest.mark.parametrize(
    ("without", "more", "wrong"),
    [
        (("asked", "a-1"), (), "a-1 was invented"),
        (("ended", "a-0"), (), "a-1 came before a-0"),
        (("", ""), (Said(9.0, "seen", "a-0", 8.0),), "a-0 came again after its deletion"),
        (("", ""), (Said(3.5, "seen", "a-0", 3.0),), "a-0 came while another had it"),
        (("", ""), (Said(9.0, "wrong", "an answer"),), "an answer"),
    ],
)
def test_a_judge_finds_what_must_not_be(
    without: tuple[str, str], more: tuple[Said, ...], wrong: str
) -> None:
    said = [each for each in WELL if (each.what, each.body) != without]
    judge = StormJudge([*said, *more], fifo=True)
    assert [each for each in judge.wrong if wrong in each]


def test_a_judge_misses_what_is_lost() -> None:
    """Also the last messages, after which nothing comes."""
    judge = StormJudge([each for each in WELL if each.at < 6], fifo=False)
    assert judge.lost == {"a-1"}
