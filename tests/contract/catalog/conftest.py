"""A group and a pipe of a catalog, as one process works on them, or two."""

from __future__ import annotations

import pytest

from cassq.catalog.port import Catalog
from tests.contract.rows import Consumer, make_queue, pipe_row


@pytest.fixture
def consumer(catalog: Catalog) -> Consumer:
    """Of the pipe `p` of a new queue."""
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    return Consumer(catalog)


@pytest.fixture
def theirs(consumer: Consumer, other: Catalog) -> Consumer:
    """The same group and pipe, as another process works on it."""
    return Consumer(other)
