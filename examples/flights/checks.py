"""What must be true at the end: the queue's own audit, and results equal to the data frame's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas

import archive
from crew import GROUPS, QUEUE, queue_url
from delays import Slot, Total

SHOWN = 5


class Check(NamedTuple):
    """One thing that was checked; it passed if nothing is wrong."""

    name: str
    wrong: list[str]

    @property
    def passed(self) -> bool:
        return not self.wrong


def check_audit(directory: Path, flights: int) -> Check:
    """`cassq audit` balances, and says that every group has committed every flight."""
    done = subprocess.run(
        [sys.executable, "-m", "cassq", "audit", QUEUE, "--json"],
        env={**os.environ, "CASSQ_URL": queue_url(directory)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    name = "the audit balances, with every flight committed by every group"
    if done.returncode != 0 or not done.stdout:
        return Check(name, [f"cassq audit ended with exit code {done.returncode}: {done.stdout}"])
    audit = json.loads(done.stdout)
    wrong = [] if audit["balanced"] else [f"the audit does not balance: {done.stdout}"]
    if audit["pushed"] != flights:
        wrong.append(f"{audit['pushed']:,} messages were pushed for {flights:,} flights")
    wrong += [
        f"{group}: of {flights:,} messages {audit['groups'][group]}"
        for group in GROUPS
        if audit["groups"][group]["committed"] != flights
    ]
    return Check(name, wrong)


def check_delays(found: dict[Slot, Total], flights: pandas.DataFrame) -> Check:
    """The totals made from messages are those that the data frame gives."""
    by_slot = flights.groupby(list(Slot._fields))["dep_delay"]
    expected = {
        Slot(*slot): Total(*map(int, row))
        for slot, *row in by_slot.agg(["size", "count", "sum"]).itertuples(name=None)
    }
    wrong = [
        f"{slot.carrier} from {slot.origin} at {slot.hour}:00: the queue gave {found.get(slot)}, "
        f"the data frame {expected.get(slot)}"
        for slot in sorted(found.keys() | expected.keys())
        if found.get(slot) != expected.get(slot)
    ]
    return Check("delays by carrier, airport and hour equal the data frame's", wrong)


def check_archive(found: archive.Merged, flights: pandas.DataFrame) -> Check:
    """The archive has the data frame's rows, each once."""
    columns = list(flights.columns)
    rows = found.rows.select(columns).to_pandas(types_mapper=_pandas_type)
    # No two flights of the data are alike, so rows can be matched by their values.
    both = flights.merge(rows, on=columns, how="outer", indicator="side")
    missing = int((both["side"] == "left_only").sum())
    invented = int((both["side"] == "right_only").sum())
    wrong = []
    if missing or invented:
        wrong.append(f"{missing:,} flights are missing, {invented:,} rows are no flights")
    if len(rows) != len(flights):
        wrong.append(f"there are {len(rows):,} rows for {len(flights):,} flights")
    return Check("archived rows equal the data frame's", wrong)


def describe(check: Check) -> Iterator[str]:
    """The check as lines to print, with the first few things that are wrong."""
    yield f"{'ok   ' if check.passed else 'WRONG'}  {check.name}"
    yield from (f"       {line}" for line in check.wrong[:SHOWN])
    if len(check.wrong) > SHOWN:
        yield f"       and {len(check.wrong) - SHOWN} more"


def _pandas_type(arrow_type: Any) -> Any:
    """The types that `data.read_flights` gives, in which a missing number is NA and not a float."""
    return {"int64": pandas.Int64Dtype(), "string": pandas.StringDtype()}[str(arrow_type)]
