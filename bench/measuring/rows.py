"""The rows that Spark writes and reads: made by Spark once a run, kept as Parquet, the same for all
sides; and the tally by which each copy of them is checked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from bench.measuring.drain import LostMessagesError

FILES = 4
# Two digests of the row's number make 100 bytes that nobody can compress, all different.
DIGEST = "unhex(sha2(cast(concat(id, '{}') as binary), 512))"
PAYLOAD = f"substring(concat({DIGEST.format('a')}, {DIGEST.format('b')}), 1, 100)"


class Tally(NamedTuple):
    """How many payloads, the sum of their CRC-32, and all of these by exclusive or. One that is
    lost, doubled or changed moves at least one of them."""

    messages: int
    total: int
    mixed: int

    def plus(self, payloads: Iterable[bytes]) -> Tally:
        messages, total, mixed = self
        for code in map(zlib.crc32, payloads):
            messages, total, mixed = messages + 1, total + code, mixed ^ code
        return Tally(messages, total, mixed)

    def joined(self, other: Tally) -> Tally:
        """Of both."""
        messages, total, mixed = other
        return Tally(self.messages + messages, self.total + total, self.mixed ^ mixed)

    def check(self, found: Tally, what: str) -> None:
        """Raises LostMessagesError when others were found than these."""
        if found.messages != self.messages:
            raise LostMessagesError(f"{what}: {found.messages} messages, not {self.messages}")
        if found != self:
            raise LostMessagesError(f"{what}: {self.messages} messages, but not those that went in")


NOTHING = Tally(0, 0, 0)


def tally_of(frame: Any, column: str = "payload") -> Tally:
    """The tally of a frame, by Spark itself."""
    code = f"crc32({column})"
    found = frame.selectExpr("count(*)", f"sum({code})", f"bit_xor({code})").first()
    return Tally(*(number or 0 for number in found))


@dataclass(frozen=True)
class Rows:
    """Rows with an `id`, from 0 on, and a `payload` of 100 bytes, on disk."""

    directory: Path
    count: int

    @property
    def path(self) -> Path:
        return self.directory / f"rows-{self.count}"

    @property
    def _told(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def made(self) -> bool:
        return self._told.exists()

    def make(self, spark: Any) -> Self:
        """Make them, once."""
        ids = spark.range(0, self.count, numPartitions=FILES)
        writer = ids.selectExpr("id", f"{PAYLOAD} as payload").write
        writer.option("compression", "none").parquet(str(self.path))
        self._told.write_text(json.dumps(tally_of(spark.read.parquet(str(self.path)))))
        return self

    def tally(self) -> Tally:
        return Tally(*json.loads(self._told.read_text()))

    def frame(self, spark: Any) -> Any:
        """The rows in Spark's memory: reading them from the disk is not measured."""
        frame = spark.read.parquet(str(self.path)).coalesce(FILES).cache()
        frame.count()
        return frame

    def chunks(self, size: int) -> Iterator[list[bytes]]:
        """The payloads for a program without Spark."""
        from pyarrow import dataset

        for batch in dataset.dataset(str(self.path)).to_batches(
            columns=["payload"], batch_size=size
        ):
            yield batch.column(0).to_pylist()
