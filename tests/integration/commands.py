"""Commands of other frameworks as processes of a test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import cassq
from tests.integration.deadlines import DEADLINE_SECONDS, eventually


@contextmanager
def command(words: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a group of processes of its own, killed if the block leaves it running. how: as
    for Popen."""
    with subprocess.Popen(words, start_new_session=True, **how) as started:
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def end_once_acked(started: subprocess.Popen[bytes], client: cassq.Client, queue: str) -> None:
    """Let a worker end when the one message of a queue is acked."""
    group = lambda: client.queue(queue).stats().groups["default"]  # noqa: E731
    eventually("it is acked", lambda: group().committed == 1)
    started.send_signal(signal.SIGTERM)
    started.wait(DEADLINE_SECONDS)
