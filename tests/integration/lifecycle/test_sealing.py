"""Sealing a pipe that goes away meanwhile, and one whose file does."""

from __future__ import annotations

import pytest

import cassq
from cassq.errors import QueueNotFoundError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.frames import Place
from tests.integration.stage import Connect

pytestmark = pytest.mark.embedded_only(reason="a file goes at a certain step")


class Vanishing:
    """A store whose file of a pipe vanishes just before it is sealed. deleted: the queue whose
    deletion takes it along; None: only the file does."""

    def __init__(self, client: cassq.Client, deleted: str | None) -> None:
        self._client = client
        self._deleted = deleted

    def seal(self, pipe_id: str) -> Place:
        store = self._client.runtime.ports.store
        if self._deleted is not None:
            self._client.delete_queue(self._deleted)
        else:
            store.drop([pipe_id])
        return store.seal(pipe_id)


def test_a_pipe_whose_queue_is_deleted_meanwhile_has_no_end(connect: Connect) -> None:
    client, other = connect(), connect()
    queue = client.create_queue("jobs")
    pipe_id = queue.pusher().push(b"x").partition(":")[0]
    vanishing = Vanishing(other, "jobs")
    assert seal_pipe(client.runtime.ports.catalog, vanishing, pipe_id) is None  # type: ignore[arg-type]


def test_a_pipe_whose_file_alone_is_gone_is_reported(connect: Connect) -> None:
    client = connect()
    queue = client.create_queue("jobs")
    pipe_id = queue.pusher().push(b"x").partition(":")[0]
    with pytest.raises(ExtentMissingError, match=f"{pipe_id} is missing"):
        seal_pipe(client.runtime.ports.catalog, Vanishing(client, None), pipe_id)  # type: ignore[arg-type]


def test_a_push_that_rolls_while_its_queue_is_deleted_names_the_queue(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = connect(), connect()
    queue = client.create_queue("jobs", max_pushes_per_pipe=1)
    pusher = queue.pusher()
    pusher.push(b"x")
    monkeypatch.setattr(client.runtime.ports.store, "seal", Vanishing(other, "jobs").seal)
    with pytest.raises(QueueNotFoundError, match="jobs"):
        pusher.push(b"y")
