"""Receipts: strings that name a delivery of a message, for `Queue.settle`."""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from typing import NamedTuple

from xxhash import xxh3_64

from cassq.errors import UsageError

_CHECK_BYTES = 4
_BETWEEN = "|"
_REMEMBERED = 2048
# Base64 in URLs: `-` and `_` for what others write as `+` and `/`.
_OURS, _OTHERS = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


class Receipt(NamedTuple):
    """A delivery of a message: the group that it is for, its place, and the holder of its claim,
    which is a different one for each claim."""

    group_id: str
    pipe_id: str
    seq: int
    holder: str

    @property
    def text(self) -> str:
        """As users see it: letters, digits, `-` and `_`."""
        body = _BETWEEN.join((self.group_id, self.pipe_id, str(self.seq), self.holder)).encode()
        raw = binascii.b2a_base64(_check(body) + body, newline=False)
        return _memory.add(raw.rstrip(b"=").translate(_OURS).decode(), self)


class _Memory:
    """The receipts that this process made or parsed last, by their texts. Most receipts are settled
    in the process that made them, and some are parsed once more before they are settled.

    It takes no lock: at worst, threads that use it at once make it forget a receipt too early.
    """

    def __init__(self) -> None:
        self._new: dict[str, Receipt] = {}
        self._old: dict[str, Receipt] = {}

    def add(self, text: str, receipt: Receipt) -> str:
        if len(self._new) >= _REMEMBERED:
            self._old, self._new = self._new, {}
        self._new[text] = receipt
        return text

    def find(self, text: str) -> Receipt | None:
        return self._new.get(text) or self._old.get(text)


_memory = _Memory()


def parsed(text: object) -> Receipt:
    """The receipt with this text. Raises UsageError for anything else."""
    if not isinstance(text, str):
        raise UsageError(
            f"a receipt is a str, not {type(text).__name__}", hint="pass message.receipt"
        )
    return _memory.find(text) or _read(text)


def _read(text: str) -> Receipt:
    try:
        raw = binascii.a2b_base64(
            text.encode("ascii").translate(_OTHERS) + b"=" * (-len(text) % 4), strict_mode=True
        )
        body = raw[_CHECK_BYTES:]
        if _check(body) != raw[:_CHECK_BYTES]:
            raise ValueError("damaged")
        group_id, pipe_id, seq, holder = body.decode().split(_BETWEEN)
        receipt = Receipt(group_id, pipe_id, int(seq), holder)
    except (binascii.Error, ValueError) as exc:
        raise UsageError(
            f"{text!r:.100} is not a receipt", hint="pass message.receipt unchanged"
        ) from exc
    _memory.add(text, receipt)
    return receipt


def parsed_all(texts: str | Iterable[str]) -> list[Receipt]:
    """The receipt with this text, or those with these, each once. Raises UsageError."""
    if isinstance(texts, str):
        return [parsed(texts)]
    if not isinstance(texts, Iterable):
        raise UsageError(
            f"receipts must be a str or several of them, not {type(texts).__name__}",
            hint="pass message.receipt, or a list of them",
        )
    return list(dict.fromkeys(map(parsed, texts)))


def _check(body: bytes) -> bytes:
    """A checksum, by which a receipt that was cut off or changed is recognised."""
    return xxh3_64(body).digest()[:_CHECK_BYTES]
