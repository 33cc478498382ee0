"""Reading in a stream: offsets on the driver, frames on executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cassq.spark.clients import located, place_of
from cassq.spark.decoding import arrow_schema
from cassq.spark.options import StreamOptions
from cassq.spark.reading import ScanTask, cut, read_pieces
from cassq.spark.streams.following import (
    Follower,
    Offset,
    check_offset,
    initial_offset,
    pieces_between,
)
from cassq.spark.streams.leasing import Renewals
from cassq.spark.streams.several import Followers, pieces_of_each
from cassq.spark.wording import in_spark


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. One instance stays on the driver; its copies on the executors only
    read frames."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._location = located(options.url)
        self._columns = schema
        self._several = not options.queue
        self._renewals: Renewals | None = None
        self._follower: Follower | Followers | None = None
        arrow_schema(schema, several=self._several)

    def _following(self) -> Follower | Followers:
        if self._follower is None:
            ports = place_of(self._options.url).ports
            if self._renewals is None:
                self._renewals = Renewals()
            kind = Followers if self._several else Follower
            self._follower = kind(ports, self._options, self._location, self._renewals)
        return self._follower

    @in_spark()
    def initialOffset(self) -> Offset:  # noqa: N802
        self._following()
        return initial_offset(self._location.identity, self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @in_spark()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._following().latest(start, most)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._following().reported()

    @in_spark()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._following().stop_here()

    @in_spark()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        options = self._options
        check_offset(end, self._location, several=self._several)
        pieces = (pieces_of_each if self._several else pieces_between)(start, end)
        return list(cut(pieces, options.messages_per_partition, options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with in_spark():
            yield from read_pieces(
                self._location,
                partition.pieces if isinstance(partition, ScanTask) else (),
                self._columns,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )

    @in_spark()
    def commit(self, end: Offset) -> None:
        self._following().ack(end)

    def stop(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        if self._renewals is not None:
            self._renewals.close()
            self._renewals = None
