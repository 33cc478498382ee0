"""Numbers of things in sentences: `1 message`, `2,000 messages`."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count and its noun. noun: in the singular; its plural adds an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
