"""Entries: pushes that wait to be appended, and the checks of what is pushed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise

from cassq.errors import InvalidPayloadError, MessageTooLargeError
from cassq.message.batches import Batch, Intend, Receipt
from cassq.message.columns import COLUMN_BYTES_MAX, encode_headers
from cassq.message.frames import MESSAGE_BYTES_MAX
from cassq.message.messages import MessageId, MessageIds, ids_of_run

OVERHEAD_BYTES = 200  # what a waiting message costs beside its payload


class Entry:
    """A push that waits to be appended: one message, or many of one `push_many`."""

    __slots__ = (
        "after", "batch", "due_ms", "error", "flight", "future", "gone", "header", "id", "ids",
        "intend",
        "key", "lane", "payload", "wake",
    )  # fmt: skip

    def __init__(
        self, payload: bytes, header: bytes | None, key: bytes | None, batch: Batch | None = None
    ) -> None:
        self.payload: bytes = payload
        self.header: bytes | None = header
        self.key: bytes | None = key
        self.batch: Batch | None = batch
        self.lane: int | None = None  # of timer pipes
        self.due_ms: int = 0  # in which it is due then
        self.intend: Intend | None = None
        self.future: Future[MessageId] | None = None
        self.wake: threading.Lock | None = None  # what its thread waits at
        self.after: Entry | None = None  # whom that thread wakes next
        self.flight: list[Entry] = []  # what its thread appends, as the leader
        self.gone: bool = False  # its thread left without waiting for the end
        self.id: MessageId = MessageId()
        self.ids: MessageIds | None = None
        self.error: Exception | None = None

    @property
    def size(self) -> int:
        """Roughly the memory it takes while it waits."""
        return len(self.payload) + len(self.header or b"") + len(self.key or b"") + OVERHEAD_BYTES

    def goes_with(self, other: Entry) -> bool:
        """Whether both may be appended together."""
        return self.batch is None and other.batch is None and self.lane == other.lane

    def wake_up(self) -> None:
        assert self.wake is not None
        if self.wake.locked():
            self.wake.release()

    @property
    def done(self) -> bool:
        return bool(self.id) or self.ids is not None or self.error is not None


def wake_in_turn(entries: list[Entry]) -> None:
    """Wake the threads of these entries, one by one: each wakes the next, so that they do not all
    stand in line for the interpreter at once."""
    waiting = [entry for entry in entries if entry.wake is not None and not entry.gone]
    for entry, after in pairwise(waiting):
        entry.after = after
    if waiting:
        waiting[0].wake_up()


def settle_futures(entries: list[Entry]) -> int:
    """Tell the futures among them that were not told yet; how many. Their callbacks run here."""
    settled = 0
    for entry in entries:
        if entry.future is not None and not entry.future.done():
            settled += 1
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.id)
    return settled


def check_payload(payload: bytes) -> bytes:
    if type(payload) is not bytes:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise InvalidPayloadError(
                f"a payload is bytes, not {type(payload).__name__}",
                hint="encode it first, for instance with json.dumps(...).encode()",
            )
        payload = bytes(payload)
    if len(payload) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"the message has {len(payload)} bytes, the limit is {MESSAGE_BYTES_MAX}"
        )
    return payload


def check_payloads(payloads: Iterable[bytes]) -> tuple[Sequence[bytes], int | None]:
    """A list of bytes, each checked, and their length if all have one. Two passes in C."""
    if isinstance(payloads, (bytes, str, bytearray, memoryview)):
        raise InvalidPayloadError(
            "push_many takes many payloads, not one", hint="use push() for a single message"
        )
    if not isinstance(payloads, Iterable):
        raise InvalidPayloadError(
            f"push_many takes many payloads, as a list of bytes, not {type(payloads).__name__}"
        )
    found = payloads if isinstance(payloads, list) else list(payloads)
    if set(map(type, found)) - {bytes}:
        found = [check_payload(payload) for payload in found]
    lengths = set(map(len, found))
    if lengths and max(lengths) > MESSAGE_BYTES_MAX:
        for payload in found:
            check_payload(payload)
    return found, lengths.pop() if len(lengths) == 1 else None


def check_key(key: bytes | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        if key is not None and len(key) > COLUMN_BYTES_MAX:
            raise MessageTooLargeError(f"a key of {len(key)} bytes is too large")
        return key
    raise InvalidPayloadError(f"a key is bytes, not {type(key).__name__}")


def gathered(entries: list[Entry], now_ms: int) -> Batch:
    """Single pushes of one lane as a batch. now_ms: wall time."""
    headers = [e.header for e in entries] if any(e.header for e in entries) else None
    keys = [e.key for e in entries] if any(e.key is not None for e in entries) else None
    dues: int | list[int] | None = None
    if entries[0].lane is not None:
        dues = entries[0].due_ms if len(entries) == 1 else [e.due_ms for e in entries]
    return Batch([e.payload for e in entries], now_ms, headers, keys, dues_ms=dues)


def check_columns(count: int, **columns: Sequence[object] | None) -> None:
    """InvalidPayloadError for a column of another length than there are payloads."""
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise InvalidPayloadError(
                f"{count} payloads came with {len(column)} {name}",
                hint="give one for each payload, None where there is none",
            )


def batched(
    payloads: Sequence[bytes],
    length: int | None,
    headers: Sequence[Mapping[str, str] | None] | None,
    keys: Sequence[bytes | None] | None,
    now_ms: int,
) -> Batch:
    """A `push_many`, its columns checked, as a batch. now_ms: wall time."""
    return Batch(
        payloads,
        now_ms,
        None if headers is None else _encoded(headers),
        None if keys is None else [check_key(k) for k in keys],
        length=length,
    )


def _encoded(headers: Sequence[Mapping[str, str] | None]) -> list[bytes | None]:
    """Headers as stored; what is the same for all is encoded once."""
    if headers and all(each is headers[0] for each in headers):
        return [encode_headers(headers[0])] * len(headers)
    return [encode_headers(each) for each in headers]


def tell(entries: list[Entry], receipts: Sequence[Receipt]) -> None:
    """Give each push its ids: many single ones theirs, or one `push_many` all."""
    if entries[0].batch is not None:
        entries[0].ids = MessageIds(receipts)
        entries[0].id = entries[0].ids[0]
        return
    at = iter(entries)
    for receipt in receipts:
        for message_id in ids_of_run(receipt):
            next(at).id = message_id
