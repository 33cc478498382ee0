"""Text from outside cassq in messages and logs: on one line, and not too long."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without anything that moves a terminal's cursor or breaks a table."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """At most `most` characters of a text, followed by its length if it is longer."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
