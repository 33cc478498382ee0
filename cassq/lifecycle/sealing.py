"""Sealing: how a pipe's end is fixed for ever, and found out; and which pipes are retired.

For everyone it is the same steps: fence and find the end in the extent store, record it in the
catalog by compare-and-set, and adopt the one that is recorded.
"""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentStore
from cassq.message.frames import Place
from cassq.model.rows import PipeRow, PipeState

# An extent that has no pipe's row for so long is nobody's; who has taken half as long to add the
# row to his extent takes another.
STRAY_MS = 3_600_000


def seal_pipe(catalog: Catalog, store: ExtentStore, pipe_id: str) -> Place | None:
    """Fix a pipe's end for ever; the end that is recorded, or None when the pipe is gone.

    Safe for anyone to call on any pipe, any number of times, side by side.
    """
    row = catalog.pipes.by_id(pipe_id)
    if row is None or row.state is PipeState.CONSUMED:
        return row.end if row else None
    if row.end is not None:
        return row.end
    return catalog.pipes.record_end(pipe_id, store.seal(pipe_id))


def live_pipe(catalog: Catalog, pipe_id: str) -> PipeRow | None:
    """A pipe as it is now; None when it was retired, so that its frames may be gone, and while it
    is staged, so that it is nobody's yet."""
    row = catalog.pipes.by_id(pipe_id)
    return None if row is None or row.state >= PipeState.CONSUMED else row


def sealed_end(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place | None:
    """Where a pipe ends for ever; None while its pusher may go on.

    A pipe whose pusher is gone is sealed first: after a power cut the published end is only a
    lower bound. Raises ExtentMissingError. Cost: none for a sealed pipe, else one look into it.
    """
    if pipe.end is None and store.abandoned(pipe.id):
        return seal_pipe(catalog, store, pipe.id)
    return pipe.end


def end_of(catalog: Catalog, store: ExtentStore, pipe: PipeRow) -> Place:
    """Where a pipe ends at the moment: everything acknowledged lies below, as far as its pusher
    has told of it. Else as `sealed_end`, which comes first."""
    sealed = sealed_end(catalog, store, pipe)
    return sealed if sealed is not None else _published(store, pipe.id)


def known_end(catalog: Catalog, store: ExtentStore, pipe: PipeRow, claimed: int) -> int:
    """How many messages a pipe has to have. On networked stores a pusher that was killed may have
    told nobody of its last append; but what groups have claimed, all below `claimed`, was
    acknowledged. A sealed pipe has what it has. Errors and cost as for `end_of`."""
    sealed = sealed_end(catalog, store, pipe)
    return sealed.seq if sealed is not None else max(claimed, _published(store, pipe.id).seq)


def _published(store: ExtentStore, pipe_id: str) -> Place:
    reader = store.reader(pipe_id)
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
