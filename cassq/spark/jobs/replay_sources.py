"""Where a replay takes messages from: finished pipes that are still stored, or an archive."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from cassq.client.client import Client
from cassq.errors import ConfigError
from cassq.spark.jobs.archive import WHOLE, folder_name, stored_pipes
from cassq.spark.jobs.compact import PACK, PIPE, pipes_of
from cassq.spark.jobs.folders import Folder
from cassq.spark.jobs.pipes_source import read_pipes
from cassq.spark.options import SCHEMA

MESSAGES_PER_CHUNK = 10_000


class ReplayChunk(NamedTuple):
    """Messages `first .. end` of a pipe."""

    pipe_id: str
    first: int
    end: int


class Source(abc.ABC):
    """Pipes that no longer change. lengths: how many messages each has."""

    lengths: dict[str, int]

    @abc.abstractmethod
    def read(self, pipe_ids: list[str]) -> DataFrame:
        """The messages of these pipes, with the columns of a batch read."""


class Stored(Source):
    """The finished pipes of a queue. Reading raises ExtentMissingError for one that was removed."""

    def __init__(self, spark: SparkSession, client: Client, queue: str) -> None:
        pipes = stored_pipes(client.ports, client.queue(queue).row.id)
        self._spark, self._url = spark, client.url
        self.lengths: dict[str, int] = {
            pipe.id: pipe.end.seq for pipe in pipes if pipe.end is not None
        }

    def read(self, pipe_ids: list[str]) -> DataFrame:
        wanted = {pipe_id: self.lengths[pipe_id] for pipe_id in pipe_ids}
        return read_pipes(self._spark, self._url, wanted, fail_on_data_loss=True)


class Archive(Source):
    """The complete pipes of a queue that the job `archive` wrote, or the packs that `compact` made
    of them. Raises ConfigError if there are none."""

    def __init__(self, spark: SparkSession, directory: str, queue: str) -> None:
        self._spark = spark
        self._folder = Folder(spark, directory) / folder_name(queue)
        names = self._folder.names() if self._folder.exists() else []
        self._packs = {
            name: set(pipe_ids)
            for name in names
            if name.startswith(PACK)
            for pipe_ids in [pipes_of(self._folder / name)]
            if pipe_ids is not None
        }
        pipes = [name for name in names if name.startswith(PIPE) and self._is_there(name)]
        found = [name.removeprefix(PIPE) for name in pipes]
        found += [pipe_id for pipe_ids in self._packs.values() for pipe_id in pipe_ids]
        if not found:
            raise ConfigError(f"nothing of queue {queue!r} is archived in {directory!r}")
        most = self.read(found)
        rows = most.groupBy("pipe").agg(sql.max("seq").alias("last")).collect()
        self.lengths: dict[str, int] = {row["pipe"]: row["last"] + 1 for row in sorted(rows)}

    def _is_there(self, name: str) -> bool:
        """Whether a pipe is complete, and was not moved to a pack."""
        files = (self._folder / name).sizes()
        return WHOLE in files and len(files) > 1

    def read(self, pipe_ids: list[str]) -> DataFrame:
        wanted = set(pipe_ids)
        packs = [name for name, packed in self._packs.items() if packed & wanted]
        single = sorted(wanted.difference(*(self._packs[name] for name in packs)))
        frames = []
        if single or not packs:
            paths = [(self._folder / f"{PIPE}{pipe_id}").path for pipe_id in single]
            reader = self._spark.read.schema(SCHEMA).option("basePath", self._folder.path)
            frames.append(reader.parquet(*paths))
        if packs:
            paths = [(self._folder / name).path for name in packs]
            whole = self._spark.read.schema(SCHEMA).parquet(*paths)
            frames.append(whole.where(sql.col("pipe").isin(sorted(wanted))))
        return reduce(DataFrame.unionByName, frames)


def chunks(lengths: Mapping[str, int]) -> Iterator[ReplayChunk]:
    """Cut pipes into chunks by seq alone, so that the chunks are the same in every run. Pure."""
    for pipe_id, length in lengths.items():
        for first in range(0, length, MESSAGES_PER_CHUNK):
            yield ReplayChunk(pipe_id, first, min(length, first + MESSAGES_PER_CHUNK))
