"""Read-only directories: a clear error, and nothing is changed."""

from __future__ import annotations

import pytest

import cassq
from cassq.errors import BackendUnavailableError
from tests.faults.mounts import Mount, mount
from tests.integration.stage import drain, push

__all__ = ["mount"]

pytestmark = pytest.mark.may_skip("a file system of its own can be mounted by root alone")


def test_a_read_only_directory_is_a_clear_error(mount: Mount) -> None:
    writable = mount("writable", "-t", "tmpfs", "-o", "size=8m", "tmpfs")
    with cassq.connect(f"file://{writable}/data") as client:
        push(client.create_queue("jobs"), b"x")
    place = mount("read_only", "--bind", "-o", "ro", str(writable))
    for name in ("data", "new"):
        with pytest.raises(BackendUnavailableError) as caught:
            cassq.connect(f"file://{place}/{name}")
        assert "must be writable" in caught.value.hint
        assert not caught.value.retryable
    with cassq.connect(f"file://{writable}/data") as client:
        assert len(drain(client.queue("jobs").popper())) == 1
