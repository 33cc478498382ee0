"""Receipts: strings that name a delivery of a message, for `Queue.settle`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_64

from cassq.errors import UsageError

_CHECK_BYTES = 4
_BETWEEN = "|"
_REMEMBERED = 2048


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
        body = _BETWEEN.join(map(str, self)).encode()
        return base64.urlsafe_b64encode(_check(body) + body).rstrip(b"=").decode()


def parsed(text: object) -> Receipt:
    """The receipt with this text. Raises UsageError for anything else."""
    if not isinstance(text, str):
        raise UsageError(
            f"a receipt is a str, not {type(text).__name__}", hint="pass message.receipt"
        )
    return _read(text)


@lru_cache(_REMEMBERED)  # who looks at receipts before they are settled has each read twice
def _read(text: str) -> Receipt:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        body = raw[_CHECK_BYTES:]
        if _check(body) != raw[:_CHECK_BYTES]:
            raise ValueError("damaged")
        group_id, pipe_id, seq, holder = body.decode().split(_BETWEEN)
        return Receipt(group_id, pipe_id, int(seq), holder)
    except (binascii.Error, ValueError) as exc:
        raise UsageError(
            f"{text!r:.100} is not a receipt", hint="pass message.receipt as it was, and whole"
        ) from exc


def parsed_all(texts: str | Iterable[str]) -> list[Receipt]:
    """The receipt with this text, or those with these, each once. Raises UsageError."""
    if isinstance(texts, str):
        return [parsed(texts)]
    if not isinstance(texts, Iterable):
        raise UsageError(
            f"receipts are a str, or several, not {type(texts).__name__}",
            hint="pass message.receipt, or a list of them",
        )
    return list(dict.fromkeys(map(parsed, texts)))


def _check(body: bytes) -> bytes:
    """So that a receipt that was cut or changed is seen to be none."""
    return xxh3_64(body).digest()[:_CHECK_BYTES]
