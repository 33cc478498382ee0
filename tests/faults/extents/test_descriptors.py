"""Limits of the process: no file descriptor left."""

from __future__ import annotations

import cassq
from tests.faults.actors import Act
from tests.integration.stage import drain


def test_without_file_descriptors_an_open_pipe_still_takes_pushes(
    client: cassq.Client, act: Act, url: str
) -> None:
    queue = client.create_queue("jobs")
    actor = act("run_out_of_files", url)
    assert actor.expect("taken")[1] > 0
    assert "ulimit" in actor.expect("refused")[1]
    actor.expect("done")
    assert len(actor.reports("pushed")) == 10
    assert queue.stats().pushed == 12
    drain(queue.popper())
    assert queue.audit().findings == []
