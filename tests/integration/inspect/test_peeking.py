"""Peeking by state: what is waiting, pending, delayed or dead, without any effect on it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import UsageError
from tests.integration.stage import alone, extents, numbers, payloads, push


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


def states(queue: cassq.Queue, state: str | None = None) -> list[tuple[bytes, str]]:
    return [(m.payload, m.state) for m in queue.peek(1000, state=state)]


@pytest.fixture
def mixed(queue: cassq.Queue) -> cassq.Queue:
    """Messages in every state; those that a popper holds are 0 and 2."""
    push(queue, *numbers(6))
    with queue.pusher() as pusher:
        pusher.push(b"timer", delay=3600)
    popper = queue.popper()
    held = {m.payload: m for m in popper.pop(5)}
    held[b"1"].ack()
    held[b"3"].nack(delay=600)
    held[b"4"].dead("broken")
    popper.flush()
    return queue


def test_every_state_is_shown_by_itself(mixed: cassq.Queue) -> None:
    assert states(mixed, "waiting") == [(b"5", "waiting")]
    assert states(mixed, "pending") == [(b"0", "pending"), (b"2", "pending")]
    assert states(mixed, "delayed") == [(b"3", "delayed"), (b"timer", "delayed")]
    assert states(mixed, "dead") == [(b"4", "dead")]


def test_without_a_state_all_that_is_not_done_is_shown(mixed: cassq.Queue) -> None:
    assert states(mixed) == [
        *((b"0", "pending"), (b"2", "pending"), (b"3", "delayed"), (b"5", "waiting")),
        (b"timer", "delayed"),
    ]


def test_a_message_shows_until_when_it_is_held_or_delayed(mixed: cassq.Queue) -> None:
    due = {m.payload: m.due_at for m in mixed.peek()}
    pushed = {m.payload: m.pushed_at for m in mixed.peek()}
    assert due[b"5"] is None
    for payload, seconds in ((b"0", 30), (b"3", 600), (b"timer", 3600)):
        found = due[payload]
        assert found is not None
        assert timedelta(0) <= found - pushed[payload] - timedelta(seconds=seconds - 1)
        assert found - pushed[payload] < timedelta(seconds=seconds + 60)


def test_a_hole_in_a_claim_does_not_use_up_the_limit(queue: cassq.Queue) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    held = popper.pop(10)
    for message in held[:8]:
        message.ack()
    for message in held[9:]:
        message.ack()
    popper.flush()
    (row,) = [r for r in _claims(queue) if r.state == 0]
    assert len(row.acked) == 9
    assert payloads(queue.peek(1)) == [b"8"]  # type: ignore[arg-type]


def _claims(queue: cassq.Queue) -> list[Any]:
    catalog = queue._ports.catalog
    groups, pipes = catalog.queues.groups(queue.row.id), catalog.pipes.live(queue.row.id)
    return [r for g in groups for p in pipes for r in catalog.claims.rows(g.id, p.id)]


def test_a_message_of_a_timer_pipe_that_has_come_due_is_waiting(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push(b"soon", delay=0.001)
    from tests.integration.deadlines import eventually

    eventually("it is due", lambda: states(queue, "waiting") == [(b"soon", "waiting")])
    assert states(queue, "delayed") == []


def test_peeking_writes_nothing(mixed: cassq.Queue, client: cassq.Client) -> None:
    def rows() -> list[Any]:
        catalog = client.ports.catalog
        groups = catalog.queues.groups(mixed.row.id)
        return [*_claims(mixed), *(catalog.claims.cursors(group.id) for group in groups)]

    mixed.create_group("later")
    before = rows()
    for state in (None, "waiting", "pending", "delayed", "dead"):
        mixed.peek(state=state)
        mixed.peek(state=state, group="later")
    assert rows() == before


def test_the_limit_holds_over_pipes_and_states(queue: cassq.Queue) -> None:
    for first in (0, 10, 20):
        push(queue, *numbers(10, first))
    assert [m.payload for m in queue.peek(15)] == numbers(15)
    assert queue.peek(3, state="dead") == []


def test_a_state_that_is_none_is_refused(queue: cassq.Queue) -> None:
    with pytest.raises(UsageError, match="'lost' is not a state") as caught:
        queue.peek(state="lost")
    assert "waiting, pending, delayed, dead" in caught.value.hint


def test_a_pipe_that_cannot_be_read_is_left_out(queue: cassq.Queue, client: cassq.Client) -> None:
    push(queue, b"gone")
    push(queue, b"there")
    client.ports.store.drop(extents(client)[:1])
    assert [m.payload for m in queue.peek()] == [b"there"]


# --- the command ------------------------------------------------------------------------------


def cli(url: str, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["--url", url, "peek", "jobs", *words])
    return result.exit_code, result.stdout or result.stderr


def test_the_command_shows_one_state(mixed: cassq.Queue, url: str) -> None:
    code, out = cli(url, "--state", "dead", "--json")
    (found,) = (json.loads(line) for line in out.splitlines())
    assert (code, found["payload"], found["state"]) == (0, "4", "dead")
    assert json.loads(found["headers"]["cassq-death"])["error"] == "broken"
    assert cli(url, "--state", "lost")[0] == 2


def test_the_command_decodes_payloads_and_says_which_it_cannot(
    queue: cassq.Queue, url: str
) -> None:
    push(queue, b'{"name": "\xc3\xa4"}', b"\xff")
    code, out = cli(url, "--decode", "json", "--json")
    good, bad = (json.loads(line) for line in out.splitlines())
    assert (code, good["decoded"]) == (0, {"name": "ä"})
    assert bad["decoded"] is None
    assert bad["undecodable"].startswith("not JSON")
    code, table = cli(url, "--decode", "json")
    assert '{"name": "ä"}' in table
    assert "not JSON" in table
    assert "ff (1 bytes)" in table


@pytest.mark.parametrize(
    "words",
    [
        ("--decode", "xml"),
        ("--decode", "json", "--raw"),
        ("--descriptor-set", "x"),
        ("--decode", "protobuf:a.B"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(
    queue: cassq.Queue, url: str, words: tuple[str, ...]
) -> None:
    assert cli(url, *words)[0] == 2


@pytest.mark.needs("module:google.protobuf")
def test_the_command_decodes_protobuf(queue: cassq.Queue, url: str, tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    files = FileDescriptorSet()
    message = files.file.add(name="a.proto", package="a", syntax="proto3").message_type.add(
        name="B"
    )
    label = FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(name="n", number=1, type=FieldDescriptorProto.TYPE_INT32, label=label)
    (tmp_path / "a.desc").write_bytes(files.SerializeToString())
    push(queue, b"\x08\x2a")
    words = ("--decode", "protobuf:a.B", "--descriptor-set", str(tmp_path / "a.desc"), "--json")
    assert json.loads(cli(url, *words)[1])["decoded"] == {"n": 42}
