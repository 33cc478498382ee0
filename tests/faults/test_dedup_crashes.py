"""A pusher that dies anywhere in a deduplicated push: its retry neither loses nor doubles."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import cassq
from tests.faults.parts import DeadlyDisk, Deaths
from tests.integration.stage import Connect, client_on, drain, reap

STEPS_MAX = 40

_context = multiprocessing.get_context("forkserver")


def push_and_die(directory: str, dedup_id: str, step: int, warm: bool) -> None:
    """Push, and be killed right after the `step`th thing that was written: a commit of the
    catalog, or a write or sync of a pipe. warm: into a pipe that is open already."""
    deaths = Deaths()
    with client_on(Path(directory), DeadlyDisk(deaths), committed=deaths.step) as client:
        pusher = client.queue("jobs").pusher()
        if warm:
            pusher.push(b"warm")
        deaths.await_step(step)
        pusher.push(dedup_id.encode(), dedup_id=dedup_id)
        deaths.await_step(0)


def died(directory: Path, dedup_id: str, step: int, warm: bool) -> bool:
    """Whether the pusher was killed in its push."""
    args = (str(directory), dedup_id, step, warm)
    process = _context.Process(target=push_and_die, args=args)
    process.start()
    process.join(30)
    assert process.exitcode in (0, -9)
    return process.exitcode != 0


@pytest.mark.parametrize("retired", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_a_retry_after_a_crash_anywhere_is_one_message(
    client: cassq.Client, connect: Connect, directory: Path, warm: bool, retired: bool
) -> None:
    """retired: what the dead pusher wrote is consumed and removed before the retry."""
    queue = client.create_queue("jobs", dedup_window=600)
    popper = queue.popper()
    retries = connect().queue("jobs").pusher()
    appended: list[bool] = []
    for step in range(1, STEPS_MAX):
        dedup_id = f"step {step}"
        killed = died(directory, dedup_id, step, warm)
        found = []
        if retired:
            reap(client)
            found = drain(popper)
            reap(client)
        message_id = retries.push(dedup_id.encode(), dedup_id=dedup_id)
        reap(client)
        found = [m for m in found + drain(popper) if m.payload == dedup_id.encode()]
        assert [m.id for m in found] == [message_id], f"killed after step {step}"
        appended.append(killed)
        if not killed:
            break
    assert appended[-1] is False, "the push has more steps than were tried"
    assert sum(appended) >= 3, "it was killed between intent and append, and before its return"
    assert queue.audit().findings == []
