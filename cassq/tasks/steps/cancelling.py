"""Cancelling a call: it does not run, or does not go on.

A conditional write decides, to a row that a worker must write before it runs the call: a claim of
its message, or the place of a call that sleeps or waits. So a call is either cancelled or run, and
calls that are not cancelled cost workers nothing more.
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
    """Cancel a call, unless a worker has it or it is over. Returns its state after that:
    "cancelled", "running" if a worker has it, "done", "dead", or another final state. queue: its
    name; None: look in all queues.

    Raises UsageError for an invalid id, or if it waits behind others in a group that keeps an
    order; MessageNotFoundError; BackendTimeoutError if its state keeps changing. Cost: that of
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
                done = True  # perhaps its process ended before it recorded the end
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
    """Take a call back before a worker takes it; False if it was taken or moved meanwhile."""
    now = found.now
    queue = context.queue(now.queue)
    groups = context.ports.catalog.queues.groups(queue.id)
    group = next((each for each in groups if each.name == now.group), None)
    return group is not None and withdraw(context.ports, queue, group, f"{now.pipe_id}:{now.seq}")
