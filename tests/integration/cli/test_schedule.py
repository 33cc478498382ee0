"""`cassq schedule`: what its verbs do and write, and how they fail."""

from __future__ import annotations

import pytest

from tests.integration.cli.test_verbs import Cli, cli

__all__ = ["cli"]

NIGHTLY = ("schedule", "create", "nightly", "--queue", "mail", "--cron", "0 3 * * *")


def test_a_schedule_is_created_listed_shown_and_deleted(cli: Cli) -> None:
    done = cli(*NIGHTLY, "--tz", "Europe/Vienna", "--payload", "go", "--header", "a=b", "--next", 3)
    assert "0 3 * * *" in done.out.decode()
    assert done.out.decode().count(" 03:00:00+0") == 4, "the next tick, and three"
    cli("schedule", "create", "poll", "--queue", "mail", "--every", "5m", "--missed", "skip")
    listed = cli("schedule", "list", "--json").json()
    assert [each["name"] for each in listed] == ["nightly", "poll"]
    assert [each["cron"] for each in listed] == ["0 3 * * *", "@every 5m"]
    assert "Europe/Vienna" in cli("schedule", "list", "--queue", "mail").out.decode()
    shown = cli("schedule", "show", "nightly", "--next", 2, "--json").json()
    assert (shown["payload"], shown["headers"], shown["key"]) == ("go", {"a": "b"}, None)
    assert len(shown["next"]) == 2
    assert shown["next"][0] == shown["next_at"]
    assert cli("schedule", "delete", "nightly", "--yes").out.decode() == "deleted nightly\n"
    assert [each["name"] for each in cli("schedule", "list", "--json").json()] == ["poll"]


def test_creating_it_again_with_other_settings_names_the_difference(cli: Cli) -> None:
    cli(*NIGHTLY)
    cli(*NIGHTLY)
    refused = cli(*NIGHTLY, "--payload", "other", code=2)
    assert "schedule 'nightly' exists: payload is b'', not b'other'" in refused.err


def test_an_update_changes_what_is_named(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("payload") / "payload.bin"
    path.write_bytes(b"from a file")
    cli("queue", "create", "jobs")
    cli(*NIGHTLY, "--header", "a=b", "--key", "k", "--priority", 3)
    words = ("--every", "5m", "--payload-file", path, "--header", "c=d", "--queue", "jobs")
    shown = cli("schedule", "update", "nightly", *words, "--next", 2, "--json").json()
    assert (shown["cron"], shown["payload"], shown["queue"]) == ("@every 5m", "from a file", "jobs")
    assert (shown["headers"], shown["key"], shown["priority"]) == ({"c": "d"}, "k", 3)
    assert len(shown["next"]) == 2
    words = ("--no-headers", "--no-key", "--priority", 0, "--payload", "", "--missed", "all")
    done = cli("schedule", "update", "nightly", *words).out.decode()
    assert "@every 5m" in done
    (listed,) = cli("schedule", "list", "--json").json()
    assert (listed["headers"], listed["key"], listed["priority"]) == ({}, None, 0)
    assert (listed["payload"], listed["missed"]) == ("", "all")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "there is nothing to change"),
        (("--cron", "0 25 * * *"), "the hour '25' in cron '0 25 * * *' is not valid"),
        (("--header", "a=b", "--no-headers"), "--header and --no-headers exclude each other"),
        (("--key", "k", "--no-key"), "--key and --no-key exclude each other"),
        (("--priority", "10"), "priority must be a whole number from 0 to 9"),
        (("--queue", "nope"), "'nope'"),
    ],
)
def test_a_wrong_update_is_named_and_changes_nothing(
    cli: Cli, words: tuple[str, ...], complaint: str
) -> None:
    cli(*NIGHTLY)
    before = cli("schedule", "list", "--json").json()
    assert complaint in cli("schedule", "update", "nightly", *words, code=2).err
    assert cli("schedule", "list", "--json").json() == before


def test_a_dry_run_shows_the_next_ticks_and_creates_nothing(cli: Cli) -> None:
    words = ("schedule", "create", "night", "--queue", "mail", "--cron", "30 2 * * *", "--dry-run")
    assert len(cli(*words).out.decode().splitlines()) == 5
    assert len(cli(*words, "--next", 7, "--json").json()["next"]) == 7
    assert cli("schedule", "list", "--json").json() == []


def test_pausing_and_resuming_are_shown(cli: Cli) -> None:
    cli(*NIGHTLY)
    assert cli("schedule", "pause", "nightly", "--json").json()["paused"] is True
    assert "paused" in cli("schedule", "list").out.decode()
    assert cli("schedule", "resume", "nightly", "--json").json()["next_at"] is not None


def test_a_run_pushes_the_message_now(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("payload") / "payload.bin"
    path.write_bytes(b"from\na file\n")
    cli(*NIGHTLY, "--payload-file", path, "--key", "k")
    message_id = cli("schedule", "run", "nightly").out.decode().strip()
    (message,) = cli("pop", "mail", "--all", "--json").json_lines()
    assert (message["id"], message["payload"], message["key"]) == (
        message_id,
        "from\na file\n",
        "k",
    )
    assert message["headers"] == {"cassq-schedule": "nightly"}


def test_a_reap_pushes_what_is_due(cli: Cli) -> None:
    cli("schedule", "create", "often", "--queue", "mail", "--every", "1s", "--payload", "tick")
    (message,) = cli("pop", "mail", "--wait", "60s", "--json").json_lines()
    assert message["payload"] == "tick"
    info = cli("schedule", "show", "often", "--json").json()
    assert info["last"]["at"] <= info["next_at"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--cron", "0 25 * * *"), "the hour '25' in cron '0 25 * * *' is not valid"),
        (("--cron", "@daily", "--tz", "Europe/Viena"), "did you mean 'Europe/Vienna'?"),
        (("--every", "soon"), "'soon' is not a time"),
        (("--every", "0.1"), "every must be between 1 second and 366 days"),
        ((), "a schedule needs either cron or every"),
        (("--every", "5m", "--missed", "never"), "'never' is not one of"),
        (("--every", "5m", "--header", "x"), "'x' is not a header"),
        (("--every", "5m", "--payload", "a", "--payload-file", "-"), "exclude each other"),
    ],
)
def test_bad_input_is_named_and_creates_nothing(
    cli: Cli, words: tuple[str, ...], complaint: str
) -> None:
    for more in ((), ("--dry-run",)):
        done = cli("schedule", "create", "x", "--queue", "mail", *words, *more, code=2)
        assert complaint in done.err
    assert cli("schedule", "list", "--json").json() == []


def test_a_queue_or_schedule_that_is_not_there_is_named(cli: Cli) -> None:
    words = ("schedule", "create", "x", "--queue", "nope", "--every", "5m")
    for more in ((), ("--dry-run",)):
        assert "'nope'" in cli(*words, *more, code=2).err
    for verb in ("show", "pause", "resume", "run", "update"):
        more = ("--payload", "x") if verb == "update" else ()
        done = cli("schedule", verb, "nope", *more, code=2)
        assert "there is no schedule 'nope'" in done.err
        assert "cassq schedule list" in done.err


def test_deleting_a_queue_deletes_its_schedules(cli: Cli) -> None:
    cli(*NIGHTLY)
    assert "must be confirmed" in cli("schedule", "delete", "nightly", code=2).err
    cli("queue", "delete", "mail", "--yes")
    assert cli("schedule", "list", "--json").json() == []
