"""What the command writes: tables, JSON, messages, errors and progress."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import select
import stat
import sys
import termios
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from cassq.base.clock import Stopwatch
from cassq.base.printing import printable
from cassq.cli.stopping import Stopped, StopSignal
from cassq.message.decoding import text_or_base64
from cassq.plurals import counted

if TYPE_CHECKING:
    from cassq.consumer.delivery import Message
    from cassq.inspect.peeking import Peeked

PREVIEW_CHARACTERS = 60
STUCK_MS = 250
FILE_PIECE_BYTES = 1 << 20
PROGRESS_SECONDS = 0.1
BAR_PLACES = 24
_NUMBER = re.compile(r"-|[\d.,]+( (s|min|h|d))?")
_CLEAR_LINE = "\x1b[K"

# --- for people -----------------------------------------------------------------------------


def say(*lines: str) -> None:
    """Lines on standard output."""
    for line in lines:
        click.echo(line)


def note(line: str) -> None:
    """A line on standard error: about the results, not part of them."""
    click.echo(line, err=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table on standard output; columns of numbers are aligned to the right."""
    say(*table_lines(headers, rows))


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table as lines, without blanks at their ends."""
    cells = [[_cell(value) for value in row] for row in rows]
    columns = list(zip(headers, *cells, strict=True))
    widths = [max(map(width, column)) for column in columns]
    right = [len(column) > 1 and all(map(_is_number, column[1:])) for column in columns]
    return [
        "  ".join(
            " " * (wide - width(cell)) + cell if to_right else cell + " " * (wide - width(cell))
            for cell, wide, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(headers), *cells]
    ]


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,g}"
        case _:
            return printable(str(value))


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def preview(payload: bytes) -> str:
    """The beginning of a payload, on one line."""
    text = printable(payload[: 4 * PREVIEW_CHARACTERS].decode(errors="backslashreplace"))
    if len(text) > PREVIEW_CHARACTERS or len(payload) > 4 * PREVIEW_CHARACTERS:
        return f"{text[: PREVIEW_CHARACTERS - 1]}…"
    return text


def messages(count: int) -> str:
    """`1 message`, `2,000 messages`."""
    return counted(count, "message")


def age(seconds: float | None) -> str:
    """A length of time in the unit that suits it."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.1f} s"


def moment(when: datetime) -> str:
    """A time in the reader's own time zone."""
    return when.astimezone().isoformat(sep=" ", timespec="milliseconds")


# --- for programs ---------------------------------------------------------------------------


def document(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: object) -> None:
    """One of many JSON documents, on its own line, flushed at once."""
    click.echo(json.dumps(value, ensure_ascii=False))


def message_fields(message: Message | Peeked) -> dict[str, Any]:
    """A message, for JSON; bytes that are not UTF-8 are in base64, under another name."""
    return {
        "id": message.id,
        "attempts": message.attempts,
        "priority": message.priority,
        "pushed_at": message.pushed_at.isoformat(timespec="milliseconds"),
        "headers": message.headers,
        **text_or_base64("key", message.key),
        **text_or_base64("payload", message.payload),
    }


def message_lines(found: Sequence[Message | Peeked], *, as_json: bool) -> bytes:
    """Messages as they are written: the payload's bytes, or JSON; each with a newline."""
    return b"\n".join([*message_texts(found, as_json=as_json), b""])


def message_texts(found: Sequence[Message | Peeked], *, as_json: bool) -> list[bytes]:
    """As `message_lines`, for each message, without the newline."""
    if as_json:
        return [json.dumps(message_fields(m), ensure_ascii=False).encode() for m in found]
    return [message.payload for message in found]


class Sink:
    """Standard output, written so that it is known how much its reader has taken.

    piecemeal: whether a pipe holds at most one unread write, so that `await_taken` can tell when
    the reader has taken all of it. (On Linux: until `close`, the pipe is made as small as one page,
    and has room again only when it is empty.)

    Nothing is buffered here: when `write` returns, its data is in the pipe or the file, and after
    `flush` a file is on disk. When the command must end, a reader that has stopped reading is not
    waited for.
    """

    def __init__(self, stop: StopSignal, *, piecemeal: bool = False) -> None:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "standard output is closed")
        self._stop = stop
        self._poll = select.poll()
        self._fd = _stdout_fd()
        self._is_file = self.is_pipe = False
        self._room = 0  # of the pipe, before it was made smaller
        self._written = 0  # bytes, by the last write
        if self._fd >= 0:
            sys.stdout.flush()
            mode = os.fstat(self._fd).st_mode
            self._is_file, self.is_pipe = stat.S_ISREG(mode), stat.S_ISFIFO(mode)
            self._poll.register(self._fd, select.POLLOUT)
            if piecemeal and self.is_pipe:
                self._room = _narrow(self._fd)

    def write(self, data: bytes) -> None:
        """Write all data. Raises BrokenPipeError if the reader is gone, Stopped if the command must
        end and the reader does not read."""
        self._written = 0
        if self._fd < 0:
            sys.stdout.buffer.write(data)
            return
        # A pipe that has room has room for this many bytes: writing them does not block.
        piece = FILE_PIECE_BYTES if self._is_file else select.PIPE_BUF
        rest = memoryview(data)
        while rest:
            self._await_room()
            try:
                count = os.write(self._fd, rest[:piece])
            except BlockingIOError:
                continue
            self._written += count
            rest = rest[count:]

    def flush(self) -> None:
        """Sync a file. Raises BrokenPipeError if the reader of a pipe is known to be gone."""
        if self._fd < 0:
            sys.stdout.buffer.flush()
        elif self._is_file:
            os.fsync(self._fd)
        self.check()

    def await_taken(self) -> None:
        """For a pipe written piecemeal: wait until its reader has taken everything written.
        Raises as `write` does."""
        if self._room:
            self._await_room()

    def taken(self) -> int:
        """How many bytes of the last write the reader of a pipe has certainly taken; 0 for anything
        but a pipe."""
        if not self.is_pipe:
            return 0
        unread = bytearray(4)
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, unread)
        except OSError:
            return 0  # unknown
        return max(0, self._written - int.from_bytes(unread, sys.byteorder))

    def close(self) -> None:
        """Restore the size of a pipe that was made smaller: others may write to it."""
        if self._room:
            with suppress(OSError):  # this only improves speed: output works without it
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, self._room)

    def check(self) -> None:
        """Raise BrokenPipeError if the reader is gone. Cost: a system call."""
        _raise_if_broken(self._poll.poll(0))

    def _await_room(self) -> None:
        while not (events := self._poll.poll(STUCK_MS)):
            if self._stop.wanted:
                raise Stopped
        _raise_if_broken(events)


def _narrow(fd: int) -> int:
    """Make a pipe as small as possible; returns its former size, 0 if that cannot be changed."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return 0
    try:
        room: int = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1)
    except OSError:
        return 0  # more than a page is unread, or changing it is not permitted
    return room


def _raise_if_broken(events: list[tuple[int, int]]) -> None:
    if any(event & select.POLLERR for _, event in events):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _stdout_fd() -> int:
    """The descriptor; -1 if standard output has none, as in tests."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError):
        return -1


# --- errors ---------------------------------------------------------------------------------


def error(
    message: str,
    hint: str = "",
    *,
    as_json: bool = False,
    kind: str = "",
    fields: Mapping[str, object] | None = None,
) -> None:
    """An error on standard error: two lines, or with --json one object."""
    if as_json:
        content = {"error": message, "hint": hint, "kind": kind, **(fields or {})}
        click.echo(json.dumps(content, ensure_ascii=False, default=str), err=True)
        return
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


# --- progress -------------------------------------------------------------------------------

# Shows what its argument returns; calls it only when it is time to show something, with the
# seconds since the beginning.
Show = Callable[[Callable[[float], str]], None]
# Gets how many bytes of the input are done, and how many messages were pushed, in total.
Advance = Callable[[int, int], None]


@contextmanager
def passing_line(*, quiet: bool = False) -> Iterator[Show]:
    """A line on standard error that changes and disappears at the end; only on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda tell: None
        return
    watch = Stopwatch()
    shown_at = -PROGRESS_SECONDS

    def show(tell: Callable[[float], str]) -> None:
        nonlocal shown_at
        if watch.seconds() - shown_at >= PROGRESS_SECONDS:
            shown_at = watch.seconds()
            click.echo(f"\r{tell(shown_at)}{_CLEAR_LINE}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo(f"\r{_CLEAR_LINE}", err=True, nl=False)


@contextmanager
def progress(total_bytes: int | None, *, quiet: bool = False) -> Iterator[Advance]:
    """A passing line that shows how much of an input is read.

    total_bytes: None: unknown, so the line has counts, but no bar.
    """
    with passing_line(quiet=quiet) as show:
        yield lambda done, pushed: show(
            lambda seconds: progress_line(done, pushed, total_bytes, seconds)
        )


def progress_line(done: int, pushed: int, total: int | None, seconds: float) -> str:
    """How far it is, and how fast."""
    line = f"{messages(pushed)}, {done / 1e6:,.1f} MB"
    if seconds >= 1:
        line += f", {pushed / seconds:,.0f} a second"
    if not total:
        return line
    share = min(1.0, done / total)
    bar = "#" * round(share * BAR_PLACES)
    return f"[{bar:-<{BAR_PLACES}}] {share:4.0%}  {line}"
