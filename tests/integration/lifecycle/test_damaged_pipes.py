"""A damaged pipe has a way forward: what can be read behind the damage is delivered, what cannot
is on record as lost, and only by an explicit command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import cassq
from cassq.alerts.rules import findings
from cassq.alerts.watch import look
from cassq.cli.main import main
from cassq.errors import CassqError, CorruptionError, UsageError
from cassq.extents.port import ExtentMissingError
from tests.integration.stage import (
    alone,
    drain,
    numbers,
    payloads,
    pipe_file,
    reap,
)
from tests.shell import Done

pytestmark = pytest.mark.embedded_only(reason="it damages the files of pipes")


def pipe_of(ids: list[str]) -> str:
    return ids[0].partition(":")[0]


def frames(queue: cassq.Queue, count: int, size: int = 5, **options: float) -> str:
    """A sealed pipe of so many frames; its id."""
    with queue.pusher() as pusher:
        ids = [
            each
            for first in range(0, count * size, size)
            for each in pusher.push_many(numbers(size, first=first), **options)
        ]
    return pipe_of(ids)


def flip(path: Path, position: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 0x40
    path.write_bytes(damaged)


def spoil(client: cassq.Client, pipe_id: str, *numbers: int) -> None:
    """Damage the bodies of these frames."""
    path = pipe_file(client, pipe_id)
    for number in numbers:
        flip(path, header_at(path, number) + 36)


def header_at(path: Path, number: int) -> int:
    """Where the header of the nth frame begins."""
    data, at = path.read_bytes(), 0
    for _ in range(number + 1):
        at = data.index(b"CQF1", at + 1)
    return at


def pop_all(popper: cassq.Popper) -> tuple[list[bytes], list[CassqError]]:
    found: list[bytes] = []
    errors: list[CassqError] = []
    empty = 0
    while empty < 2:
        try:
            messages = popper.pop(7)
        except (CorruptionError, ExtentMissingError) as exc:
            errors.append(exc)
            assert len(errors) < 10
            continue
        empty = 0 if messages else empty + 1
        popper.commit(messages)
        found += payloads(messages)
    return found, errors


Harm = Callable[[Path], None]
HARMS: dict[str, Harm] = {
    "a payload": lambda path: flip(path, path.read_bytes().rindex(b"17")),
    "a magic": lambda path: flip(path, header_at(path, 3)),
    "a length": lambda path: flip(path, header_at(path, 3) + 13),
    "a base seq": lambda path: flip(path, header_at(path, 3) + 16),
    "a count": lambda path: flip(path, header_at(path, 3) + 8),
    "a checksum": lambda path: flip(path, header_at(path, 3) + 24),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("policy", [{}, {"consistency": "cp"}], ids=["ap", "cp"])
def test_messages_behind_damage_are_delivered_only_after_the_command(
    client: cassq.Client, harm: str, policy: dict[str, str]
) -> None:
    queue = client.create_queue("jobs", **policy)
    bad = frames(queue, 6)
    HARMS[harm](pipe_file(client, bad))
    found, errors = pop_all(queue.popper())
    assert (found, len(errors)) == (numbers(15), 1)
    cost = queue.skip_damage(bad, dry_run=True)
    assert [each[:2] for each in cost.damaged] == [(15, 20)]
    assert (cost.lost, cost.groups["default"].readable, cost.skipped) == (5, 10, False)
    assert pop_all(queue.popper())[0] == []  # looking has changed nothing
    assert not queue.audit().balanced
    done = queue.skip_damage(bad)
    assert (done.lost, done.skipped) == (5, True)
    assert pop_all(queue.popper()) == (numbers(10, first=20), [])
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.lost, stats.waiting, stats.pushed) == (25, 5, 0, 30)
    audit = queue.audit()
    assert audit.findings == []
    assert (audit.groups["default"].lost, audit.pushed) == (5, 30)
    reap(client)
    assert queue.pipes() == []
    assert queue.stats().groups["default"].lost == 5
    assert queue.audit().findings == []


def test_damage_in_several_places_costs_no_more_than_what_is_damaged(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    bad = frames(queue, 10)
    path = pipe_file(client, bad)
    spoil(client, bad, 4, 5, 9)
    flip(path, header_at(path, 0))
    assert queue.skip_damage(bad).lost == 20
    whole = [*numbers(15, first=5), *numbers(15, first=30)]
    assert pop_all(queue.popper()) == (whole, [])
    assert queue.audit().findings == []


@pytest.mark.waits(reason="a damaged pipe is looked at again every five seconds")
def test_a_running_popper_goes_on_by_itself(queue: cassq.Queue, client: cassq.Client) -> None:
    bad = frames(queue, 4)
    spoil(client, bad, 1)
    popper = queue.popper()
    found, errors = pop_all(popper)
    assert (found, len(errors)) == (numbers(5), 1)
    queue.skip_damage(bad)
    while len(found) < 15:
        messages = popper.pop(100, wait=20.0)
        popper.commit(messages)
        found += payloads(messages)
    assert found == [*numbers(5), *numbers(10, first=10)]


def test_what_was_claimed_before_is_cut_where_it_can_be_read(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    """Rows that begin before the damage, and are free, held, and acked in part."""
    bad = frames(queue, 6)
    popper = queue.popper()
    messages = popper.pop(22)
    popper.commit(messages[3:5])
    popper.release(messages[:3])
    popper.rollback(messages[5:12])
    spoil(client, bad, 1)
    spoil(client, bad, 3)
    done = queue.skip_damage(bad)
    assert (done.lost, done.groups["default"].held) == (5, 5)
    popper.commit(messages[15:18])  # what is held may yet be committed
    popper.close()  # the rest is given back
    assert queue.skip_damage(bad).lost == 2
    assert sorted(pop_all(queue.popper())[0]) == sorted(
        [*numbers(3), *numbers(5, first=10), *numbers(10, first=20)]
    )
    stats = queue.stats().groups["default"]
    assert (stats.lost, stats.committed, stats.pushed) == (7, 23, 30)
    assert queue.audit().findings == []


def test_each_group_loses_only_what_it_has_not_had(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    bad = frames(queue, 4)
    queue.create_group("slow")
    popper = queue.popper()
    popper.commit(popper.pop(8))
    spoil(client, bad, 1)
    done = queue.skip_damage(bad)
    assert {name: each.lost for name, each in done.groups.items()} == {"default": 2, "slow": 5}
    assert pop_all(queue.popper())[0] == numbers(10, first=10)
    assert len(pop_all(queue.popper("slow"))[0]) == 15
    assert queue.audit().findings == []


def test_delayed_messages_behind_damage_keep_their_due_times(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    with queue.pusher() as pusher:
        pusher.push(b"bad", delay=3600)
        ids = [pusher.push(payload, delay=3600) for payload in numbers(3)]
    bad = pipe_of(ids)
    spoil(client, bad, 0)
    assert queue.skip_damage(bad).lost == 1
    assert queue.popper().pop(10) == []
    stats = queue.stats().groups["default"]
    assert (stats.delayed, stats.lost) == (3, 1)
    assert queue.cancel(ids[1])
    assert queue.audit().findings == []


@pytest.mark.parametrize("sealed", [True, False])
def test_a_missing_file_is_lost_as_a_whole(
    client: cassq.Client, queue: cassq.Queue, sealed: bool
) -> None:
    pusher = queue.pusher()
    bad = pipe_of(pusher.push_many(numbers(10)))
    popper = queue.popper()
    messages = popper.pop(4)
    if sealed:
        pusher.close()
        pusher = queue.pusher()
    pipe_file(client, bad).unlink()
    assert queue.look_into_pipe(bad).lost == 6
    done = queue.skip_damage(bad)
    assert (done.messages, done.lost, done.groups["default"].held) == (10, 6, 4)
    pusher.push(b"later")  # what is pushed now is not into the file that is gone
    popper.commit(messages[:1])
    popper.close()
    assert queue.skip_damage(bad).lost == 3
    assert pop_all(queue.popper()) == ([b"later"], [])
    pusher.close()
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.lost, stats.waiting, stats.pushed) == (2, 9, 0, 11)
    assert queue.audit().findings == []
    reap(client)
    assert queue.audit().findings == []


def test_a_damaged_header_costs_nothing(queue: cassq.Queue, client: cassq.Client) -> None:
    bad = frames(queue, 2)
    flip(pipe_file(client, bad), 30)
    assert pop_all(queue.popper())[0] == []
    found = queue.look_into_pipe(bad)
    assert found.header
    assert found.damaged == ()
    assert queue.skip_damage(bad).lost == 0
    assert pop_all(queue.popper()) == (numbers(10), [])


def test_another_pipes_file_is_left_as_it_is(queue: cassq.Queue, client: cassq.Client) -> None:
    one, other = frames(queue, 2), frames(queue, 2)
    data = pipe_file(client, one).read_bytes()
    pipe_file(client, other).write_bytes(data)
    assert queue.skip_damage(other).lost == 10
    assert pipe_file(client, other).read_bytes() == data
    assert pop_all(queue.popper())[0] == numbers(10)


def test_bytes_in_a_payload_are_never_taken_for_a_frame_of_another_pipe(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    one = frames(queue, 3)
    foreign = pipe_file(client, one).read_bytes()[4096:]
    with queue.pusher() as pusher:
        ids = [pusher.push(foreign), pusher.push(b"whole")]
    bad = pipe_of(ids)
    path = pipe_file(client, bad)
    flip(path, header_at(path, 0))  # so that it is looked for the next frame at each byte
    assert queue.skip_damage(bad).lost == 1
    assert b"whole" in pop_all(queue.popper())[0]


def test_a_pipe_that_is_whole_is_left_alone(queue: cassq.Queue) -> None:
    good = frames(queue, 2)
    done = queue.skip_damage(good)
    assert (done.skipped, done.lost, done.damaged) == (False, 0, ())
    assert pop_all(queue.popper())[0] == numbers(10)


def test_a_pipe_of_another_queue_or_none_is_refused(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    other = frames(client.create_queue("other"), 1)
    for pipe_id in (other, "none"):
        with pytest.raises(UsageError, match="has no pipe"):
            queue.skip_damage(pipe_id)
    with pytest.raises(UsageError, match="there is no pipe"):
        client.queue_of_pipe("none")
    assert client.queue_of_pipe(other).name == "other"


def test_messages_given_up_are_explained_and_alerted(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    bad = frames(queue, 2)
    spoil(client, bad, 1)
    queue.skip_damage(bad)
    step = queue.explain(f"{bad}:7").groups["default"][0]
    assert step.state == "lost"
    assert "damaged" in step.happened[0]
    kinds = {
        finding.kind: finding.values["lost"]
        for snapshot in look(client.ports, [queue.row]).view.snapshots
        for finding in findings(snapshot, 0)
        if "lost" in finding.values
    }
    assert kinds["lost"] == 5
    info = queue.pipes()[0]
    assert (info.id, info.messages, info.left, info.lost) == (
        bad,
        10,
        {"default": 5},
        {"default": 5},
    )
    json.dumps(info.as_dict())


def test_a_retired_pipes_lost_messages_stay_in_the_sums(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    alone(client)
    bad = frames(queue, 2)
    spoil(client, bad, 1)
    queue.skip_damage(bad)
    drain(queue.popper())
    reap(client)
    (retired,) = client.ports.catalog.pipes.retired(queue.id)
    assert (retired.pushed, retired.lost) == (10, 5)
    sums = {row.group_id: row.lost for row in client.ports.catalog.pipes.retired_sums(queue.id)}
    assert sums == {"": 0, retired.group_id: 5}


# --- the command ------------------------------------------------------------------------------


Cli = Callable[..., Done]


@pytest.fixture
def cli(url: str) -> Cli:
    runner = CliRunner(env={"CASSQ_URL": url})

    def run(*words: str, code: int = 0) -> Done:
        result = runner.invoke(main, words)
        assert result.exit_code == code, result.output
        return Done(result.exit_code, result.stdout_bytes, result.stderr)

    return run


def test_the_command_lists_shows_and_skips(
    queue: cassq.Queue, client: cassq.Client, cli: Cli
) -> None:
    bad, good = frames(queue, 4), frames(queue, 1)
    assert b"DAMAGED" not in cli("pipe", "list", "jobs").out
    spoil(client, bad, 1)
    listed = [each["id"] for each in cli("pipe", "list", "jobs", "--json").json()]
    assert listed == [bad, good]
    (found,) = cli("pipe", "list", "jobs", "--damaged", "--json", code=1).json()
    assert (found["id"], found["unreadable"], found["left"]) == (bad, 5, {"default": 20})
    cli("pipe", "show", good)
    shown = cli("pipe", "show", bad, code=1).out.decode()
    assert "5 messages cannot be read" in shown
    assert "seqs 5 to 9" in shown
    printed = cli("pipe", "skip", bad, "--dry-run", "--json").json()
    assert (printed["lost"], printed["skipped"]) == (5, False)
    assert "--yes" in cli("pipe", "skip", bad, code=2).err  # nobody can be asked
    assert queue.stats().groups["default"].lost == 0
    assert cli("pipe", "skip", bad, "--yes").out == f"gave up 5 messages of pipe {bad}\n".encode()
    assert "nothing was done" in cli("pipe", "skip", good, "--yes").out.decode()
    assert cli("stats", "jobs", "--json").json()["groups"]["default"]["lost"] == 5
    assert b"LOST" in cli("stats").out
    assert cli("audit", "jobs", "--json").json()["groups"]["default"]["lost"] == 5
    assert "there is no pipe 'none'" in cli("pipe", "show", "none", code=2).err
