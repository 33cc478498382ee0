"""The group `archive`: every flight as a row of Parquet.

The pattern: each batch becomes a file of its own, complete and on disk before the commit, with
the message's id beside each row. A message that comes again may be in two files; when the files
are merged, one row is kept for each id.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet

import cassq

SCHEMA = pyarrow.schema(
    [
        ("message_id", pyarrow.string()),
        ("year", pyarrow.int64()),
        ("month", pyarrow.int64()),
        ("day", pyarrow.int64()),
        ("dep_time", pyarrow.int64()),
        ("sched_dep_time", pyarrow.int64()),
        ("dep_delay", pyarrow.int64()),
        ("arr_time", pyarrow.int64()),
        ("sched_arr_time", pyarrow.int64()),
        ("arr_delay", pyarrow.int64()),
        ("carrier", pyarrow.string()),
        ("flight", pyarrow.int64()),
        ("tailnum", pyarrow.string()),
        ("origin", pyarrow.string()),
        ("dest", pyarrow.string()),
        ("air_time", pyarrow.int64()),
        ("distance", pyarrow.int64()),
        ("hour", pyarrow.int64()),
        ("minute", pyarrow.int64()),
        ("time_hour", pyarrow.string()),
    ]
)


class Merged(NamedTuple):
    """One row for each message, and how many rows were there twice."""

    rows: pyarrow.Table
    duplicates: int


class Archive:
    """The files of one popper; no two poppers write the same one."""

    def __init__(self, directory: Path) -> None:
        self._folder = place(directory)

    def write(self, messages: Sequence[cassq.Message]) -> int:
        """Write one file. Whether a row is in another file too is found when they are merged."""
        rows = [{"message_id": m.id, **json.loads(m.payload)} for m in messages]
        write_whole(pyarrow.Table.from_pylist(rows, schema=SCHEMA), self._folder / new_name())
        return len(rows)


def create(directory: Path) -> None:
    """Make the folder, once and before any popper starts."""
    place(directory).mkdir()


def merge(directory: Path) -> Merged:
    """All rows of all files, without those that came twice."""
    files = [pyarrow.parquet.read_table(path) for path in place(directory).glob("*.parquet")]
    rows = pyarrow.concat_tables([SCHEMA.empty_table(), *files])
    first: dict[str, int] = {}
    for number, message_id in enumerate(rows["message_id"].to_pylist()):
        first.setdefault(message_id, number)
    return Merged(rows.take(list(first.values())), len(rows) - len(first))


def write_whole(table: pyarrow.Table, path: Path) -> None:
    """Write a Parquet file that is either there, complete and on disk, or not there at all."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        pyarrow.parquet.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)  # the new name has to be on disk too
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def new_name() -> str:
    """A name nobody else takes: a batch that comes again must not overwrite the first file."""
    return f"{uuid.uuid4().hex}.parquet"


def place(directory: Path) -> Path:
    """The folder of the files."""
    return directory / "archive"
