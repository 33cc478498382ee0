"""What the batches of streams have, read without Spark."""

from __future__ import annotations

from collections.abc import Iterable

import cassq
from cassq.spark.reading import PipeRange


def payloads_of(client: cassq.Client, pieces: Iterable[PipeRange]) -> list[bytes]:
    """The payloads of a batch's pieces, in their order."""
    found = []
    for piece in pieces:
        reader = client.ports.store.reader(piece.pipe_id)
        place = piece.start
        while place.seq < piece.end_seq:
            slices = reader.read(place, piece.end_seq, 7, 1)
            found += [p for each in slices for p in each.frame.payloads(each.first, each.last)]
            place = reader.place_after(place, slices)
        reader.close()
    return found
