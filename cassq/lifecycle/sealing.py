"""Sealing: how a pipe's end is fixed for ever, and found; and which pipes are retired.

The steps are always the same: fence the extent and find its end in the store, record the end in
the catalog by compare-and-set, and adopt the recorded one.
"""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentStore
from cassq.message.frames import Place
from cassq.model.rows import PipeRow, PipeState

# An extent that has had no pipe row for this long is abandoned; a pusher that has needed half as
# long to add the row takes another extent.
STRAY_MS = 3_600_000


def seal_pipe(catalog: Catalog, store: ExtentStore, pipe_id: str) -> Place | None:
    """Fix a pipe's end for ever; return the recorded end, or None if the pipe is gone.

    Any process may call it on any pipe, any number of times, concurrently.
    """
    row = catalog.pipes.by_id(pipe_id)
    if row is None or row.state is PipeState.CONSUMED:
        return row.end if row else None
    if row.end is not None:
        return row.end
    return catalog.pipes.record_end(pipe_id, store.seal(pipe_id))


def live_pipe(catalog: Catalog, pipe_id: str) -> PipeRow | None:
    """A pipe as it is now; None if it was retired (its frames may be gone) or is still staged (no
    queue has it yet)."""
    row = catalog.pipes.by_id(pipe_id)
    return None if row is None or row.state >= PipeState.CONSUMED else row


def sealed_end(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place | None:
    """Where a pipe ends for ever; None while its pusher may still append.

    A pipe whose pusher is gone is sealed first: after a power cut the published end is only a
    lower bound. Raises ExtentMissingError. Cost: none for a sealed pipe, else one look into it.
    """
    if pipe.end is None and store.abandoned(pipe.id):
        return seal_pipe(catalog, store, pipe.id)
    return pipe.end


def end_of(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place:
    """Where a pipe ends at the moment: everything acknowledged lies below, as far as its pusher
    has published it. Otherwise like `sealed_end`, which is tried first."""
    sealed = sealed_end(catalog, store, pipe)
    return sealed if sealed is not None else _published(store, pipe.id)


def known_end(catalog: Catalog, store: ExtentStore, pipe: PipeRow, claimed: int) -> int:
    """How many messages a pipe must have. On networked stores a killed pusher may not have
    published its last append; but what groups have claimed, all below `claimed`, was acknowledged.
    For a sealed pipe, its end. Errors and cost as for `end_of`."""
    sealed = sealed_end(catalog, store, pipe)
    return sealed.seq if sealed is not None else max(claimed, _published(store, pipe.id).seq)


def _published(store: ExtentStore, pipe_id: str) -> Place:
    reader = store.reader(pipe_id)
    try:
        return reader.published()
    finally:
        reader.close()


def seen_end(store: ExtentStore, pipe: PipeRow) -> int:
    """How many messages a pipe has, as far as can be seen; 0 if it cannot be read, which
    `cassq audit` reports. Cost: none for a sealed pipe, else one look into it."""
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
