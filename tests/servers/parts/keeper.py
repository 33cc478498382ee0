"""The keeper: runs one server as its child, and ends it when its own parent has ended.

    python -I -S keeper.py PARENT_PID COMMAND [ARGUMENT ...]

It writes the server's process id to its standard output, and exits as the server does. Neither a
test process that is killed nor a killed keeper leaves a server behind: the keeper watches its
parent, and the kernel kills the server with the keeper. (The kernel's parent-death signal alone
would not do: it comes when the *thread* that started the child ends.)
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
CAP_IPC_LOCK = 14
MEMLOCK_BYTES = 65536
CANNOT_START = 127


def main(parent: int, command: list[str]) -> int:
    """Run the command to its end; its exit code, or 128 and the number of its last signal."""
    keeper = os.getpid()
    try:
        parent_ends = os.pidfd_open(parent)
    except ProcessLookupError:
        return CANNOT_START
    if os.getppid() != parent:  # it ended before it could be watched
        return CANNOT_START
    child = os.fork()
    if child == 0:
        _become(command, keeper)
    child_ends = os.pidfd_open(child)
    os.write(sys.stdout.fileno(), f"{child}\n".encode())
    os.close(sys.stdout.fileno())
    watched = select.poll()
    watched.register(parent_ends, select.POLLIN)
    watched.register(child_ends, select.POLLIN)
    if child_ends not in {fd for fd, _ in watched.poll()}:
        os.kill(child, signal.SIGKILL)  # reaches a stopped process too
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become(command: list[str], keeper: int) -> None:
    """Turn this child into the server."""
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # Cassandra locks its memory where it may, as root may: 130 MiB more are resident.
        libc.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEMLOCK_BYTES, MEMLOCK_BYTES))
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        if os.getppid() == keeper:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(CANNOT_START)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
