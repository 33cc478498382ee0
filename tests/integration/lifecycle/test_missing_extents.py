"""A pipe whose extent is missing from the store, whichever store that is."""

from __future__ import annotations

import pytest

from cassq.errors import BackendError, CassqError
from tests.integration.stage import Connect


def test_a_missing_extent_is_skipped_by_the_command_that_its_error_names(connect: Connect) -> None:
    client = connect()
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher:
        pipe_id = pusher.push_many([b"a", b"b", b"c"])[0].partition(":")[0]
    popper = queue.popper()
    popper.commit(popper.pop(1))
    popper.close()
    client.runtime.ports.store.drop([pipe_id])

    other = connect()
    queue, popper = other.queue("jobs"), other.queue("jobs").popper()
    with pytest.raises(CassqError, match=f"pipe {pipe_id} is missing") as caught:
        popper.pop(1)
    assert isinstance(caught.value, BackendError)
    assert not caught.value.retryable
    assert "`cassq pipe skip`" in caught.value.hint
    assert queue.skip_damage(pipe_id).lost == 2
    queue.pusher().push(b"later")
    popper = queue.popper()
    assert [message.payload for message in popper.pop(5)] == [b"later"]
    assert queue.audit().findings == []
