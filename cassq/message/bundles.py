"""Bundles: messages of a pipe in memory, with their columns: frames, and retained messages."""

from __future__ import annotations

import abc
import json
from array import array
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple, TypeAlias

from cassq.message.ranges import RangeSet

Column: TypeAlias = "list[bytes | None] | dict[int, bytes | None]"
Times: TypeAlias = "int | array[int] | dict[int, int]"


class Bundle(abc.ABC):
    """Messages that were pushed together, or some of them. An index counts from `base_seq`.

    headers: as stored. keys, ids: bytes. A column that no message has is None.
    """

    __slots__ = ("_times", "base_seq", "headers", "ids", "keys", "size")

    base_seq: int
    size: int
    headers: Column | None
    keys: Column | None
    ids: Column | None
    _times: Times

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many messages it has."""

    @abc.abstractmethod
    def payloads_of(self, seqs: RangeSet) -> list[bytes]:
        """The payloads of these seqs, in order."""

    def each_payload_of(self, seqs: RangeSet) -> Iterable[bytes]:
        """The same, for a single pass: a payload may be created when it is requested, while it fits
        into the processor's cache."""
        return self.payloads_of(seqs)

    def time_ms(self, index: int) -> int:
        """When message `index` was pushed, in wall milliseconds."""
        times = self._times
        return times if isinstance(times, int) else times[index]

    def headers_at(self, index: int) -> dict[str, str]:
        """The headers of message `index`."""
        stored = self.headers[index] if self.headers else None
        headers: dict[str, str] = json.loads(stored) if stored else {}
        return headers

    def key_at(self, index: int) -> bytes | None:
        """The key of message `index`, if it has one."""
        return self.keys[index] if self.keys else None

    def keys_of(self, seqs: RangeSet) -> Iterable[bytes | None]:
        """The keys of these seqs, in order."""
        keys, base = self.keys, self.base_seq
        if not keys:
            return repeat(None, len(seqs))
        if isinstance(keys, list) and type(seqs) is RangeSet and len(seqs.ranges) == 1:
            start, end = seqs.ranges[0]
            return keys[start - base : end - base]
        return [keys[seq - base] for seq in seqs]

    def id_at(self, index: int, pipe_id: str) -> bytes:
        """The id of message `index`: the place it was first pushed to. pipe_id: where it is now."""
        first = self.ids[index] if self.ids else None
        return first or f"{pipe_id}:{self.base_seq + index}".encode()


class BundleSlice(NamedTuple):
    """Some messages of a bundle."""

    bundle: Bundle
    seqs: RangeSet

    @property
    def share(self) -> int:
        """Its share of the bytes that the bundle takes."""
        return self.bundle.size * len(self.seqs) // max(1, self.bundle.count)

    def kept(self, seqs: RangeSet) -> BundleSlice:
        """The given messages, without keeping the bytes of the others in memory."""
        if isinstance(self.bundle, RetainedBundle) and len(seqs) == self.bundle.count:
            return BundleSlice(self.bundle, seqs)
        return BundleSlice(RetainedBundle(self.bundle, seqs), seqs)


class RetainedBundle(Bundle):
    """Copies of some messages of a bundle. size: approximate bytes in memory."""

    __slots__ = ("_payloads",)

    def __init__(self, bundle: Bundle, seqs: RangeSet) -> None:
        self.base_seq: int = bundle.base_seq
        indexes = [seq - bundle.base_seq for seq in seqs]
        self._payloads = dict(zip(seqs, bundle.payloads_of(seqs), strict=True))
        times = bundle._times
        self._times = times if isinstance(times, int) else {i: times[i] for i in indexes}
        columns = [_some(column, indexes) for column in (bundle.headers, bundle.keys, bundle.ids)]
        self.headers: Column | None = columns[0]
        self.keys: Column | None = columns[1]
        self.ids: Column | None = columns[2]
        self.size: int = sum(map(len, self._payloads.values())) + _OVERHEAD * len(indexes)
        for column in columns:
            if column:
                self.size += sum(len(entry) for entry in column.values() if entry)

    @property
    def count(self) -> int:
        return len(self._payloads)

    def payloads_of(self, seqs: RangeSet) -> list[bytes]:
        return [self._payloads[seq] for seq in seqs]


_OVERHEAD = 250  # bytes that Python needs for each message


def _some(column: Column | None, indexes: Iterable[int]) -> dict[int, bytes | None] | None:
    return {index: column[index] for index in indexes} if column else None
