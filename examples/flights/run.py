"""The command: a year of flights through a queue, with poppers killed in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

import archive
import delays
from crew import GROUPS, Crew, Plan, WorkerError, create_queue
from place import leave, take_place
from progress import Progress

# A limit far below would leave the picture empty.
FLIGHTS_MIN, FLIGHTS_MAX = 1_000, 336_776


@click.command()
@click.option(
    "--pushers",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    help="Processes that push, each its share of the flights.",
)
@click.option(
    "--poppers",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Processes that pop, in each of the two groups.",
)
@click.option(
    "--limit",
    type=click.IntRange(FLIGHTS_MIN, FLIGHTS_MAX),
    default=FLIGHTS_MAX,
    show_default=True,
    help="Take only the first so many flights.",
)
@click.option(
    "--kill/--no-kill",
    default=True,
    show_default=True,
    help="Kill one popper of each group half way, while it holds uncommitted messages.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the queue and the poppers' results here, in an empty or new directory."
    "  [default: a temporary one, removed at the end]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent / "out",
    help="Where the picture, the merged archive and summary.json go."
    "  [default: the folder `out` beside this script]",
)
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help="Run nothing: check what an earlier run left in --dir (with the same --limit).",
)
def main(
    pushers: int,
    poppers: int,
    limit: int,
    kill: bool,
    directory: Path | None,
    out: Path,
    check_only: bool,
) -> None:
    """Send 336,776 real flights through a cassq queue, kill poppers on the way, and check that
    nothing was lost and nothing counted twice.

    The flights are all departures from New York's three airports in 2013. Pushers push each as
    one JSON message. Two groups of poppers see every message: `delays` sums up the departure
    delays by airline, airport and hour, `archive` writes Parquet files. Half way, one popper of
    each group is killed with SIGKILL while it holds messages that it has not committed; when
    their claim runs out, after 5 seconds, another popper gets them.

    At the end `cassq audit` has to balance, and both groups' results have to equal those computed
    straight from the data frame: otherwise this says what differs, and exits with 1. A picture
    of the delays is drawn from what came through the queue.

    Try, for example:

    \b
      run.py --no-kill             the same in a quiet world: nothing is redelivered
      run.py --poppers 4           more poppers compete in each group
      run.py --dir kept            keep the queue, and look at it afterwards:
      cassq --url file:kept/queue stats flights
      run.py --dir kept --check    check the kept results again, after changing one
    """
    if kill and poppers < 2 and not check_only:
        raise click.UsageError("one popper in a group leaves nobody after the kill: --no-kill")
    place = take_place(directory, check_only, delays.place)
    plan = Plan(place, limit, pushers, poppers, kill)
    out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"flights": limit}
    if not check_only:
        summary |= run(plan)
    passed = conclude(plan, out, summary)
    leave(place, kept=directory is not None, passed=passed)


def run(plan: Plan) -> dict[str, Any]:
    """Push and pop everything; returns what happened, for the summary."""
    print(
        f"{plan.flights:,} flights; {plan.pushers} pushers; groups {' and '.join(GROUPS)}, "
        f"{plan.poppers} poppers each"
    )
    create_queue(plan)
    delays.create(plan.directory)
    archive.create(plan.directory)
    progress = Progress(plan.flights, list(GROUPS))
    crew = Crew(plan, progress)
    try:
        crew.work()
    except WorkerError as error:
        raise click.ClickException(f"{error}; what it left is in {plan.directory}") from error
    finally:
        progress.finish()
    for name, sums in progress.groups.items():
        print(f"{name}: popped {sums.popped:,}, of which redelivered {sums.redelivered:,}")
    return {
        "pushed": progress.pushed,
        "groups": {name: sums._asdict() for name, sums in progress.groups.items()},
        "killed": [death._asdict() for death in crew.deaths],
        "seconds": round(progress.seconds, 1),
    }


def conclude(plan: Plan, out: Path, summary: dict[str, Any]) -> bool:
    """Check everything, write all files; returns whether every check passed."""
    import checks  # here: they load pandas and matplotlib, which the processes need not do
    import picture
    from data import read_airlines, read_flights

    flights = read_flights(plan.flights)
    found = delays.read(plan.directory)
    merged = archive.merge(plan.directory)
    results = [
        checks.check_audit(plan.directory, plan.flights),
        checks.check_delays(found, flights),
        checks.check_archive(merged, flights),
    ]
    passed = all(check.passed for check in results)
    print("\n" + "\n".join(line for check in results for line in checks.describe(check)))

    picture.draw(found, read_airlines(), out / "delays.png")
    archive.write_whole(merged.rows, out / "flights.parquet")
    summary |= {
        "passed": passed,
        "checks": {check.name: check.wrong for check in results},
        "archive_duplicates": merged.duplicates,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"\nin {out}: delays.png, flights.parquet, summary.json")
    return passed


if __name__ == "__main__":
    main()
