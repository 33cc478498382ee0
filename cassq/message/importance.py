"""Importance: how much a message matters, for alerts about its failure.

It is a header, so it stays with the message over retries, dead letters and merges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cassq.errors import UsageError

IMPORTANCE_HEADER = "cassq-importance"
NORMAL = "normal"  # the importance of messages without the header
_WORD = re.compile(r"[A-Za-z0-9._-]{1,40}")


def with_importance(
    headers: Mapping[str, str] | None, importance: str | None
) -> Mapping[str, str] | None:
    """The headers with that importance added; unchanged for None.

    Raises UsageError for anything but a word.
    """
    if importance is None:
        return headers
    if not isinstance(importance, str) or not _WORD.fullmatch(importance):
        raise UsageError(
            f"importance must be a word, not {importance!r}",
            hint="for instance low, normal, high or critical",
        )
    return {**(headers or {}), IMPORTANCE_HEADER: importance}


def all_with_importance(
    headers: Sequence[Mapping[str, str] | None] | None, importance: str | None, count: int
) -> Sequence[Mapping[str, str] | None] | None:
    """`with_importance` for the headers of `count` messages."""
    if importance is None:
        return headers
    if headers is None:
        return [with_importance(None, importance)] * count
    return [with_importance(each, importance) for each in headers]


def importance_of(headers: Mapping[str, Any]) -> str:
    """The importance of a message with these headers."""
    found = headers.get(IMPORTANCE_HEADER)
    return found if isinstance(found, str) and _WORD.fullmatch(found) else NORMAL
