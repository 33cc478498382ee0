"""Where rows of an outbox went: notes before they are written, and the check after a crash."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import seal_pipe
from cassq.outbox.table import LandingPlace


class PlaceNotes:
    """The `intend` of a push of rows: notes each place before it is written.

    places: what was noted, even if the push failed.
    """

    def __init__(
        self, note: Callable[[LandingPlace], object], queue_id: str, rows: Sequence[int]
    ) -> None:
        self._note = note
        self._queue_id = queue_id
        self._rows = rows
        self.places: list[LandingPlace] = []

    def __call__(self, pipe_id: str, seq: int, messages: Sequence[int]) -> None:
        rows = tuple(self._rows[at] for at in messages)
        place = LandingPlace(pipe_id, seq, self._queue_id, rows)
        self._note(place)
        self.places.append(place)


def rows_at(ports: Ports, place: LandingPlace) -> tuple[int, ...]:
    """The rows that are in their queue at a place. The answer is final, because the pipe is sealed
    first.

    Only the relay that noted a place writes there, and it writes no other rows there, so the end of
    the pipe decides. If a retired pipe left no totals, this is unknown, and the rows are pushed
    again: a duplicate is the lesser evil. Cost: a read; for an open pipe its seal; for a retired
    pipe a read of its totals.
    """
    catalog = ports.catalog
    end = seal_pipe(catalog, ports.store, place.pipe)
    if end is not None:
        count = end.seq - place.seq
    else:
        totals = catalog.pipes.retired(place.queue_id, place.pipe)
        count = max((total.pushed for total in totals), default=0) - place.seq
    return place.rows[: max(0, count)]
