"""Stores whose appends are in small pieces, so that what is pushed at once has several frames."""

from __future__ import annotations

from typing import Any

from cassq.extents.port import ExtentStore, ExtentWriter
from tests.simulation.worlds.scenario import Scenario


def in_pieces(kind: type[Any], scenario: Scenario) -> type[Any]:
    """A kind of store, with pieces as small as the scenario wants them."""
    if not (scenario.frame_messages or scenario.append_bytes):
        return kind

    class InPieces(kind):  # type: ignore[misc]
        """As it is, but for the sizes."""

        def create(self: ExtentStore, *args: Any, **named: Any) -> ExtentWriter:
            writer: ExtentWriter = kind.create(self, *args, **named)
            writer.frame_messages = scenario.frame_messages or writer.frame_messages
            writer.append_bytes = scenario.append_bytes or writer.append_bytes
            return writer

    return InPieces
