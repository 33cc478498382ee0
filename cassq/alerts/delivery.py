"""Delivery: sends events to targets: the log, a command or a webhook, each within its time limit.

Every target has its own thread, so a target that hangs does not delay the others. Sending to all of
them takes at most a second more than the longest time limit. Nothing is retried here; a later pass
does that.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from cassq.alerts.events import CONTENT_TYPE, STATES, encoded
from cassq.alerts.incidents import RECOVERED, Notice, NoticeOutcome
from cassq.alerts.targets import AlertTarget
from cassq.base.clock import Stopwatch
from cassq.version import __version__

logger: logging.Logger = logging.getLogger("cassq")

GRACE_SECONDS = 1.0
ERROR_BYTES = 500
_LATER = NoticeOutcome(sent=False, tried=False)


class SendResult(NamedTuple):
    """The result of sending one event. down: whether sending the next one now would fail too."""

    error: str = ""
    down: bool = False


# Sends one event, within a number of seconds.
Send = Callable[[bytes, float], SendResult]


class CancellableSocket:
    """The socket of one attempt, so that another thread can cut it off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cancelled = False

    def use(self, sock: socket.socket | None) -> None:
        """Set the socket of the attempt. If the attempt was cut off, shut it at once."""
        with self._lock:
            self._socket = sock
            if self._cancelled:
                _shut(sock)

    def cancel(self) -> None:
        """Cut the attempt off."""
        with self._lock:
            self._cancelled = True
            _shut(self._socket)


def _shut(sock: socket.socket | None) -> None:
    if sock is not None:
        with suppress(OSError):  # already closed
            sock.shutdown(socket.SHUT_RDWR)


def deliver(
    notices: Sequence[Notice], targets: Mapping[str, AlertTarget]
) -> list[tuple[Notice, NoticeOutcome]]:
    """Send notices to their targets; return the outcome of each. Cost: one thread per target; takes
    at most a second more than the longest time limit."""
    lines = {name: _TargetQueue(target) for name, target in targets.items()}
    # Notices that failed before go last, so that they do not delay the others.
    for notice in sorted(notices, key=lambda notice: notice.tries):
        lines[notice.target].notices.append(notice)
    busy = [line for line in lines.values() if line.notices]
    watch = Stopwatch()
    for line in busy:
        line.start()
    for line in busy:
        line.finish(watch)
    return [pair for line in busy for pair in line.outcomes()]


class _TargetQueue:
    """One target, and the notices for it in this pass."""

    def __init__(self, target: AlertTarget) -> None:
        self.notices: list[Notice] = []
        self._target = target
        self._sock = CancellableSocket()
        self._outcomes: dict[int, NoticeOutcome] = {}  # by index in `notices`
        self._current = 0
        self._late = False
        name = f"cassq-alert-{target.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        if self._target.command or self._target.webhook:
            self._thread.start()
        else:
            self._work()

    def _work(self) -> None:
        limit, watch = self._target.timeout, Stopwatch()
        send = sender(self._target, self._sock)
        failed: set[str] = set()
        for number, notice in enumerate(self.notices):
            self._current = number
            left = limit - watch.seconds()
            if number and left < limit / 2:
                return
            if notice.key in failed:
                continue  # an incident's recovery is not sent before its start
            result = send(encoded(notice.event), left)
            if self._late:
                return
            self._outcomes[number] = NoticeOutcome(not result.error, result.error)
            if result.error:
                failed.add(notice.key)
            if result.down:
                return

    def finish(self, watch: Stopwatch) -> None:
        """Wait until the target is done, or its time is up."""
        if not self._thread.ident:
            return
        self._thread.join(max(0.0, self._target.timeout + GRACE_SECONDS / 2 - watch.seconds()))
        if self._thread.is_alive():
            self._late = True
            self._sock.cancel()
            late = NoticeOutcome(
                sent=False, error=f"no answer within {self._target.timeout:g} seconds"
            )
            self._outcomes.setdefault(self._current, late)

    def outcomes(self) -> list[tuple[Notice, NoticeOutcome]]:
        known = dict(self._outcomes)
        pairs = [(notice, known.get(n, _LATER)) for n, notice in enumerate(self.notices)]
        for notice, outcome in pairs:
            if outcome.error:
                logger.warning("alert target %s: %s", notice.target, outcome.error)
        return pairs


def sender(target: AlertTarget, sock: CancellableSocket) -> Send:
    """Return the function that sends an event to a target."""
    if target.command:
        return partial(run_command, target.command)
    if target.webhook:
        return partial(post, target.webhook, target.headers, sock)
    return log


# --- the log ----------------------------------------------------------------------------------


def log(event: bytes, _seconds: float) -> SendResult:
    """Write an event to the logger `cassq`: at level WARNING, or INFO for a recovery."""
    over = json.loads(event)["data"].get("state") == STATES[RECOVERED]
    level = logging.INFO if over else logging.WARNING
    logger.log(level, "alert: %s", event.decode())
    return SendResult()


# --- a command --------------------------------------------------------------------------------


def run_command(command: Sequence[str], event: bytes, seconds: float) -> SendResult:
    """Run a command with the event as its standard input; exit code 0 means delivered.

    After `seconds` it is killed, with all processes of its process group. Its output is dropped,
    except for the end of its standard error, which is logged if it fails.
    """
    # Files, not pipes: with pipes this thread would have to write and read while the command runs.
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(event)
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:
            return SendResult(f"{command[0]} cannot be run: {exc}")
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            return SendResult(f"{command[0]} was killed after {seconds:.3g} seconds", down=True)
        if code == 0:
            return SendResult()
        ended = f"exit code {code}" if code > 0 else f"signal {-code}"
        said = _end_of(stderr)
        return SendResult(f"{command[0]} failed with {ended}{': ' if said else ''}{said}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command's process group. Nobody has waited for the command yet, so its process id
    cannot have been reused."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # stuck in the kernel
        process.wait(GRACE_SECONDS / 4)


def _end_of(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - ERROR_BYTES))
    text = file.read(ERROR_BYTES).decode(errors="replace").strip()
    return " / ".join(line for line in text.splitlines() if line.strip())


# --- a webhook --------------------------------------------------------------------------------


def post(
    url: str,
    headers: Sequence[tuple[str, str]],
    sock: CancellableSocket,
    event: bytes,
    seconds: float,
) -> SendResult:
    """Post an event to a URL; a status of 200 to 299 means delivered.

    Redirects are not followed. seconds: the limit of each network operation. sock: can cut off the
    whole attempt.
    """
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = {"Content-Type": CONTENT_TYPE, "User-Agent": f"cassq/{__version__}", **dict(headers)}
    try:
        with closing(kind(parts.hostname or "", parts.port, timeout=seconds)) as connection:
            connection.connect()
            sock.use(connection.sock)
            try:
                connection.request("POST", path, event, sent)
                status = connection.getresponse().status
            finally:
                sock.use(None)
    except (OSError, HTTPException) as exc:
        reason = str(exc) or type(exc).__name__
        return SendResult(f"{parts.scheme}://{parts.netloc} cannot be reached: {reason}", down=True)
    if 200 <= status < 300:
        return SendResult()
    return SendResult(
        f"{parts.scheme}://{parts.netloc} answered with status {status}", down=status >= 500
    )
