"""Finds out in a separate process what a handler is, and the queues of an app."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cassq import errors
from cassq.cli.ui import output
from cassq.errors import CassqError
from cassq.worker.child import Child
from cassq.worker.supervisor import Supervisor


class Described(NamedTuple):
    """An app: where its queues are, and for each queue the group that runs its tasks."""

    url: str
    groups: Mapping[str, str]


def described(handler: str, url: str | None, command: Sequence[str]) -> Described | None:
    """The app that a handler is, after creating its missing queues; None for a plain function. A
    separate process loads the handler, and ends then. url: where the queues must be; None: as the
    app says. Raises the error that keeps the handler from being loaded.
    """
    child = Child(command, {"handler": handler, "url": url, "describe": True}, 0)
    try:
        while child.exit_code() is None and child.fd is not None:
            select.select([child.fd], [], [])
            child.read_reports(0)
        code = child.wait()
        child.read_reports(0)
    finally:
        child.kill("interrupted")
        child.close()
    if child.failed is not None:
        raise failure(child.failed)
    if child.described is None:
        raise CassqError(f"the process that loaded {handler} ended with exit code {code}")
    groups = child.described["groups"]
    return None if groups is None else Described(child.described["url"], groups)


def run_until_stopped(supervisor: Supervisor) -> int:
    """Run processes until they are stopped. Returns the exit code; raises the error that kept them
    from starting."""
    code = supervisor.run()
    if supervisor.failed is not None:
        raise failure(supervisor.failed)
    return code


def failure(failed: Mapping[str, Any]) -> CassqError:
    """The error of a process that could not start, as one of this process."""
    if failed["traceback"]:
        output.note(failed["traceback"].rstrip())
    error: CassqError = getattr(errors, failed["kind"], CassqError)(
        failed["message"], hint=failed["hint"]
    )
    error.exit_code = failed["exit_code"]
    return error
