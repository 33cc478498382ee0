"""History of real queues: samples taken by passes, side by side; rates; how it is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import GroupNotFoundError, UsageError
from cassq.inspect.history import DAY_MS, EVERYTHING, HOUR_MS, KEPT_MS, MINUTE_MS, Noted, roll_up
from cassq.model.rows import QueueRow, Sample
from tests.integration.stage import Connect, alone, numbers, push
from tests.shell import Done

Cli = Callable[..., Done]


def begun(client: cassq.Client, step_ms: int, ago: int = 0) -> int:
    """When the present step began, or one so many before it, in catalog time."""
    now_ms = client.ports.catalog.now_ms()
    return now_ms - now_ms % step_ms - ago * step_ms


def rows(client: cassq.Client) -> list[QueueRow]:
    return client.ports.catalog.queues.listed()


def steps(noted: list[Noted]) -> list[str]:
    return [one.step for one in noted]


def subject(client: cassq.Client, queue: cassq.Queue, group: str = "default") -> str:
    found = client.ports.catalog.queues.groups(queue.row.id)
    return next(row.id for row in found if row.name == group)


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """Samples are taken by the test alone."""
    alone(client)


# --- taking samples ---------------------------------------------------------------------------


def test_one_pass_a_minute_takes_a_sample_of_each_queue_and_group(
    client: cassq.Client, queue: cassq.Queue, connect: Connect
) -> None:
    queue.create_group("audit")
    client.create_queue("other")
    push(queue, *numbers(10))
    at_ms = begun(client, HOUR_MS, ago=1)  # the minute after it ends no hour
    noted = roll_up(client.ports, rows(client), at_ms + 10)
    assert [(one.queue, one.step) for one in noted] == [("jobs", "minute"), ("other", "minute")]
    assert [len(one.samples) for one in noted] == [3, 2]
    assert roll_up(connect().ports, rows(client), at_ms + MINUTE_MS - 1) == []
    assert len(roll_up(connect().ports, rows(client), at_ms + MINUTE_MS)) == 2
    for group in ("default", "audit"):
        found = queue.history(group)
        assert [point.totals["pushed"] for point in found] == [10, 10]
        assert found[0].depths["waiting"] == 10
    assert [point.totals for point in queue.history(None)] == [{"pushed": 10}] * 2


def test_for_all_queues_one_mark_says_that_the_minute_is_done(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    at_ms = begun(client, MINUTE_MS)
    assert [one.queue for one in roll_up(client.ports, None, at_ms)] == ["jobs"]
    assert len(client.ports.catalog.records.samples(EVERYTHING, MINUTE_MS, at_ms)) == 1
    late = client.create_queue("late")
    assert roll_up(client.ports, None, at_ms + 1) == []
    assert [one.queue for one in roll_up(client.ports, [late.row], at_ms + 2)] == ["late"]
    assert {one.queue for one in roll_up(client.ports, None, at_ms + MINUTE_MS)} == {"jobs", "late"}


def test_a_dry_run_writes_nothing(client: cassq.Client, queue: cassq.Queue) -> None:
    at_ms = begun(client, MINUTE_MS)
    for _ in range(2):
        assert steps(roll_up(client.ports, None, at_ms, dry_run=True)) == ["minute"]
    assert queue.history() == []


def test_passes_side_by_side_add_each_sample_once(
    client: cassq.Client, queue: cassq.Queue, connect: Connect
) -> None:
    at_ms = begun(client, MINUTE_MS)
    other = connect()
    push(queue, b"1")
    planned = roll_up(other.ports, None, at_ms, dry_run=True)
    push(queue, b"2")
    roll_up(client.ports, None, at_ms)
    other.ports.catalog.records.add_samples([each for one in planned for each in one.samples])
    assert [point.totals["pushed"] for point in queue.history()] == [2], "the first stays"


# --- hours and days ---------------------------------------------------------------------------


def test_hours_and_days_are_made_when_they_are_over_and_once(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    start_ms = begun(client, DAY_MS, ago=1)
    passes = []
    for number in range(49):
        push(queue, b"x")
        passes.append(steps(roll_up(client.ports, None, start_ms + number * HOUR_MS // 2)))
    assert passes[0] == passes[1] == ["minute"]
    assert passes[2] == ["minute", "hour"]
    assert passes[3] == ["minute"]
    assert passes[48] == ["minute", "hour", "day"]
    catalog, group = client.ports.catalog, subject(client, queue)
    assert len(catalog.records.samples(group, HOUR_MS, start_ms)) == 24
    (day,) = catalog.records.samples(group, DAY_MS, start_ms)
    assert day.at_ms == start_ms
    assert json.loads(day.data)["totals"]["pushed"] == 48
    days = queue.history(step="day")
    assert [point.totals["pushed"] for point in days] == [48, 49], "the present day is open"
    assert days[1].rates["pushed"] > 0


def test_hours_that_were_not_rolled_up_in_time_are_made_later(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    start_ms = begun(client, HOUR_MS, ago=9)
    roll_up(client.ports, None, start_ms)
    roll_up(client.ports, None, start_ms + MINUTE_MS)
    assert "hour" in steps(roll_up(client.ports, None, start_ms + 5 * HOUR_MS))
    assert steps(roll_up(client.ports, None, start_ms + 5 * HOUR_MS + MINUTE_MS)) == ["minute"]
    roll_up(client.ports, None, start_ms + 6 * HOUR_MS)
    found = client.ports.catalog.records.samples(subject(client, queue), HOUR_MS, 0)
    assert [each.at_ms - start_ms for each in found] == [0, 5 * HOUR_MS]


def test_what_is_too_old_is_forgotten(client: cassq.Client, queue: cassq.Queue) -> None:
    catalog, group = client.ports.catalog, subject(client, queue)
    now_ms = begun(client, HOUR_MS)
    for step_ms, kept_ms in KEPT_MS.items():
        for at_ms in (now_ms - kept_ms - 1, now_ms - kept_ms):
            data = '{"taken_ms": 0, "totals": {}, "depths": {}, "most": {}}'
            catalog.records.add_samples([Sample(group, step_ms, at_ms, data)])
    roll_up(client.ports, None, now_ms - HOUR_MS)
    roll_up(client.ports, None, now_ms)
    for step_ms, kept_ms in KEPT_MS.items():
        oldest = catalog.records.samples(group, step_ms, 0)[0]
        assert oldest.at_ms == now_ms - kept_ms


# --- looking back -----------------------------------------------------------------------------


def test_history_begins_where_it_is_asked_to(client: cassq.Client, queue: cassq.Queue) -> None:
    start_ms = begun(client, MINUTE_MS, ago=10)
    for number in range(10):
        push(queue, *numbers(6))
        roll_up(client.ports, None, start_ms + number * MINUTE_MS)
    since = datetime.fromtimestamp(start_ms / 1000, UTC) + timedelta(minutes=4, seconds=30)
    found = queue.history(since=since)
    assert found[0].at == since - timedelta(seconds=30)
    assert len(found) == 6
    assert all(point.rates["pushed"] == pytest.approx(0.1) for point in found)
    assert 3 <= len(queue.history(since=200.0)) <= 4
    assert queue.history(since=0.0) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"step": "week"}, "week"), ({"since": datetime(2026, 1, 1)}, "zone"), ({"since": -1}, "-1")],  # noqa: DTZ001
)
def test_what_makes_no_sense_is_refused(
    queue: cassq.Queue, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        queue.history(**wrong)  # type: ignore[arg-type]


def test_a_group_that_is_not_there_has_no_history(queue: cassq.Queue) -> None:
    with pytest.raises(GroupNotFoundError):
        queue.history("absent")


def test_rates_are_those_of_the_last_minutes(client: cassq.Client, queue: cassq.Queue) -> None:
    push(queue, *numbers(100))
    roll_up(client.ports, [queue.row], client.ports.catalog.now_ms() - MINUTE_MS)
    push(queue, *numbers(60))
    with queue.popper() as popper:
        popper.commit(popper.pop(30))
        popper.pop(12)
        rates = queue.rates()
    assert rates.pushed["1m"] == pytest.approx(1.0, rel=0.1)
    assert rates.pushed["5m"] is rates.pushed["15m"] is None
    mine = rates.groups["default"]
    assert mine["popped"]["1m"] == pytest.approx(42 / 60, rel=0.1)
    assert mine["committed"]["1m"] == pytest.approx(0.5, rel=0.1)
    assert mine["dead"]["1m"] == 0


def test_how_often_what_is_left_was_delivered(queue: cassq.Queue) -> None:
    push(queue, *numbers(20))
    with queue.popper() as popper:
        popper.commit(popper.pop(5))
        popper.rollback(popper.pop(4))
        popper.commit(popper.pop(3)[1:2])  # which leaves a claim with a hole
        stats = queue.stats().groups["default"]
        assert sum(stats.deliveries.values()) == stats.waiting + stats.pending == 14
        assert stats.deliveries == {0: 14 - 6, 1: 6}
        assert stats.popped == 12
        popper.release(popper.pop(20))
    assert queue.audit().balanced


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def cli(client: cassq.Client, queue: cassq.Queue, url: str) -> Cli:
    """The command, over a queue `jobs` with ten minutes of history."""
    start_ms = begun(client, MINUTE_MS, ago=10)
    with queue.popper() as popper:
        for number in range(10):
            push(queue, *numbers(20))
            popper.commit(popper.pop(2))
            roll_up(client.ports, None, start_ms + number * MINUTE_MS)
    runner = CliRunner(env={"CASSQ_URL": url})

    def run(*words: object, code: int = 0) -> Done:
        result = runner.invoke(main, [str(word) for word in words])
        done = Done(result.exit_code, result.stdout_bytes, result.stderr)
        assert done.code == code, done
        return done

    return run


def test_history_is_drawn_in_the_terminal(cli: Cli) -> None:
    text = cli("stats", "jobs", "--history").out.decode()
    for part in ("jobs, group default, by minute", "waiting messages", "pushed a second", "█"):
        assert part in text
    assert "180 pushed" in text.splitlines()[-1]
    assert "by day" in cli("stats", "jobs", "--history", "--step", "day").out.decode()


def test_history_as_json(cli: Cli) -> None:
    printed = cli("stats", "jobs", "--history", "--json").json()
    found = printed["groups"]["default"]
    assert (printed["name"], printed["step"], len(found)) == ("jobs", "minute", 10)
    assert found[-1]["totals"]["committed"] == 20
    assert found[-1]["rates"]["pushed"] == pytest.approx(20 / 60)
    assert datetime.fromisoformat(found[0]["at"]).tzinfo is not None
    recent = cli("stats", "jobs", "--history", "--json", "--since", "4m").json()
    assert 3 <= len(recent["groups"]["default"]) <= 4


@pytest.mark.needs("module:matplotlib")
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_history_as_an_image(cli: Cli, tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"jobs{suffix}"
    assert str(path) in cli("stats", "jobs", "--history", "--image", path).out.decode()
    assert path.read_bytes().startswith(magic)
    assert path.stat().st_size > 5000


@pytest.mark.needs("module:matplotlib")
def test_an_image_of_no_known_kind_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jobs.doc"
    assert ".png" in cli("stats", "jobs", "--history", "--image", path, code=2).err
    assert not path.exists()


def test_without_matplotlib_the_extra_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cassq.cli.ui.image", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.dates", None)
    failed = cli("stats", "jobs", "--history", "--image", tmp_path / "jobs.png", code=2)
    assert "cassq[plots]" in failed.err


@pytest.mark.parametrize(
    "words",
    [
        ("--history",),
        ("jobs", "--history", "--watch", "1"),
        ("jobs", "--step", "hour"),
        ("jobs", "--since", "1h"),
        ("jobs", "--image", "x.png"),
        ("jobs", "--history", "--step", "week"),
        ("jobs", "--history", "--group", "absent"),
    ],
)
def test_options_that_do_not_go_together_are_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert "error: " in cli("stats", *words, code=2).err


def test_a_queue_without_history_says_so(cli: Cli, client: cassq.Client) -> None:
    client.create_queue("new")
    assert "nothing was recorded" in cli("stats", "new", "--history").out.decode()


def test_stats_of_one_queue_tell_rates_and_deliveries(cli: Cli) -> None:
    text = cli("stats", "jobs").out.decode()
    assert "MESSAGES A SECOND" in text
    assert "DELIVERED" in text
    printed = cli("stats", "jobs", "--json").json()
    assert set(printed["rates"]["pushed"]) == {"1m", "5m", "15m"}
    assert printed["rates"]["groups"]["default"]["committed"]["5m"] is not None
    assert printed["groups"]["default"]["deliveries"] == {"0": 180}
    assert printed["groups"]["default"]["popped"] == 20
