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


def push_once(pusher: cassq.Pusher, names: list[str]) -> dict[bytes, str]:
    """Push messages named by their dedup ids; their ids."""
    load = [name.encode() for name in names]
    if len(names) == 1:
        return {load[0]: pusher.push(load[0], dedup_id=names[0])}
    return dict(zip(load, pusher.push_many(load, dedup_ids=names), strict=True))


def push_and_die(directory: str, names: list[str], step: int, warm: bool) -> None:
    """Push, and be killed right after the `step`th thing that was written: a commit of the
    catalog, or a write or sync of a pipe. warm: into a pipe that is open already."""
    deaths = Deaths()
    with client_on(Path(directory), DeadlyDisk(deaths), committed=deaths.step) as client:
        pusher = client.queue("jobs").pusher()
        if warm:
            pusher.push(b"warm")
        deaths.await_step(step)
        push_once(pusher, names)
        deaths.await_step(0)


def died(directory: Path, names: list[str], step: int, warm: bool) -> bool:
    """Whether the pusher was killed in its push."""
    args = (str(directory), names, step, warm)
    process = _context.Process(target=push_and_die, args=args)
    process.start()
    process.join(30)
    assert process.exitcode in (0, -9)
    return process.exitcode != 0


@pytest.mark.parametrize("retired", [True, False])
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_retry_after_a_crash_anywhere_is_one_message(
    client: cassq.Client, connect: Connect, directory: Path, count: int, warm: bool, retired: bool
) -> None:
    """retired: what the dead pusher wrote is consumed and removed before the retry."""
    queue = client.create_queue("jobs", dedup_window=600)
    popper = queue.popper()
    retries = connect().queue("jobs").pusher()
    appended: list[bool] = []
    for step in range(1, STEPS_MAX):
        names = [f"step {step}, {number}" for number in range(count)]
        killed = died(directory, names, step, warm)
        found = []
        if retired:
            reap(client)
            found = drain(popper)
            reap(client)
        ids = push_once(retries, names)
        reap(client)
        found = [m for m in found + drain(popper) if m.payload in ids]
        assert sorted(m.id for m in found) == sorted(ids.values()), f"killed after step {step}"
        assert {m.payload: m.id for m in found} == ids
        appended.append(killed)
        if not killed:
            break
    assert appended[-1] is False, "the push has more steps than were tried"
    assert sum(appended) >= 3, "it was killed between intent and append, and before its return"
    assert queue.audit().findings == []
