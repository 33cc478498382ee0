"""`cassq pop`: write messages to standard output, and ack them once they are written."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import click

from cassq.base.clock import Stopwatch
from cassq.cli.options import time_option
from cassq.cli.stopping import Stopped, StopSignal
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument
from cassq.consumer.delivery import Messages
from cassq.errors import (
    CassqError,
    ClaimLostError,
    CorruptionError,
    QueuePausedError,
    UsageError,
)
from cassq.extents.port import ExtentMissingError
from cassq.popper import Popper

BATCH = 1_000
# At most one message for each of these that the reader of a pipe has taken is written ahead of the
# reader, because it may read a few lines and stop.
AHEAD_OF_READER = 10
# What a shell reports for a process that a broken pipe ended.
BROKEN_PIPE = 128 + signal.SIGPIPE
# A signal is noticed after this long at the latest.
LOOK_SECONDS = 0.25


@click.command(
    cls=Verb,
    short_help="Pop messages and write them to standard output.",
    examples=[
        "cassq pop mail",
        "cassq pop mail --max 100 --wait 10s",
        "cassq pop mail --all > mail.txt",
        "cassq pop mail --no-ack --json",
        "cassq pop hits --group archive --follow | gzip > hits.gz",
    ],
)
@queue_argument("queue")
@click.option(
    "--group", default="default", show_default=True, help="The consumer group to pop for."
)
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1),
    help="Pop at most this many messages.  [default: 1, and no limit with --all or --follow]",
)
@click.option("--all", "drain", is_flag=True, help="Pop until nothing is left.")
@time_option("--wait", "0", "Wait this long for the first message.")
@click.option(
    "--follow", "-f", is_flag=True, help="Keep popping messages as they arrive, until stopped."
)
@click.option(
    "--ack/--no-ack",
    default=True,
    show_default=True,
    help="Ack the messages once they are written, or give them back at the end, as if they had"
    " not been popped.",
)
@click.pass_context
def pop(
    ctx: click.Context,
    queue: str,
    group: str,
    limit: int | None,
    drain: bool,
    wait: float,
    follow: bool,
    ack: bool,
) -> None:
    """Pop messages and write them to standard output, one per line.

    A payload is written byte for byte, with a newline after it; if payloads may contain newlines,
    use --json. With --json each line is an object: id, attempts, priority, pushed_at, headers, key
    and payload; a payload that is not UTF-8 text is base64, under the name payload_base64.

    Messages are acked after they were written: when the reader of the pipe has taken them or, if
    standard output is a file, when they are on disk. If the reader goes away or the command is
    killed, unacked messages are delivered again. So nothing is lost, but a line may be written
    twice.

    Messages are written to a pipe one by one at first, and later in batches of about a tenth of the
    number that the reader has taken. So `cassq pop mail --all | head -2` acks two messages. If the
    reader goes away, the exit code is 141, and the messages that it did not take are given back as
    if they had not been popped. With --max the messages are written without waiting for the reader
    to take them.

    The exit code is 0 even if there are no messages, and 75 if there are none because popping is
    paused (see `cassq queue pause`).
    """
    if follow and drain:
        raise UsageError(
            "--all ends when nothing is left, and --follow never ends", hint="use one of them"
        )
    if follow and not ack:
        raise UsageError("--follow cannot be used with --no-ack", hint="use --max, or cassq peek")
    call = ctx.ensure_object(Invocation)
    if limit is None and not (drain or follow):
        limit = 1
    with StopSignal() as stop, call.connect() as client:
        found = client.queue(queue)
        with found.popper(group) as popper:
            sink = output.Sink(stop, piecemeal=limit is None)
            popping = Popping(popper, stop, sink, ack=ack, as_json=call.as_json)
            try:
                popping.run(limit, wait=wait, follow=follow)
            except BrokenPipeError:
                popping.tell_given_back("the reader of the output is gone")
                ctx.exit(BROKEN_PIPE)
            finally:
                sink.close()
        if popping.ran_dry and found.policy.pop_paused:
            raise QueuePausedError(
                f"popping from queue {queue!r} is paused",
                hint=f"try again later; `cassq queue resume {queue}` ends the pause",
            )
    if stop.wanted and not follow:
        ctx.exit(stop.exit_code)
    if popping.failed:
        ctx.exit(1)


class Popping:
    """One run of the command. given_back: how many messages were popped and not acked.

    failed: whether something could not be read or acked; standard error says what. ran_dry: whether
    it ended because there was nothing more to pop.
    """

    def __init__(
        self, popper: Popper, stop: StopSignal, sink: output.Sink, *, ack: bool, as_json: bool
    ) -> None:
        self.failed: bool = False
        self.ran_dry: bool = False
        self.given_back: int = 0
        self._popper = popper
        self._stop = stop
        self._ack = ack
        self._as_json = as_json
        self._sink = sink
        self._written = 0  # messages
        self._held = Messages()

    def run(self, limit: int | None, *, wait: float, follow: bool) -> None:
        """Pop, write and ack until the limit is reached, or the command must end."""
        left = limit
        try:
            while left is None or left > 0:
                most = self._at_once()
                messages = self._pop(most if left is None else min(most, left), wait, follow)
                if not messages:
                    self.ran_dry = not self._stop.wanted
                    break
                self._deliver(messages)
                left = None if left is None else left - len(messages)
                wait = 0.0  # only the first pop waits
        except Stopped:
            self.tell_given_back("the reader of the output has stopped reading")
        finally:
            self._give_back(self._held)

    def _pop(self, count: int, wait: float, follow: bool) -> Messages:
        """The next messages; none if it has waited long enough, or must end."""
        watch = Stopwatch()
        while not self._stop.wanted:
            left = LOOK_SECONDS if follow else max(0.0, wait - watch.seconds())
            try:
                messages = self._popper.pop(count, wait=min(left, LOOK_SECONDS))
            except (CorruptionError, ExtentMissingError) as exc:
                # Raised once for each damaged pipe; other pipes can be read.
                self._report(exc)
                continue
            if messages or left == 0:
                return messages
            self._sink.check()
        return Messages()

    def _at_once(self) -> int:
        """How many messages may be popped and written together."""
        if not self._sink.is_pipe:
            return BATCH
        return min(BATCH, max(1, self._written // AHEAD_OF_READER))

    def _deliver(self, messages: Messages) -> None:
        texts = output.message_texts(messages, as_json=self._as_json)
        try:
            self._sink.write(b"\n".join([*texts, b""]))
            self._sink.flush()
            self._sink.await_taken()
        except (OSError, Stopped):
            # It is unknown whether further messages were read.
            count = _whole(texts, self._sink.taken())
            self._written += count
            self._settle(messages[:count])
            if count == len(messages):
                return  # a missing reader matters only if another message comes
            self._give_back(messages[count:])
            raise
        self._written += len(messages)
        self._settle(messages)

    def _settle(self, messages: Messages) -> None:
        if not self._ack:
            self._held += messages
        elif messages:
            try:
                self._popper.commit(messages)
            except ClaimLostError as exc:
                self._report(exc)

    def _give_back(self, messages: Messages) -> None:
        if messages:
            self.given_back += len(messages)
            try:
                self._popper.release(messages)
            except ClaimLostError as exc:
                self._report(exc)

    def tell_given_back(self, why: str) -> None:
        """Say why messages that were popped, and perhaps written, will be delivered again."""
        given = output.messages(self.given_back)
        output.error(f"{why}; given back: {given}", as_json=self._as_json, kind="OutputClosed")

    def _report(self, exc: CassqError) -> None:
        self.failed = True
        kind = type(exc).__name__
        output.error(exc.message, exc.hint, as_json=self._as_json, kind=kind, fields=exc.fields)


def _whole(texts: Sequence[bytes], size: int) -> int:
    """How many whole lines the first `size` bytes contain."""
    count = 0
    for text in texts:
        size -= len(text) + 1
        if size < 0:
            break
        count += 1
    return count
