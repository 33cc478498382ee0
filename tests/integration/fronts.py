"""Stores and catalogs in front of the real ones: all calls pass through, and some are acted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cassq
from cassq.base.clock import SystemClock
from cassq.extents.port import ExtentStore, ExtentWriter
from cassq.message.frames import Place as At
from tests.catalog_parts import ROLES, WithRoles
from tests.integration.places import Place

Append = Callable[[], At]


class FrontWriter(ExtentWriter):
    """around: is given each append, to be done or not."""

    def __init__(self, writer: ExtentWriter, around: Callable[[Append], At]) -> None:
        self._writer = writer
        self._around = around
        self.frame_messages, self.append_bytes = writer.frame_messages, writer.append_bytes

    @property
    def end(self) -> At:
        return self._writer.end

    @property
    def size_bytes(self) -> int:
        return self._writer.size_bytes

    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> At:
        return self._around(lambda: self._writer.append(frames, end_seq))

    def sealed(self) -> bool:
        return self._writer.sealed()

    def turn_wanted(self) -> bool:
        return self._writer.turn_wanted()

    def close(self) -> None:
        self._writer.close()


class FrontStore:
    """around: is given the appends of all writers. All else is the store's own."""

    def __init__(self, store: ExtentStore, around: Callable[[Append], At]) -> None:
        self._store = store
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        return FrontWriter(self._store.create(pipe_id, queue_name, strict=strict), self._around)


def front_catalog(catalog: Any, after: Callable[[str], None]) -> WithRoles:
    """A catalog in front of another. after: is told the role and name of each verb that was done,
    as "claims.rows"."""
    return WithRoles(
        catalog, **{role: FrontRole(role, getattr(catalog, role), after) for role in ROLES}
    )


class FrontRole:
    """One role of such a catalog."""

    def __init__(self, role: str, real: Any, after: Callable[[str], None]) -> None:
        self._role = role
        self._real = real
        self._after = after

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._real, name)
        if not callable(verb):
            return verb

        def passed_through(*args: Any, **named: Any) -> Any:
            found = verb(*args, **named)
            self._after(f"{self._role}.{name}")
            return found

        return passed_through


def client_with(
    place: Place,
    *,
    store: Callable[[ExtentStore], Any] = lambda store: store,
    catalog: Callable[[Any], Any] = lambda catalog: catalog,
) -> cassq.Client:
    """A client whose ports are what these make of the place's own."""
    clock = SystemClock()
    opened = place.open(clock)
    ports = opened.ports._replace(
        store=store(opened.ports.store), catalog=catalog(opened.ports.catalog)
    )
    return cassq.Client(place.url, opened._replace(ports=ports), clock)
