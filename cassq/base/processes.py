"""Names of processes, which show others on the machine whether a process is gone."""

from __future__ import annotations

import os
from pathlib import Path

from cassq.base.clock import Clock

_PROC = Path("/proc")


def process_name(clock: Clock) -> str:
    """A name that no other process has: the run of the machine, the namespace of process ids, the
    process id, and when it started. Empty on systems other than Linux."""
    namespace, started = _namespace(), _started(os.getpid())
    return f"{clock.boot_id()}/{namespace}/{os.getpid()}/{started}" if namespace else ""


def is_gone(name: str, clock: Clock) -> bool:
    """Whether a process of this name is known to have ended. False where that cannot be known: for
    one on another machine or in another container, and for names of another form."""
    boot_id, _, rest = name.partition("/")
    namespace, _, rest = rest.partition("/")
    pid, _, started = rest.partition("/")
    if not namespace or (boot_id, namespace) != (clock.boot_id(), _namespace()):
        return False
    if not pid.isdigit() or not started.isdigit():
        return False
    try:
        os.kill(int(pid), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is another user's
    now = _started(int(pid))
    return bool(now) and now != started


def _namespace() -> str:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; "ended" for a zombie; empty if that cannot be
    read."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # after its name, which may hold anything
    return "ended" if fields[0] in "ZX" else fields[19]
