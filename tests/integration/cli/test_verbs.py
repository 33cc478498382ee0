"""The command's verbs: what they do to queues, what they write, how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from tests.integration.deadlines import eventually
from tests.integration.places import Place
from tests.shell import Done

Cli = Callable[..., Done]


@pytest.fixture
def cli(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run the command in this process; there is a queue `mail`."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"CASSQ_URL": url})

    def run(*words: object, stdin: bytes = b"", code: int | None = 0) -> Done:
        result = runner.invoke(main, [str(word) for word in words], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        done = Done(result.exit_code, result.stdout_bytes, result.stderr)
        assert code is None or done.code == code, done
        return done

    run("queue", "create", "mail")
    return run


def left(cli: Cli, queue: str = "mail", group: str = "default") -> dict[str, Any]:
    """How many messages are in which state for a group."""
    counts: dict[str, Any] = cli("stats", queue, "--json").json()["groups"][group]
    return counts


# --- push -----------------------------------------------------------------------------------


def test_every_line_of_standard_input_is_a_message(cli: Cli) -> None:
    assert cli("push", "mail", stdin=b"one\n\nthree").out == b"pushed 3 messages to mail\n"
    assert cli("pop", "mail", "--all").out == b"one\n\nthree\n"


def test_bytes_go_through_as_they_are(cli: Cli) -> None:
    data = bytes(range(10)) + bytes(range(11, 256)) + b"\r\n" + b"\xff\xfe\x00" * 1000 + b"\n"
    cli("push", "mail", stdin=data)
    assert cli("pop", "mail", "--all").out == data


def test_files_are_pushed_in_their_order_and_a_dash_is_standard_input(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"a1\na2\n")
    (tmp_path / "b.txt").write_bytes(b"b1")
    cli("push", "mail", "a.txt", "-", "b.txt", stdin=b"in\n")
    assert cli("pop", "mail", "--all").out == b"a1\na2\nin\nb1\n"


def test_a_whole_file_is_one_message_with_its_newlines(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"two\nlines\n")
    (tmp_path / "empty").write_bytes(b"")
    assert cli("push", "mail", "--whole", "a.bin", "empty", "--json").json()["pushed"] == 2
    popped = cli("pop", "mail", "--all", "--json").json_lines()
    assert [message["payload"] for message in popped] == ["two\nlines\n", ""]


def test_headers_and_a_key_go_with_every_message(cli: Cli) -> None:
    words = ("--header", "host=web1", "--header", "equation=a=b", "--key", "käy")
    cli("push", "mail", *words, stdin=b"1\n2\n")
    for message in cli("pop", "mail", "--all", "--json").json_lines():
        assert message["headers"] == {"host": "web1", "equation": "a=b"}
        assert message["key"] == "käy"


def test_ids_are_those_of_the_messages(cli: Cli) -> None:
    pushed = cli("push", "mail", "--ids", stdin=b"1\n2\n")
    assert pushed.err == "pushed 2 messages to mail\n"
    printed = cli("push", "mail", "--ids", "--json", stdin=b"3\n").json()
    popped = cli("pop", "mail", "--all", "--json").json_lines()
    assert [m["id"] for m in popped] == [*pushed.out.decode().split(), *printed["ids"]]
    assert printed == {"queue": "mail", "pushed": 1, "ids": [popped[2]["id"]]}


def test_many_lines_are_pushed_in_their_order(cli: Cli) -> None:
    data = b"".join(b"%d %s\n" % (n, b"x" * (n % 97)) for n in range(50_000))
    cli("push", "mail", stdin=data)
    assert cli("pop", "mail", "--all").out == data


def test_too_long_a_line_is_refused_and_what_was_pushed_is_reported(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "good.txt").write_bytes(b"1\n2\n")
    (tmp_path / "long.txt").write_bytes(b"y" * (17 << 20))
    words = ("push", "mail", "good.txt", "long.txt")
    failed = cli(*words, code=2)
    assert "2 messages had been pushed" in failed.err
    assert json.loads(cli(*words, "--json", code=2).err)["pushed"] == 2
    assert left(cli)["waiting"] == 4


@pytest.mark.parametrize("header", ["host", "=web1"])
def test_anything_but_a_header_is_refused(cli: Cli, header: str) -> None:
    assert "NAME=VALUE" in cli("push", "mail", "--header", header, stdin=b"1", code=2).err


def test_nothing_is_pushed_when_a_file_is_not_there(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes(b"1\n")
    assert "absent.txt" in cli("push", "mail", "good.txt", "absent.txt", code=2).err
    assert left(cli)["waiting"] == 0


# --- pop and peek ---------------------------------------------------------------------------


def test_pop_takes_one_message_by_default(cli: Cli) -> None:
    cli("push", "mail", stdin=b"1\n2\n3\n4\n")
    assert cli("pop", "mail").out == b"1\n"
    assert cli("pop", "mail", "--max", "2").out == b"2\n3\n"
    assert cli("pop", "mail", "--all").out == b"4\n"
    assert cli("pop", "mail", "--wait", "10ms").out == b""
    assert left(cli)["committed"] == 4


def test_what_is_not_acked_is_popped_again_and_not_counted(cli: Cli) -> None:
    cli("push", "mail", stdin=b"1\n2\n3\n")
    assert cli("pop", "mail", "--max", "2", "--no-ack").out == b"1\n2\n"
    again = cli("pop", "mail", "--all", "--no-ack", "--json").json_lines()
    assert [(m["payload"], m["attempts"]) for m in again] == [("1", 1), ("2", 1), ("3", 1)]
    assert left(cli)["waiting"] == 3


def test_what_is_not_acked_keeps_its_order_on_a_strict_queue(cli: Cli) -> None:
    cli("queue", "create", "strict", "--consistency", "cp")
    cli("push", "strict", stdin=b"1\n2\n3\n")
    assert cli("pop", "strict", "--all", "--no-ack").out == b"1\n2\n3\n"
    assert cli("pop", "strict", "--all").out == b"1\n2\n3\n"


def test_bytes_that_are_not_text_are_base64_in_json(cli: Cli) -> None:
    cli("push", "mail", stdin=b"\xff\x00\n")
    (message,) = cli("pop", "mail", "--json").json_lines()
    assert message["payload_base64"] == "/wA="
    assert "payload" not in message


def test_each_group_pops_every_message(cli: Cli) -> None:
    cli("group", "create", "mail", "archive")
    cli("push", "mail", stdin=b"1\n2\n")
    assert cli("pop", "mail", "--all").out == b"1\n2\n"
    assert cli("pop", "mail", "--all", "--group", "archive").out == b"1\n2\n"


def test_to_follow_without_acks_is_refused(cli: Cli) -> None:
    assert "cassq peek" in cli("pop", "mail", "--follow", "--no-ack", code=2).err


def test_peek_shows_messages_and_leaves_them(cli: Cli) -> None:
    cli("push", "mail", stdin=b"one\n\x1b[31mred\xff\nthree\n")
    shown = cli("peek", "mail").out.decode()
    assert "one" in shown
    assert "waiting" in shown
    assert r"\x1b[31mred\xff" in shown, "what moves the cursor is written out"
    assert cli("peek", "mail", "--raw", "--max", "2").out == b"one\n\x1b[31mred\xff\n"
    found = cli("peek", "mail", "--json").json_lines()
    assert [m["state"] for m in found] == ["waiting"] * 3
    assert left(cli)["waiting"] == 3


def test_a_damaged_pipe_is_reported_and_the_others_are_popped(cli: Cli, place: Place) -> None:
    cli("push", "mail", stdin=b"first\n")
    pipe_id = place.damage(b"first")
    cli("push", "mail", stdin=b"second\n")
    done = cli("pop", "mail", "--all", code=1)
    assert done.out == b"second\n"
    assert "error: " in done.err
    assert pipe_id in done.err


# --- stats and audit ------------------------------------------------------------------------


def test_stats_of_all_queues_and_of_one(cli: Cli) -> None:
    cli("queue", "create", "other")
    cli("push", "mail", stdin=b"1\n" * 1500)
    cli("pop", "mail", "--max", "300")
    table = cli("stats").out.decode().splitlines()
    assert len({len(line) for line in table[:2]}) == 1, "the columns are aligned"
    assert table[1].split()[:7] == ["mail", "1,500", "1", "default", "1,200", "0", "300"]
    assert table[2].split()[0] == "other"
    assert [queue["name"] for queue in cli("stats", "--json").json()] == ["mail", "other"]
    assert cli("stats", "mail", "--json").json()["pushed"] == 1500
    assert b"1 sealed" in cli("stats", "mail").out


def test_what_was_pushed_is_the_sum_of_the_columns(cli: Cli, url: str) -> None:
    """Whatever became of it; and what never happened takes no column."""
    headers = cli("stats").out.decode().splitlines()[0].split()
    assert headers[1:] == [
        "PUSHED",
        "PIPES",
        "GROUP",
        "WAITING",
        "PENDING",
        "COMMITTED",
        "DEAD",
        "OLDEST",
    ]
    cli("push", "mail", stdin=b"1\n" * 9)
    with cassq.connect(url) as client:
        queue = client.queue("mail")
        queue.create_group("late", start="now")
        with queue.popper() as popper:
            popper.commit(popper.pop(2))
            popper.dead(popper.pop(3), "no")
        letters = queue.dead_letters()
        letters.merge(limit=1)
        letters.purge(limit=1, everything=True)
        queue.purge("default")
        with queue.pusher() as pusher:
            pusher.push(b"2")
        with client.queue("mail~default~dead").popper() as popper:
            popper.commit(popper.pop())
        queue.update(message_ttl=0.001)
        eventually(
            "what waits expires",
            lambda: (client.reap(), queue.stats().groups["default"].expired)[1],
        )
    lines = [line.split() for line in cli("stats").out.decode().splitlines()]
    assert lines[0][8:-1] == ["EXPIRED", "PURGED", "MERGED", "SKIPPED"]
    assert len(lines) == 4
    for line in lines[1:]:
        assert int(line[1]) == sum(map(int, line[4:12])), line


def test_what_a_popper_holds_is_pending(cli: Cli, url: str) -> None:
    cli("push", "mail", stdin=b"1\n2\n3\n")
    with cassq.connect(url) as client, client.queue("mail").popper() as popper:
        assert len(popper.pop(2)) == 2
        counts = left(cli)
        assert (counts["waiting"], counts["pending"], counts["committed"]) == (1, 2, 0)
        assert [m["state"] for m in cli("peek", "mail", "--json").json_lines()] == [
            *("pending", "pending", "waiting")
        ]


def test_an_audit_of_one_queue_is_an_object_of_several_a_list(cli: Cli) -> None:
    cli("push", "mail", stdin=b"1\n2\n3\n")
    cli("pop", "mail")
    one = cli("audit", "mail", "--json").json()
    assert (one["balanced"], one["pushed"], one["findings"]) == (True, 3, [])
    assert one["groups"]["default"]["committed"] == 1
    cli("queue", "create", "other")
    for words in (("audit", "--json"), ("audit", "mail", "other", "--json")):
        assert [audit["queue"] for audit in cli(*words).json()] == ["mail", "other"]
    assert cli("audit").out.decode().splitlines()[1].split()[-1] == "yes"


def test_an_audit_that_does_not_balance_fails_and_names_what_it_found(
    cli: Cli, place: Place
) -> None:
    cli("push", "mail", stdin=b"precious\n")
    pipe_id = place.damage(b"precious")
    failed = cli("audit", code=1)
    assert pipe_id.encode() in failed.out
    assert failed.err.startswith("error: the audit of mail does not balance\nhint: ")
    printed = cli("audit", "mail", "--json", code=1).json()
    assert not printed["balanced"]
    assert pipe_id in printed["findings"][0]


# --- queues and groups ----------------------------------------------------------------------


def test_a_queue_is_made_with_its_policy_and_shows_it(cli: Cli) -> None:
    words = ("--consistency", "cp", "--claim-timeout", "5m", "--max-deliveries", "3")
    made = cli("queue", "create", "/shop/orders", *words, "--json").json()
    shown = cli("queue", "show", "/shop/orders", "--json").json()
    assert made == shown
    assert shown["name"] == "/shop/orders"
    assert shown["policy"]["consistency"] == "cp"
    assert shown["policy"]["claim_timeout"] == 300.0
    assert shown["policy"]["max_deliveries"] == 3
    assert [group["name"] for group in shown["groups"]] == ["default"]
    assert "300 s" in cli("queue", "show", "/shop/orders").out.decode()


def test_the_same_queue_again_is_not_an_error_and_another_policy_is(cli: Cli) -> None:
    cli("queue", "create", "mail")
    failed = cli("queue", "create", "mail", "--lease", "20", code=2)
    assert "lease is 10.0, not 20.0" in failed.err


def test_a_queue_is_updated_and_what_is_not_named_stays(cli: Cli) -> None:
    before = cli("queue", "show", "mail", "--json").json()["policy"]
    after = cli("queue", "update", "mail", "--max-pop-width", "1", "--json").json()["policy"]
    assert after == {**before, "max_pop_width": 1}
    nothing = cli("queue", "update", "mail", code=2).err
    assert nothing.startswith("error: there is nothing to change")
    assert "lease must be between" in cli("queue", "update", "mail", "--lease", "0", code=2).err


def test_queues_are_listed_by_their_prefix(cli: Cli) -> None:
    cli("queue", "create", "/shop/orders")
    assert [queue["name"] for queue in cli("queue", "list", "--json").json()] == [
        *("/shop/orders", "mail")
    ]
    assert [queue["name"] for queue in cli("queue", "list", "/sh", "--json").json()] == [
        "/shop/orders"
    ]
    assert cli("queue", "list").out.decode().splitlines()[2].split() == ["mail", "ap", "default"]


def test_deleting_has_to_be_confirmed(cli: Cli) -> None:
    assert "--yes" in cli("queue", "delete", "mail", code=2).err
    assert "--yes" in cli("group", "delete", "mail", "default", code=2).err
    cli("group", "delete", "mail", "default", "--yes")
    assert cli("queue", "show", "mail", "--json").json()["groups"] == []
    assert cli("queue", "delete", "mail", "-y", "--json").json() == {"deleted": "mail"}
    assert cli("queue", "list", "--json").json() == []


def test_a_group_is_made_listed_and_updated(cli: Cli) -> None:
    made = cli("group", "create", "mail", "g", "--exclusive", "--claim-timeout", "3s", "--json")
    inherited = ("max_deliveries", "retry_schedule", "retry_jitter", "sick_check", "sick_hold")
    policy = {"exclusive": True, "claim_timeout": 3.0, **dict.fromkeys(inherited)}
    policy |= {"order": "any", "on_dead": "continue", "limit_per_key": None, "rate_per_key": None}
    policy |= {"group_expires": None, "fair": False, "rate": None, "concurrency": None}
    assert made.json() == {"name": "g", **policy}
    words = ("--claim-timeout", "queue", "--max-deliveries", "4")
    changed = cli("group", "update", "mail", "g", *words, "--json").json()
    assert (changed["claim_timeout"], changed["max_deliveries"]) == (None, 4)
    assert [group["name"] for group in cli("group", "list", "mail", "--json").json()] == [
        *("default", "g")
    ]
    assert cli("group", "list", "mail").out.decode().splitlines()[2].split() == [
        *("mail", "g", "yes", "any", "queue", "4", "never")
    ]


def test_a_group_that_expires_shows_when_and_may_stay(cli: Cli) -> None:
    made = cli("group", "create", "mail", "g", "--expires", "60", "--json").json()
    assert made["group_expires"] == 60.0
    assert cli("group", "list", "mail").out.decode().splitlines()[2].split()[-2:] == ["60", "s"]
    changed = cli("group", "update", "mail", "g", "--expires", "never", "--json").json()
    assert changed["group_expires"] is None
    assert "between 15" in cli("group", "create", "mail", "h", "--expires", "14s", code=2).err
    wrong = cli("group", "update", "mail", "default", "--expires", "1h", code=2).err
    assert "the group 'default' cannot have group_expires" in wrong


@pytest.mark.parametrize(("start", "expected"), [("beginning", b"1\n2\n"), ("now", b"2\n")])
def test_a_group_starts_where_it_was_asked_to(cli: Cli, start: str, expected: bytes) -> None:
    cli("push", "mail", stdin=b"1\n")
    cli("group", "create", "mail", "g", "--start", start)
    cli("push", "mail", stdin=b"2\n")
    assert cli("pop", "mail", "--group", "g", "--all").out == expected


def test_a_group_starts_at_a_time(cli: Cli) -> None:
    cli("push", "mail", stdin=b"1\n2\n")
    (first,) = cli("peek", "mail", "--json", "--max", "1").json_lines()
    pushed = datetime.fromisoformat(first["pushed_at"])
    for name, start, expected in (
        ("at", pushed, 2),
        ("after", pushed.astimezone(UTC) + timedelta(seconds=1), 0),
    ):
        cli("group", "create", "mail", name, "--start", start.isoformat())
        assert left(cli, group=name)["waiting"] == expected


@pytest.mark.parametrize("start", ["yesterday", "2026-01-31T00:00:00"])
def test_a_start_that_is_not_a_moment_is_refused(cli: Cli, start: str) -> None:
    assert repr(start) in cli("group", "create", "mail", "g", "--start", start, code=2).err


# --- the command as a whole -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("pop", "absent"), "QueueNotFoundError"),
        (("pop", "mail", "--group", "absent"), "GroupNotFoundError"),
        (("queue", "create", "two words"), "InvalidNameError"),
        (("queue", "create", "q", "--lease", "soon"), "UsageError"),
        (("pop",), "UsageError"),
        (("pop", "mail", "--colour"), "UsageError"),
        (("fly",), "UsageError"),
        (("stats", "--url", "redis:6379"), "ConfigError"),
        (("reap", "--every", "0"), "UsageError"),
        (("stats", "--watch", "0"), "UsageError"),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_what_to_do(
    cli: Cli, words: tuple[str, ...], kind: str
) -> None:
    done = cli(*words, code=2)
    assert done.out == b""
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    printed = json.loads(cli(*words, "--json", code=2).err)
    assert printed["kind"] == kind
    assert printed["error"]


def test_the_place_is_named_before_or_after_the_verb(cli: Cli, tmp_path: Path) -> None:
    other = f"file:{tmp_path / 'other'}"
    cli("--url", other, "queue", "create", "elsewhere")
    for words in (("--url", other, "queue", "list"), ("queue", "list", "--url", other)):
        assert b"elsewhere" in cli(*words).out
    assert b"elsewhere" not in cli("queue", "list").out
    assert cli("--json", "queue", "list").json() == cli("queue", "list", "--json").json()


@pytest.mark.embedded_only(reason="it is about directories")
@pytest.mark.parametrize("words", [("stats",), ("push", "q"), ("pop", "q"), ("audit",), ("reap",)])
def test_only_making_a_queue_makes_the_directory(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    missing = tmp_path / "missing"
    done = cli(*words, "--url", f"file:{missing}", code=2)
    assert str(missing) in done.err
    assert not missing.exists()


def test_the_version_is_reported(cli: Cli) -> None:
    assert cli("--version").out.decode() == f"cassq {cassq.__version__}\n"
    assert cli("version", "--json").json()["cassq"] == cassq.__version__
