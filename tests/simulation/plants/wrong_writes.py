"""Wrong parts of writes: what planted bugs put in the place of the right ones."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from cassq.catalog.sqlite import write_tables
from cassq.model.rows import WriteRow, WriteState
from cassq.model.rows import begun as rightly_begun


def begun_again() -> AbstractContextManager[Any]:
    """A write that was published is begun again by whoever asks."""

    def begun(found: WriteRow | None, wanted: WriteRow) -> WriteRow | None:
        if found is not None and found.state is WriteState.PUBLISHED:
            return replace(wanted, epoch=found.epoch + 1, state=WriteState.OPEN)
        return rightly_begun(found, wanted)

    return mock.patch.object(write_tables, "begun", begun)


def unfenced() -> AbstractContextManager[Any]:
    """Who has begun a write publishes it, whoever has begun it anew since."""
    wrong = write_tables.END_WRITE.replace("AND epoch = ?4 AND state = 0", "AND ?4 = ?4")
    return mock.patch.object(write_tables, "END_WRITE", wrong)


def losers_kept() -> AbstractContextManager[Any]:
    """What is not published is not removed."""
    return mock.patch.object(write_tables, "_drop_staged", lambda tx, write: 0)
