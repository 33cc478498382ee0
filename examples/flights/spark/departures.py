"""The input: departures in the order of their hours, and the row that closes the last windows."""

from __future__ import annotations

import pandas

from data import read_flights

COLUMNS = ["time_hour", "origin", "carrier", "flight", "tailnum", "dep_delay"]
ALL = 336_776


def departures(count: int) -> pandas.DataFrame:
    """The first so many, by the hour they were planned for."""
    return read_flights()[COLUMNS].sort_values("time_hour", kind="stable").head(count)


def closing(flights: pandas.DataFrame) -> pandas.DataFrame:
    """A row of no flight, two days after the last one, and with nothing but a time.

    A window is over when something comes that is later. This is later than all; the window it is
    in itself is never over.
    """
    after = pandas.Timestamp(flights["time_hour"].iloc[-1]) + pandas.Timedelta(days=2)
    row = flights.iloc[:1].copy()
    row[COLUMNS] = pandas.NA
    row["time_hour"] = after.strftime("%Y-%m-%dT%H:%M:%SZ")
    return row
