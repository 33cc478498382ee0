"""`cassq push`: lines of files or of standard input, or whole files, become messages."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import NamedTuple

import click

from cassq.cli.stopping import Stopped, StopSignal
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument
from cassq.errors import CassqError, MessageTooLargeError, UsageError
from cassq.message.frames import MESSAGE_BYTES_MAX
from cassq.message.importance import with_importance
from cassq.message.message_ids import MessageIds
from cassq.model.priorities import check_priority
from cassq.producer.pusher import Pusher

READ_BYTES = 1 << 20
STDIN = "-"

Read = Callable[[int], bytes]


class InputChunk(NamedTuple):
    """Messages that are pushed together, and the bytes of input they were made from."""

    payloads: list[bytes]
    size: int


def header(value: str) -> tuple[str, str]:
    """A header: NAME=VALUE."""
    name, equals, text = value.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{value!r} is not a header: write NAME=VALUE")
    return name, text


header_option = click.option(
    "--header",
    "headers",
    type=header,
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every message; may be given several times.",
)


class PushProgress:
    """Pushes chunks, and counts what was pushed so far."""

    def __init__(
        self, pusher: Pusher, headers: dict[str, str], key: bytes | None, priority: int
    ) -> None:
        self.count: int = 0
        self.done_bytes: int = 0
        self._pusher = pusher
        self._headers = headers
        self._key = key
        self._priority = priority

    def push(self, chunk: InputChunk) -> MessageIds:
        """Push a chunk; it is durable on return. The field `pushed` of an error says how many of
        its messages are."""
        count = len(chunk.payloads)
        headers = [self._headers] * count if self._headers else None
        keys = None if self._key is None else [self._key] * count
        try:
            ids = self._pusher.push_many(
                chunk.payloads, headers=headers, keys=keys, priority=self._priority
            )
        except CassqError as exc:
            self.count += exc.fields.get("pushed", 0)
            raise
        self.count += count
        self.done_bytes += chunk.size
        return ids


@click.command(
    cls=Verb,
    short_help="Push lines, or whole files, as messages.",
    examples=[
        "seq 1000 | cassq push mail",
        "tail -f access.log | cassq push hits --header host=web1",
        "cassq push mail monday.txt tuesday.txt --ids",
        "cassq push thumbnails --whole *.jpg",
        "echo restart | cassq push jobs --priority 9",
    ],
)
@queue_argument("queue")
@click.argument(
    "files",
    nargs=-1,
    metavar="[FILE]...",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
)
@click.option("--whole", is_flag=True, help="Push each whole file as one message.")
@header_option
@click.option("--key", help="The key of every message.")
@click.option(
    "--importance",
    metavar="WORD",
    help="The importance of every message; if one fails, its alerts are routed by this.",
)
@click.option(
    "--priority",
    type=int,
    default=0,
    metavar="N",
    help="The priority of every message, from 0 to 9; 9 is the most urgent, and is delivered first."
    " Not for cp queues.  [default: 0]",
)
@click.option("--ids", is_flag=True, help="Write the ids of the messages, one per line.")
@click.pass_context
def push(
    ctx: click.Context,
    queue: str,
    files: tuple[str, ...],
    whole: bool,
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    importance: str | None,
    priority: int,
    ids: bool,
) -> None:
    """Push each line of the FILEs as a message, as bytes and without its newline.

    Without a FILE, or for `-`, standard input is read, and each line is pushed as soon as it
    arrives. Empty lines are messages too.

    Messages are on disk before they are counted. If something fails, the error says how many
    messages were pushed, from the start of the input.
    """
    call = ctx.ensure_object(Invocation)
    sources = files or (STDIN,)
    check_priority(priority)
    stored_key = None if key is None else os.fsencode(key)
    all_headers = dict(with_importance(dict(headers), importance) or {})
    runs: list[MessageIds] = []
    with (
        StopSignal() as stop,
        call.connect() as client,
        client.queue(queue).pusher() as pusher,
        output.progress(_total_bytes(sources), quiet=_in_the_way(sources, ids)) as advance,
    ):
        pushing = PushProgress(pusher, all_headers, stored_key, priority)
        try:
            for chunk in chunks(sources, whole=whole, stop=stop):
                found = pushing.push(chunk)
                advance(pushing.done_bytes, pushing.count)
                if ids and call.as_json:
                    runs.append(found)
                elif ids:
                    output.say("\n".join(found))
        except Stopped:
            advance(pushing.done_bytes, pushing.count)
        except (CassqError, OSError) as exc:
            raise _with_count(exc, pushing.count) from exc
    _conclude(call, queue, pushing.count, runs if ids else None)
    if stop.wanted:
        ctx.exit(stop.exit_code)


def _with_count(exc: CassqError | OSError, pushed: int) -> CassqError | OSError:
    """The error, with how many messages were pushed before it."""
    so_far = f"{output.messages(pushed)} had been pushed"
    if isinstance(exc, CassqError):
        exc.message = f"{exc.message}; {so_far}"
        exc.fields["pushed"] = pushed
        return exc
    return OSError(exc.errno, f"{exc.strerror}; {so_far}", exc.filename)


def _conclude(call: Invocation, queue: str, count: int, runs: list[MessageIds] | None) -> None:
    if call.as_json:
        document: dict[str, object] = {"queue": queue, "pushed": count}
        if runs is not None:
            document["ids"] = [message_id for run in runs for message_id in run]
        output.document(document)
        return
    line = f"pushed {output.messages(count)} to {queue}"
    # With --ids standard output holds the ids and nothing else.
    if runs is None:
        output.say(line)
    else:
        output.note(line)


# --- reading --------------------------------------------------------------------------------


def chunks(sources: tuple[str, ...], *, whole: bool, stop: StopSignal) -> Iterator[InputChunk]:
    """The messages of all sources, in order."""
    for source in sources:
        with _opened(source, stop) as read:
            try:
                yield from [_whole(read, source)] if whole else lines(read)
            except MessageTooLargeError as exc:
                exc.fields["source"] = source
                raise


def lines(read: Read) -> Iterator[InputChunk]:
    """The lines of an input, as many at a time as one read returned.

    An empty read is the end. Raises MessageTooLargeError for a line that cannot be a message,
    without reading on to its end.
    """
    begun: list[bytes] = []  # a line whose end has not come yet
    size = 0
    while data := read(READ_BYTES):
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield InputChunk(b"".join([*begun, head]).split(b"\n"), size + len(data) - len(tail))
            begun, size = [], 0
        if tail:
            begun.append(tail)
            size += len(tail)
        if size > MESSAGE_BYTES_MAX:
            raise MessageTooLargeError(f"a line has more than {MESSAGE_BYTES_MAX:,} bytes")
    if begun:
        yield InputChunk([b"".join(begun)], size)


def _whole(read: Read, source: str) -> InputChunk:
    parts: list[bytes] = []
    size = 0
    while data := read(READ_BYTES):
        parts.append(data)
        size += len(data)
        if size > MESSAGE_BYTES_MAX:
            raise MessageTooLargeError(f"{source} has more than {MESSAGE_BYTES_MAX:,} bytes")
    return InputChunk([b"".join(parts)], size)


@contextmanager
def _opened(source: str, stop: StopSignal) -> Iterator[Read]:
    """A function that reads a source: it returns input as soon as some is there; a signal ends the
    wait.

    Nothing was read from the source before, so its buffer is empty.
    """
    if source == STDIN:
        if sys.stdin is None:
            raise UsageError("standard input is closed", hint="name a FILE")
        stream = sys.stdin.buffer
    else:
        stream = open(source, "rb")  # noqa: SIM115 - closed below, unless it is standard input
    try:
        fd = stream.fileno()
    except OSError:  # in memory
        read: Read = stream.read
    else:

        def read(size: int) -> bytes:
            stop.wait_for_input(fd)
            return os.read(fd, size)

    with nullcontext() if source == STDIN else closing(stream):
        yield read


def _in_the_way(sources: tuple[str, ...], ids: bool) -> bool:
    """Whether a line of progress would mix with what is typed or written on the terminal."""
    typed = STDIN in sources and sys.stdin is not None and sys.stdin.isatty()
    return typed or (ids and sys.stdout is not None and sys.stdout.isatty())


def _total_bytes(sources: tuple[str, ...]) -> int | None:
    """The size of all sources; None if the size of any is unknown."""
    total = 0
    for source in sources:
        try:
            status = os.fstat(sys.stdin.fileno()) if source == STDIN else os.stat(source)
        except (AttributeError, OSError, ValueError):  # no standard input, or none with a number
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total
