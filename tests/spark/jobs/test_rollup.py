"""The job `rollup`: what was is written to Parquet, by day, and days that are over only once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import BackendError, ConfigError, QueueNotFoundError
from cassq.inspect.history import DAY_MS, DEPTHS, HOUR_MS, MINUTE_MS, TOTALS, Point
from cassq.model.rows import Sample
from tests.integration.stage import alone
from tests.spark.jobs.test_archive import files
from tests.spark.places import everywhere

Settle = Callable[[int], None]


pytestmark = pytest.mark.long(reason="a minute of Spark jobs, one after another")


@pytest.fixture
def noon_ms(client: cassq.Client) -> int:
    """Noon of the present day, in catalog time. Nobody else takes, or forgets, samples."""
    alone(client)
    now_ms = client.ports.catalog.now_ms()
    return now_ms - now_ms % DAY_MS + DAY_MS // 2


@pytest.fixture
def set_clock(client: cassq.Client, noon_ms: int, monkeypatch: pytest.MonkeyPatch) -> Settle:
    """What time it is for the job; noon at first."""
    from cassq.spark.clients import absolute, client_of

    catalog = client_of(absolute(client.url)).ports.catalog
    times = [noon_ms]
    monkeypatch.setattr(catalog, "now_ms", lambda: times[0])

    def settle(now_ms: int) -> None:
        times[0] = now_ms

    return settle


def sample(subject: str, step_ms: int, at_ms: int, pushed: int) -> Sample:
    """What was at that time, made up from how much was pushed."""
    totals = dict.fromkeys(TOTALS, 0) | {"pushed": pushed, "committed": pushed // 2}
    depths = dict.fromkeys(DEPTHS, 0) | {"waiting": pushed % 7, "oldest_age": pushed / 4}
    most = {**depths, "waiting": pushed % 7 + (step_ms > MINUTE_MS)}
    data = {"taken_ms": at_ms + 500, "totals": totals, "depths": depths, "most": most}
    return Sample(subject, step_ms, at_ms - at_ms % step_ms, json.dumps(data))


def subjects(client: cassq.Client, queue: cassq.Queue) -> list[str]:
    return [queue.id, *(group.id for group in client.ports.catalog.queues.groups(queue.id))]


def add(client: cassq.Client, queue: cassq.Queue, step_ms: int, *counts: tuple[int, int]) -> None:
    """Samples of the queue and its groups: (time, pushed) each."""
    of_all = [
        sample(subject, step_ms, *each) for subject in subjects(client, queue) for each in counts
    ]
    client.ports.catalog.records.add_samples(of_all)


def rolled(spark: Any, client: cassq.Client, to: Path, *queues: cassq.Queue, **how: Any) -> Any:
    from cassq.spark.jobs.rollup import rollup

    return rollup(spark, client.url, str(to), [queue.name for queue in queues], **how)


def table(to: Path, name: str, group: str | None = "default") -> list[dict[str, Any]]:
    """The rows of a group as another program than Spark sees them, oldest first, with times in
    milliseconds."""
    from pyarrow import dataset, int64, timestamp

    found = dataset.dataset(to / name, format="parquet", partitioning="hive").to_table()
    times = found["at"].cast(timestamp("ms")).cast(int64())
    rows = found.drop_columns(["at"]).append_column("ms", times).to_pylist()
    return sorted((row for row in rows if row["group"] == group), key=lambda row: row["ms"])


def same(row: dict[str, Any], point: Point) -> bool:
    """Whether a row says what the history says of that time."""
    return (
        row["ms"] == round(point.at.timestamp() * 1000)
        and all(row[name] == value for name, value in point.totals.items())
        and all(row[name] == value for name, value in point.depths.items())
        and all(row[f"most_{name}"] == value for name, value in point.most.items())
    )


def day(at_ms: int) -> str:
    from cassq.spark.jobs.rollup_rows import day_of

    return day_of(at_ms)


# --- what is written ----------------------------------------------------------------------------


@everywhere
@pytest.mark.usefixtures("set_clock")
def test_hours_and_days_are_what_the_history_says(
    spark: Any, client: cassq.Client, queue: cassq.Queue, noon_ms: int, tmp_path: Path
) -> None:
    queue.create_group("late")
    add(client, queue, DAY_MS, (noon_ms - 100 * DAY_MS, 10))
    add(client, queue, HOUR_MS, *((noon_ms - 9 * DAY_MS + n * HOUR_MS, 20 + n) for n in range(3)))
    minutes = [(noon_ms - DAY_MS + n * 20 * MINUTE_MS, 100 + 10 * n) for n in range(7)]
    add(client, queue, MINUTE_MS, *minutes, (noon_ms - HOUR_MS, 200), (noon_ms, 230))
    done = rolled(spark, client, tmp_path, queue)
    (sums,) = done.queues
    assert (sums.queue, sums.days, sums.unfinished, sums.samples) == (queue.name, 3, 1, 13 * 3)
    hours, days = (table(tmp_path, name, "late") for name in ("hours", "days"))
    since = days[0]["ms"] / 1000
    for step, rows in (("hour", hours), ("day", days)):
        points = queue.history("late", step=step, since=datetime.fromtimestamp(since, UTC))
        points = [point for point in points if step == "day" or len(rows) == len(points)]
        assert len(points) == len(rows)
        assert all(map(same, rows, points))
    assert [row["step"] for row in days] == ["day", "hour", "minute", "minute"]
    assert [row["samples"] for row in hours] == [1, 1, 1, 3, 3, 1, 1, 1]
    assert [row["grown_pushed"] for row in days] == [None, 12, 138, 70]
    assert [row["grown_pushed"] for row in hours][3:] == [98, 30, 10, 40, 30]
    assert hours[3]["mean_waiting"] == pytest.approx((100 % 7 + 110 % 7 + 120 % 7) / 3)
    whole = table(tmp_path, "days", None)
    assert [(row["pushed"], row["grown_pushed"]) for row in whole][-1] == (230, 70)


def test_all_queues_are_written_by_their_names_also_those_without_a_history(
    spark: Any, client: cassq.Client, noon_ms: int, set_clock: Settle, tmp_path: Path
) -> None:
    eu, _, zero = map(client.create_queue, ("/orders/eu", "new", "007"))
    for each in (eu, zero):
        add(client, each, MINUTE_MS, (noon_ms - DAY_MS, 5), (noon_ms, 6))
    reports: list[Any] = []
    done = rolled(spark, client, tmp_path, queues_per_step=2, progress=reports.append)
    assert [(each.queue, each.days, each.unfinished, each.samples) for each in done.queues] == [
        ("/orders/eu", 1, 1, 4),
        ("007", 1, 1, 4),
        ("new", 0, 0, 0),
    ]
    assert [tuple(each) for each in reports] == [(0, 3, 0), (2, 3, 8), (3, 3, 8)]
    read = spark.read.schema("queue string, pushed bigint").parquet(str(tmp_path / "days"))
    found = {row.queue for row in read.collect()}
    assert found == {"/orders/eu", "007"}
    (again,) = rolled(spark, client, tmp_path, eu).queues
    assert (again.days, again.unfinished) == (0, 1)


@pytest.mark.usefixtures("set_clock")
def test_messages_that_were_lost_are_in_the_tables_and_older_samples_do_not_say(
    spark: Any, client: cassq.Client, queue: cassq.Queue, noon_ms: int, tmp_path: Path
) -> None:
    (_, group_id) = subjects(client, queue)

    def lost(at_ms: int, count: int | None) -> Sample:
        """A sample; without a count as those taken before anything was recorded as lost."""
        found = sample(group_id, MINUTE_MS, at_ms, 10)
        data = json.loads(found.data)
        del data["totals"]["lost"]
        data["totals"] |= {} if count is None else {"lost": count}
        return replace(found, data=json.dumps(data))

    times = [noon_ms - DAY_MS, noon_ms - 2 * HOUR_MS, noon_ms - HOUR_MS, noon_ms]
    samples = map(lost, times, (None, 3, 3, 8))
    client.ports.catalog.records.add_samples(list(samples))
    rolled(spark, client, tmp_path, queue)
    hours, days = (table(tmp_path, name) for name in ("hours", "days"))
    assert [(row["lost"], row["grown_lost"]) for row in hours] == [
        (None, None),
        (3, None),
        (3, 0),
        (8, 5),
    ]
    assert [(row["lost"], row["grown_lost"]) for row in days] == [(None, None), (8, 5)]


# --- runs that come again -----------------------------------------------------------------------


def test_a_day_that_is_over_is_written_once_and_one_that_is_not_is_replaced(
    spark: Any,
    client: cassq.Client,
    queue: cassq.Queue,
    noon_ms: int,
    set_clock: Settle,
    tmp_path: Path,
) -> None:
    def of_day(at_ms: int) -> dict[str, int]:
        return {
            path: at
            for path, at in files(tmp_path).items()
            if f"queue={queue.name}/day={day(at_ms)}" in path
        }

    add(client, queue, MINUTE_MS, (noon_ms - DAY_MS, 5), (noon_ms - HOUR_MS, 9))
    rolled(spark, client, tmp_path, queue)
    over, open_ = of_day(noon_ms - DAY_MS), of_day(noon_ms)
    assert {Path(path).parts[-4] for path in over} == {"samples", "hours", "days"}
    add(client, queue, MINUTE_MS, (noon_ms - DAY_MS + MINUTE_MS, 6), (noon_ms, 30))
    done = rolled(spark, client, tmp_path, queue)
    assert (done.queues[0].days, done.queues[0].unfinished) == (0, 1)
    assert of_day(noon_ms - DAY_MS) == over
    assert not of_day(noon_ms).keys() & open_.keys()
    (hour, later) = table(tmp_path, "hours")[1:]
    assert (hour["grown_pushed"], later["grown_pushed"]) == (3, 21)
    assert [row["pushed"] for row in table(tmp_path, "days")] == [5, 30]
    set_clock(noon_ms + DAY_MS // 2 + 5 * MINUTE_MS)
    assert rolled(spark, client, tmp_path, queue).queues[0].days == 1
    before = files(tmp_path)
    assert rolled(spark, client, tmp_path, queue).queues[0].samples == 0
    assert files(tmp_path) == before
    assert [Path(path).name for path in before if "/_whole/" in path and ".crc" not in path] == [
        f"{queue.name}={day(noon_ms)}"
    ]


@pytest.mark.usefixtures("spark", "set_clock")
def test_what_a_killed_run_left_unfinished_is_written_again_and_the_command_says_so(
    client: cassq.Client, queue: cassq.Queue, noon_ms: int, tmp_path: Path
) -> None:
    add(client, queue, MINUTE_MS, (noon_ms - DAY_MS, 5), (noon_ms, 9))
    to = tmp_path / "out"
    words = ["spark", "rollup", str(to), queue.name, "--url", client.url]
    first = CliRunner().invoke(main, [*words, "--json"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout) == {
        "directory": str(to),
        "queues": [{"queue": queue.name, "days": 1, "unfinished": 1, "samples": 4}],
    }
    wanted = [table(to, name) for name in ("samples", "hours", "days")]
    place = f"queue={queue.name}/day={day(noon_ms - DAY_MS)}"
    for path in (*(to / "_whole").iterdir(), *(to / "samples" / place).iterdir()):
        path.unlink()
    (to / "hours" / place / "part-stray.parquet").write_bytes(b"half")
    stale = to / "_staging" / "days" / "queue=stale"
    stale.mkdir(parents=True)
    second = CliRunner().invoke(main, words)
    assert second.stdout.split() == [
        *("QUEUE", "DAYS", "UNFINISHED", "SAMPLES"),
        *(queue.name, "1", "1", "4"),
    ]
    assert [table(to, name) for name in ("samples", "hours", "days")] == wanted
    assert not (to / "_staging").exists()


# --- calls that are wrong ------------------------------------------------------------------------


def test_what_is_wrong_with_a_call_is_said(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    from cassq.spark.jobs.rollup import rollup

    with pytest.raises(QueueNotFoundError):
        rollup(spark, client.url, str(tmp_path), ["nope"])
    with pytest.raises(ConfigError, match="queues_per_step"):
        rolled(spark, client, tmp_path, queues_per_step=0)
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="Spark"):
        rolled(spark, client, tmp_path / "file", queue)


def test_it_runs_in_the_session_it_is_given_whatever_was_made_later(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    """It ran in the newest, such as that of a stream's batch, which then stayed the active one: the
    session's own data sources were not found any more."""
    spark.newSession()
    rolled(spark, client, tmp_path, queue)
    active = spark._jvm.SparkSession.getActiveSession().get()
    assert active.equals(spark._jsparkSession)
