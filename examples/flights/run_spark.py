"""The command: departures through queues and Spark, with the driver killed in the middle."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import click

import cassq
from place import leave, take_place
from spark.departures import ALL, departures
from spark.pipeline import Places
from spark.watching import DriverError, Watch, create_queues

DEPARTURES_MIN = 5_000  # of fewer, half may be over before there is any alert
SUMMARY = "summary.json"


@click.command()
@click.option(
    "--departures",
    "count",
    type=click.IntRange(DEPARTURES_MIN, ALL),
    default=ALL,
    show_default=True,
    help="Take only the first so many departures of the year.",
)
@click.option(
    "--batches",
    type=click.IntRange(4, 1_000),
    default=10,
    show_default=True,
    help="In how many batches each query reads them.",
)
@click.option(
    "--kill/--no-kill",
    default=True,
    show_default=True,
    help="Kill the driver half way, in the middle of a batch, and start it again.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep queues, checkpoints, logs and results here, in an empty or new directory."
    "  [default: a temporary one, removed at the end]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent / "spark" / "out",
    help="Where the picture, the windows and summary.json go."
    "  [default: the folder `spark/out` beside this script]",
)
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help="Run nothing: check what an earlier run left in --dir (with the same --departures).",
)
def main(
    count: int, batches: int, kill: bool, directory: Path | None, out: Path, check_only: bool
) -> None:
    """Send 336,776 real departures through a queue and Spark, kill the driver on the way, and
    check that nothing was lost and nothing is there twice.

    The departures are written to a queue as a DataFrame. Two streaming queries read it, each for
    a group of its own, join planes and weather, and sum up delays by airport and six hours: one
    writes the windows to Parquet, the other the worst of them to a queue of alerts. Half way the
    driver, with its JVM, is killed with SIGKILL in the middle of a batch, and started again.

    At the end the windows have to equal those that pandas computes straight from the data, each
    bad window has to be an alert once, and both queues' audits have to balance: otherwise this
    says what differs, and exits with 1.

    It needs a JDK, 17 or later, and no server: Spark runs on this machine, two tasks at a time.

    Try, for example:

    \b
      run_spark.py --departures 20000   three weeks of January
      run_spark.py --no-kill            the same in a quiet world
      run_spark.py --dir kept           keep the queues, and look at them afterwards:
      cassq --url file:kept/queues peek alerts
      run_spark.py --dir kept --check   check the kept results again, after changing one
    """
    if not check_only and shutil.which("java") is None:
        raise click.UsageError("Spark needs a JDK, 17 or later, and no java is on the PATH")
    places = Places(take_place(directory, check_only, lambda at: Places(at).collected))
    out.mkdir(parents=True, exist_ok=True)
    watch = None if check_only else run(places, count, batches, kill=kill)
    passed = conclude(places, count, watch, out)
    leave(places.directory, kept=directory is not None, passed=passed)


def run(places: Places, count: int, batches: int, *, kill: bool) -> Watch:
    """All of it, but for the checks."""
    print(f"{count:,} departures; two queries, each in {batches} batches")
    create_queues(places)
    watch = Watch(places, count, batches)
    try:
        watch.run(kill=kill)
    except DriverError as error:
        raise click.ClickException(f"{error}\nwhat it left is in {places.directory}") from error
    return watch


def conclude(places: Places, count: int, watch: Watch | None, out: Path) -> bool:
    """Check everything, write all files; returns whether every check passed."""
    from spark import checks, picture  # here: they load pandas and matplotlib

    flights = departures(count)
    expected = checks.compute(flights)
    found = checks.read_windows(places)
    with cassq.connect(places.url) as client:
        alerts = checks.read_alerts(client)
        results = [
            checks.check_queues(client, count),
            checks.check_windows(found, expected),
            checks.check_alerts(alerts, expected),
        ]
    passed = all(check.passed for check in results)
    print("\n" + "\n".join(line for check in results for line in checks.describe(check)))

    mark = None
    if watch is not None and watch.kill is not None:
        row = min(watch.kill.sample.acked["windows"], count - 1)  # they are read in this order
        at = datetime.fromisoformat(flights["time_hour"].iloc[row])
        mark = picture.Mark(at, watch.kill.sample.seconds)
    picture.draw(found, alerts, watch.samples if watch else (), mark, out / "delays.png")
    shutil.copyfile(places.collected, out / "windows.parquet")
    summary: dict[str, Any] = {
        "departures": count,
        "windows": len(found),
        "alerts": len(alerts),
        "passed": passed,
        "checks": {check.name: check.wrong for check in results},
    }
    if watch is not None:
        summary |= {"drivers": watch.drivers, "seconds": round(watch.seconds, 1)}
        killed = watch.kill
        summary["killed"] = killed and {**killed.sample._asdict(), "cut": killed.cut}
    (out / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\nin {out}: delays.png, windows.parquet, {SUMMARY}")
    return passed


if __name__ == "__main__":
    main()
