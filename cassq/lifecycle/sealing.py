"""Sealing: finds a pipe's end and fixes it permanently; looks up pipes that may be retired.

The steps are always the same: fence the extent and find its end in the store, record that end in
the catalog by compare-and-set, and use the recorded end, even if another process recorded it.
"""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentStore
from cassq.message.frames import Place
from cassq.model.rows import PipeRow, PipeState

# An extent that has no pipe row for this long is abandoned. A pusher that needs more than half of
# this time to add the row takes another extent.
STRAY_MS = 3_600_000


def seal_pipe(catalog: Catalog, store: ExtentStore, pipe_id: str) -> Place | None:
    """Fix a pipe's end permanently; return the recorded end, or None if the pipe is gone.

    Any process may call this for any pipe, any number of times, concurrently. Raises
    ExtentMissingError if the extent is gone but the pipe is not.
    """
    row = catalog.pipes.by_id(pipe_id)
    if row is None or row.state is PipeState.CONSUMED or row.end is not None:
        return row.end if row else None
    try:
        end = store.seal(pipe_id)
    except ExtentMissingError:
        row = catalog.pipes.by_id(pipe_id)  # it may have been retired, or its queue deleted
        if row is not None and row.state is not PipeState.CONSUMED:
            raise
        return row.end if row else None
    return catalog.pipes.record_end(pipe_id, end)


def live_pipe(catalog: Catalog, pipe_id: str) -> PipeRow | None:
    """The current row of a pipe; None if it was retired (its frames may be gone) or is still staged
    (it belongs to no queue yet)."""
    row = catalog.pipes.by_id(pipe_id)
    return None if row is None or row.state >= PipeState.CONSUMED else row


def sealed_end(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place | None:
    """The final end of a pipe; None while its pusher may still append.

    If the pusher is gone, the pipe is sealed first: after a power cut the published end is only a
    lower bound. Raises ExtentMissingError. Cost: none for a sealed pipe, else a look into it.
    """
    if pipe.end is None and store.abandoned(pipe.id):
        return seal_pipe(catalog, store, pipe.id)
    return pipe.end


def end_of(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place:
    """The current end of a pipe: that of `sealed_end`, or else the one that its pusher published.
    Everything acknowledged lies below. Errors and cost as for `sealed_end`."""
    sealed = sealed_end(catalog, store, pipe)
    return sealed if sealed is not None else _published(store, pipe.id)


def known_end(catalog: Catalog, store: ExtentStore, pipe: PipeRow, claimed: int) -> int:
    """How many messages a pipe has at least; for a sealed pipe, exactly. claimed: the group's chain
    end. On networked stores a killed pusher may not have published its last append, but messages
    below `claimed` were acknowledged in any case. Errors and cost as for `end_of`."""
    sealed = sealed_end(catalog, store, pipe)
    return sealed.seq if sealed is not None else max(claimed, _published(store, pipe.id).seq)


def _published(store: ExtentStore, pipe_id: str) -> Place:
    reader = store.reader(pipe_id)
    try:
        return reader.published()
    finally:
        reader.close()


def seen_end(store: ExtentStore, pipe: PipeRow) -> int:
    """How many messages a pipe is known to have; 0 if it cannot be read (`cassq audit` reports
    that). Cost: none for a sealed pipe, else a look into it."""
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
