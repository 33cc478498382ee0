"""Dataclasses that only type checkers keep frozen: `@dataclass(frozen=True, slots=True)`.

A frozen dataclass of the standard library takes twice as long to define, of which each process
that imports cassq has dozens, and three times as long to make, of which each message has several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414
else:
    import dataclasses
    from functools import partial

    def dataclass(*, frozen: bool, slots: bool) -> partial:
        """A decorator: equality and hash are those of the fields, as of a frozen dataclass."""
        return partial(dataclasses.dataclass, slots=slots, unsafe_hash=frozen)
