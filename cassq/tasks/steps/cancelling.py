"""Cancelling a call: it does not run, or does not go on.

What decides is a conditional write, to a row that a worker must write before it runs the call: of
the claims of its message, or of the place of a call that sleeps or waits. So a call is cancelled or
run, and one that nobody cancels costs a worker nothing.
"""

from __future__ import annotations

from cassq.base.clock import attempts, contended
from cassq.client.client import Client
from cassq.errors import MessageNotFoundError
from cassq.lifecycle.cancelling import withdraw
from cassq.tasks.steps.moving import MoveContext, cancel_place, note_cancelled
from cassq.tasks.steps.overview import SIGNAL, SLEEPING, CallState, whereabouts
from cassq.tasks.steps.records import CANCELLED, OVER


def cancel_call(context: MoveContext, client: Client, queue: str | None, task_id: str) -> str:
    """Have a call never run again; returns its state after that: "cancelled", "running" if a
    worker has it, "done", "dead", or another in which it does not run any more. queue: None: it is
    looked for in all.

    Raises UsageError for an invalid id, or if it waits behind others in a group that keeps an
    order; MessageNotFoundError; BackendTimeoutError if its state keeps changing. Cost: as of
    `explain`, and a synced write; for a call that sleeps or waits, four.
    """
    for _ in attempts(context.ports.clock):
        found = whereabouts(client, queue, task_id)
        match found.state:
            case state if state in (SLEEPING, SIGNAL):
                done = cancel_place(context, task_id)
            case "waiting" | "delayed":
                done = _withdrawn(context, found)
            case state if state == CANCELLED:
                done = True  # perhaps by a process that ended before it noted that
            case "missing":
                raise MessageNotFoundError(f"no message has the ID {task_id}")
            case state:
                return state
        if done:
            if found.rows and OVER not in found.rows:
                note_cancelled(context, task_id)
            return CANCELLED
    raise contended(f"the state of task {task_id}")


def _withdrawn(context: MoveContext, found: CallState) -> bool:
    """Take a call back before a worker takes it; False if it is not where it was."""
    now = found.now
    queue = context.queue(now.queue)
    groups = context.ports.catalog.queues.groups(queue.id)
    group = next((each for each in groups if each.name == now.group), None)
    return group is not None and withdraw(context.ports, queue, group, f"{now.pipe_id}:{now.seq}")
