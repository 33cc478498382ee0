"""The alert pass on real queues: what goes wrong is told once, its end too, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.alerts.targets import AlertTarget
from cassq.alerts.watch import AlertReport, run
from cassq.base.clock import ManualClock, SystemClock
from cassq.cli.main import main
from cassq.errors import UsageError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import Member
from tests.integration.deadlines import in_threads
from tests.integration.places import Place
from tests.integration.stage import Connect, alone, drain, numbers, push

DEAD = "jobs~default~dead"


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """The test alone moves what failed to the dead letters, and reports it."""
    alone(client)


class Later:
    """A reaper of the same place whose clock is turned by hand."""

    def __init__(self, ports: Ports, clock: ManualClock) -> None:
        self.ports = ports
        self.clock = clock

    def catch_up(self) -> None:
        """Turn it to the machine's: it stood still while the test worked."""
        self.clock.advance((SystemClock().wall_ms() - self.clock.wall_ms()) / 1000)

    def run(self, *targets: AlertTarget) -> list[AlertReport]:
        return run(self.ports, self.ports.catalog.queues.listed(), targets)

    def sent(self, *targets: AlertTarget) -> list[str]:
        return [f"{found.subject} {found.outcome}" for found in self.run(*targets)]


@pytest.fixture
def later(place: Place, client: cassq.Client) -> Iterator[Later]:
    clock = ManualClock(wall_ms=SystemClock().wall_ms())
    embedded = place.open(clock)
    alone(client)  # again: its clock is of another boot, of which all leases are void
    yield Later(embedded.ports, clock)
    embedded.ports.store.close()
    embedded.ports.catalog.close()


LOG = AlertTarget("log")


def fail(queue: cassq.Queue, *payloads: bytes, importance: str | None = None) -> None:
    """Push messages that become dead letters."""
    with queue.pusher() as pusher:
        for payload in payloads:
            pusher.push(payload, importance=importance)
    with queue.popper() as popper:
        popper.dead(popper.pop(len(payloads)), "it cannot be read")
        assert popper.pop(1) == []


def test_messages_that_failed_for_good_are_reported_once_by_importance(
    queue: cassq.Queue, client: cassq.Client, later: Later
) -> None:
    assert later.sent(LOG) == []
    fail(queue, b"1", b"2", importance="high")
    fail(queue, b"3")
    found = later.run(LOG)
    assert [reported.detail for reported in found] == [
        "to log: queue jobs, group default: 2 messages of importance high failed for good",
        "to log: queue jobs, group default: 1 message of importance normal failed for good",
    ]
    later.clock.advance(3600)
    assert later.sent(LOG) == []
    drain(client.queue(DEAD).popper())
    assert later.sent(LOG) == ["failed recovered done"] * 2
    assert later.ports.catalog.records.incidents() == []


def test_what_failed_is_reported_for_its_group_alone_where_others_have_their_letters_too(
    client: cassq.Client, later: Later
) -> None:
    for name in ("jobs", "mails"):
        fail(client.create_queue(name, dead_letters="failures"), b"1")
    fail(client.queue("mails"), b"2")
    assert [reported.detail for reported in later.run(LOG)] == [
        "to log: queue jobs, group default: 1 message of importance normal failed for good",
        "to log: queue mails, group default: 2 messages of importance normal failed for good",
    ]


def test_importance_can_be_given_with_every_kind_of_push(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push(b"1", importance="high", headers={"a": "b"})
        pusher.push_soon(b"2", importance="low").result(30)
        pusher.push_many([b"3", b"4"], importance="critical")
        pusher.push_many([b"5", b"6"], importance="low", headers=[{"a": "b"}, None])
        for wrong in ("", "a b", 5):
            with pytest.raises(UsageError, match="importance must be a word"):
                pusher.push(b"x", importance=wrong)  # type: ignore[arg-type]
    found = [(m.headers.get("cassq-importance"), m.headers.get("a")) for m in queue.peek()]
    assert found == [
        *(("high", "b"), ("low", None), ("critical", None), ("critical", None)),
        *(("low", "b"), ("low", None)),
    ]


def test_nobody_comes_for_a_quarter_of_an_hour(
    queue: cassq.Queue, client: cassq.Client, later: Later
) -> None:
    push(queue, *numbers(3))
    later.catch_up()
    later.clock.advance(890)
    assert later.sent(LOG) == []
    later.clock.advance(11)
    assert later.sent(LOG) == ["no_consumer raised done"]
    assert later.sent(LOG) == []
    (group,) = later.ports.catalog.queues.groups(queue.row.id)
    seen_ms = later.ports.catalog.now_ms()
    later.ports.catalog.records.attend(Member(group.id, "popper", seen_ms, waiting=False))
    assert later.sent(LOG) == ["no_consumer recovered done"]


def test_a_queue_that_nobody_uses_is_not_an_incident(queue: cassq.Queue, later: Later) -> None:
    push(queue, *numbers(3))
    drain(queue.popper())
    later.clock.advance(10 * 86400)
    assert later.sent(LOG) == []


def test_a_stalled_group_and_an_old_message(client: cassq.Client, later: Later) -> None:
    queue = client.create_queue(
        "jobs", alert_no_consumer=None, alert_stalled=60, alert_oldest_age=120, claim_timeout=600
    )
    push(queue, *numbers(3))
    popper = queue.popper()
    held = popper.pop(2)
    later.catch_up()
    later.clock.advance(61)
    assert later.sent(LOG) == ["stalled raised done"]
    later.clock.advance(60)
    assert later.sent(LOG) == ["oldest_age raised done"]
    popper.commit(held)
    drain(popper)
    assert sorted(later.sent(LOG)) == ["oldest_age recovered done", "stalled recovered done"]


def test_dead_letters_that_grow_within_an_hour(client: cassq.Client, later: Later) -> None:
    queue = client.create_queue("jobs", alert_dead_growth=3)
    only = AlertTarget("log", kinds=("dead_growth",))
    fail(queue, b"old", b"older", b"oldest")
    assert later.sent(only) == [], "what was there at the first look is no growth"
    later.clock.advance(3000)
    fail(queue, b"1", b"2")
    assert later.sent(only) == []
    fail(queue, b"3")
    assert later.sent(only) == ["dead_growth raised done"]
    later.clock.advance(3700)
    assert later.sent(only) == ["dead_growth recovered done"]


def test_of_concurrent_reapers_exactly_one_sends_the_alert(
    queue: cassq.Queue, connect: Connect, tmp_path: Path
) -> None:
    fail(queue, b"1", importance="high")
    out = tmp_path / "reported"
    target = AlertTarget("sh", command=("sh", "-c", f"cat >> {out}; echo >> {out}"))
    reapers = [connect() for _ in range(6)]
    found: list[AlertReport] = []

    def reap(number: int) -> None:
        ports = reapers[number].ports
        found.extend(run(ports, ports.catalog.queues.listed(), [target]))

    in_threads(6, reap)
    assert [reported.outcome for reported in found] == ["done"]
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["data"]["importance"] == "high"


def test_alerts_that_a_broken_target_missed_are_sent_later_and_none_is_lost(
    queue: cassq.Queue, client: cassq.Client, later: Later, tmp_path: Path
) -> None:
    fail(queue, b"1")
    out, works = tmp_path / "found", tmp_path / "works"
    script = f"test -e {works} && cat >> {out} && echo >> {out}"
    pager = AlertTarget("pager", command=("sh", "-c", script))
    assert later.sent(LOG, pager) == ["failed raised done", "failed raised failed"]
    assert later.sent(LOG, pager) == [], "not at once"
    later.clock.advance(11)
    assert later.sent(LOG, pager) == ["failed raised failed"]
    drain(client.queue(DEAD).popper())
    assert later.sent(LOG, pager) == ["failed recovered done"], "the log is not held up"
    works.touch()
    later.clock.advance(700)
    assert later.sent(LOG, pager) == ["failed raised done", "failed recovered done"]
    types = [json.loads(line)["type"] for line in out.read_text().splitlines()]
    assert types == ["cassq.alert.failed.raised", "cassq.alert.failed.recovered"]
    assert later.ports.catalog.records.incidents() == []


def test_alerts_are_routed_by_the_owner_of_the_queue(client: cassq.Client, later: Later) -> None:
    for name, owner in (("jobs", "payments"), ("mail", "")):
        fail(client.create_queue(name, owner=owner), b"1")
    mine = AlertTarget("mine", owners=("payments",))
    assert [found.queue for found in later.run(mine)] == ["jobs"]


def test_the_end_of_a_queue_is_the_end_of_its_incidents(
    queue: cassq.Queue, client: cassq.Client, later: Later
) -> None:
    fail(queue, b"1")
    assert later.sent(LOG) == ["failed raised done"]
    client.delete_queue("jobs")
    assert later.sent(LOG) == ["failed recovered done"]
    assert later.ports.catalog.records.incidents() == []


def test_a_pass_over_some_queues_ends_no_incident_of_others(
    queue: cassq.Queue, client: cassq.Client, later: Later
) -> None:
    fail(queue, b"1")
    later.run(LOG)
    other = client.create_queue("other")
    assert run(later.ports, [other.row], [LOG]) == []


def test_a_dry_run_sends_nothing_and_records_nothing(queue: cassq.Queue, later: Later) -> None:
    fail(queue, b"1")
    for _ in range(2):
        (found,) = run(later.ports, later.ports.catalog.queues.listed(), [LOG], dry_run=True)
        assert (found.verb, found.subject, found.outcome) == ("alert", "failed raised", "planned")
    assert later.ports.catalog.records.incidents() == []


# --- the reaper and the command ---------------------------------------------------------------


def test_the_reaper_alerts_only_if_there_are_targets(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    fail(queue, b"1")
    queues = client.ports.catalog.queues.listed()
    assert client.reaper.reap(queues, only=["alert"]) == []
    client.reaper.targets = [LOG]
    (action,) = client.reaper.reap(queues, only=["alert"])
    assert (action.verb, action.subject, action.outcome) == ("alert", "failed raised", "done")


@pytest.fixture
def reap(url: str) -> Callable[..., tuple[int, Any]]:
    def call(*words: str) -> tuple[int, Any]:
        result = CliRunner().invoke(main, ["--url", url, "reap", "--json", *words])
        return result.exit_code, json.loads(result.stdout or result.stderr)

    return call


@pytest.mark.waits(reason="`cassq reap` watches pipes for as long as a lease")
def test_the_command_alerts_the_targets_of_a_file(
    queue: cassq.Queue, client: cassq.Client, tmp_path: Path, reap: Callable[..., tuple[int, Any]]
) -> None:
    fail(queue, b"1", importance="high")
    out, file = tmp_path / "found", tmp_path / "alerts.toml"
    command = json.dumps(["sh", "-c", f"cat > {out}"])
    file.write_text(f'[[target]]\nname = "a"\ncommand = {command}\nimportance = "high"\n')
    code, planned = reap("--dry-run", "--alerts", str(file))
    assert (code, out.exists()) == (0, False)
    assert [a["verb"] for a in planned["actions"]].count("alert") == 1
    code, done = reap("--alerts", str(file))
    assert code == 0
    assert [a["outcome"] for a in done["actions"] if a["verb"] == "alert"] == ["done"]
    assert json.loads(out.read_text())["data"]["queue"] == "jobs"


def test_a_bad_routing_file_is_refused_before_anything_is_done(
    tmp_path: Path, reap: Callable[..., tuple[int, Any]]
) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text("[[target]]\n")
    code, found = reap("--alerts", str(file))
    assert (code, found["kind"]) == (2, "ConfigError")


def test_the_command_pushes_messages_of_an_importance(queue: cassq.Queue, url: str) -> None:
    words = ["--url", url, "push", "jobs", "--importance", "high", "--header", "a=b"]
    assert CliRunner().invoke(main, words, input=b"1\n2\n").exit_code == 0
    assert [m.headers for m in queue.peek()] == [{"a": "b", "cassq-importance": "high"}] * 2
    assert CliRunner().invoke(main, [*words[:-4], "--importance", "a b"]).exit_code == 2
