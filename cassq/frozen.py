"""Dataclasses that only type checkers keep frozen: `@dataclass(frozen=True, slots=True)`.

A frozen dataclass of the standard library takes twice as long to define, and its instances take
three times as long to create. Each process that imports cassq defines dozens of such classes, and
each message creates several instances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414
else:
    import dataclasses
    from functools import partial

    def dataclass(*, frozen: bool, slots: bool) -> partial:
        """A decorator. As in a frozen dataclass, equality and hash come from the fields."""
        return partial(dataclasses.dataclass, slots=slots, unsafe_hash=frozen)
