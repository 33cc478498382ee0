"""Sealing: how a pipe's end is fixed for ever, and found out; and which pipes are retired.

For everyone it is the same steps: fence and find the end in the extent store, record it in the
catalog by compare-and-set, and adopt the one that is recorded.
"""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.catalog.rows import PipeRow, PipeState
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentStore
from cassq.frames import Place


def seal_pipe(catalog: Catalog, store: ExtentStore, pipe_id: str) -> Place | None:
    """Fix a pipe's end for ever; the end that is recorded, or None when the pipe is gone.

    Safe for anyone to call on any pipe, any number of times, side by side.
    """
    row = catalog.pipe(pipe_id)
    if row is None or row.state is PipeState.CONSUMED:
        return row.end if row else None
    if row.end is not None:
        return row.end
    return catalog.record_end(pipe_id, store.seal(pipe_id))


def live_pipe(catalog: Catalog, pipe_id: str) -> PipeRow | None:
    """A pipe as it is now; None when it was retired, so that its frames may be gone."""
    row = catalog.pipe(pipe_id)
    return None if row is None or row.state is PipeState.CONSUMED else row


def end_of(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place:
    """Where a pipe ends at the moment: everything acknowledged lies below.

    A pipe whose pusher is gone is sealed first: after a power cut the published end is only a
    lower bound. Raises ExtentMissingError. Cost: none for a sealed pipe, else one look into it.
    """
    if pipe.end is not None:
        return pipe.end
    if store.abandoned(pipe.id):
        sealed = seal_pipe(catalog, store, pipe.id)
        if sealed is not None:
            return sealed
    reader = store.reader(pipe.id)
    try:
        return reader.published()
    finally:
        reader.close()


def seen_end(store: ExtentStore, pipe: PipeRow) -> int:
    """How many messages a pipe has, as far as can be seen; none if it cannot be read, which
    `cassq audit` tells of. Cost: none for a sealed pipe, else one look into it."""
    if pipe.end is not None:
        return pipe.end.seq
    try:
        reader = store.reader(pipe.id)
    except (ExtentMissingError, CorruptionError):
        return 0
    try:
        return reader.published().seq
    except ExtentMissingError:
        return 0
    finally:
        reader.close()
