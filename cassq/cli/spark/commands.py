"""`cassq spark`: Spark jobs on whole queues. Spark is loaded only when a job begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cassq.cli.spark.audit import audit
from cassq.cli.spark.rollup import rollup
from cassq.cli.spark.session import session_of, session_options
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb, queue_argument
from cassq.plurals import counted

if TYPE_CHECKING:
    from cassq.spark.jobs.archive import Archived, ArchiveProgress

HEADERS = ("QUEUE", "PIPES", "MESSAGES", "ALREADY", "MISSED")


@click.group()
def spark() -> None:
    """Run Spark jobs on whole queues.

    They need the extra `spark` and a JDK, 17 or later. Each may be run again: finished work is not
    repeated.
    """


@spark.command(
    "archive",
    cls=Verb,
    short_help="Write the messages of a queue's finished pipes to Parquet.",
    examples=[
        "cassq spark archive mail /var/lib/archive",
        "cassq spark archive mail hdfs:///archive --master yarn --conf spark.executor.memory=4g",
    ],
)
@queue_argument("queue")
@click.argument("directory", metavar="DIR")
@click.option(
    "--messages-per-step",
    type=click.IntRange(1),
    default=5_000_000,
    show_default=True,
    metavar="COUNT",
    help="Write about this many messages at a time; a killed run loses only the current ones.",
)
@session_options
@click.pass_context
def archive(
    ctx: click.Context,
    queue: str,
    directory: str,
    messages_per_step: int,
    master: str | None,
    settings: dict[str, str],
) -> None:
    """Write the messages of all sealed or consumed pipes of QUEUE to Parquet files under DIR.

    DIR is a path or URL that Spark can write to. A completely archived pipe is not written again; a
    pipe that a killed run left incomplete is rewritten. Pipes that a pusher still writes are left
    for the next run. The queue is not changed.

    Messages that every group has committed are kept for `retain_consumed` seconds, a setting of the
    queue. The exit code is 1 if a pipe was removed while it was read.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:  # mistakes in the call are reported before Spark starts
        client.queue(queue)
    with session_of("archive", master, settings) as session, output.passing_line() as show:
        from cassq.spark.jobs.archive import archive as run

        def progress(state: ArchiveProgress) -> None:
            show(lambda _: progress_line(state))

        done = run(
            session,
            client.url,
            queue,
            directory,
            messages_per_step=messages_per_step,
            progress=progress,
        )
    _show(call, done)
    if done.missed:
        ctx.exit(1)


def progress_line(state: ArchiveProgress) -> str:
    """How far an archive is."""
    return (
        f"{state.pipes:,} of {state.pipes_in_all:,} pipes,"
        f" {state.messages:,} of {output.messages(state.messages_in_all)}"
    )


def _show(call: Invocation, done: Archived) -> None:
    if call.as_json:
        output.document(done.as_dict())
    else:
        row = (done.queue, done.pipes, done.messages, done.already, len(done.missed))
        output.table(HEADERS, [row])
    for pipe_id in done.missed:
        output.note(f"note: pipe {pipe_id} was removed while it was read, and is not archived")
    if done.missed:
        output.error(
            f"{counted(len(done.missed), 'pipe')} of queue {done.queue!r} could not be archived",
            "set retain_consumed on the queue, to longer than the time between two runs",
            as_json=call.as_json,
        )


@spark.command(
    "compact",
    cls=Verb,
    short_help="Move the small pipes of an archive to files of many pipes.",
    examples=["cassq spark compact mail /var/lib/archive /var/lib/packs"],
)
@click.argument("queue", metavar="QUEUE")
@click.argument("directory", metavar="DIR")
@click.argument("into", metavar="INTO")
@click.option(
    "--pipes-least",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    metavar="COUNT",
    help="Leave fewer small pipes than this for a later run, unless they fill a file.",
)
@session_options
@click.pass_context
def compact(
    ctx: click.Context,
    queue: str,
    directory: str,
    into: str,
    pipes_least: int,
    master: str | None,
    settings: dict[str, str],
) -> None:
    """Move the small pipes of QUEUE from the archive DIR to the directory INTO, many to a file.

    `cassq spark archive` wrote DIR, and may still write there. A pipe's messages are removed from
    DIR when all of them are in INTO. If a run is killed, the next one finishes its work. Pipes of
    128 MiB or more stay in DIR. The queue is not needed.
    """
    call = ctx.ensure_object(Invocation)
    with session_of("compact", master, settings) as session:
        from cassq.spark.jobs.compact import compact as run

        done = run(session, queue, directory, into, pipes_least=pipes_least)
    if call.as_json:
        output.document(done.as_dict())
    else:
        row = (done.queue, done.packs, done.pipes, done.messages, done.left)
        output.table(("QUEUE", "PACKS", "PIPES", "MESSAGES", "LEFT"), [row])
    if done.mended:
        output.note(f"note: {counted(done.mended, 'pipe')} had been moved by a killed run")


@spark.command(
    "replay",
    cls=Verb,
    short_help="Push archived or stored messages to a queue again.",
    examples=[
        "cassq spark replay mail --write-id may-1 --since 2026-05-01 --until 2026-05-02",
        "cassq spark replay mail --archive out --write-id eu --where \"headers['at'] = 'eu'\"",
        "cassq spark replay mail --write-id slow --until 2026-05-02 --rate 500",
    ],
)
@queue_argument("queue")
@click.option(
    "--write-id", required=True, metavar="ID", help="A replay with this ID is done only once."
)
@click.option(
    "--from",
    "source",
    metavar="QUEUE",
    help="Replay the messages of this queue instead of QUEUE's.",
)
@click.option(
    "--archive", metavar="DIR", help="Replay the messages that `cassq spark archive` wrote to DIR."
)
@click.option("--since", metavar="TIME", help="Only messages pushed from this time on (UTC).")
@click.option("--until", metavar="TIME", help="Only messages pushed before this time (UTC).")
@click.option("--where", metavar="SQL", help="Only messages for which this is true.")
@click.option(
    "--rate", type=float, metavar="NUMBER", help="Messages a second, on average; needs --until."
)
@session_options
@click.pass_obj
def replay(
    call: Invocation,
    queue: str,
    write_id: str,
    source: str | None,
    archive: str | None,
    since: str | None,
    until: str | None,
    where: str | None,
    rate: float | None,
    master: str | None,
    settings: dict[str, str],
) -> None:
    """Push messages to QUEUE again: from its finished pipes, another queue's, or an archive.

    The SQL of --where uses the columns of a batch read, such as `cast(payload as string)`,
    `headers['x']`, `pushed_at`. Messages get new ids, and keep payload, headers, key and priority.

    A second run with the same --write-id publishes nothing twice. Without --rate everything is
    published at once; with --rate, in writes of up to 10,000 messages.
    """
    with call.connect() as client:
        client.queue(queue)
    with session_of("replay", master, settings) as session, output.passing_line() as show:
        from cassq.spark.jobs import replay as job

        def progress(state: job.ReplayProgress) -> None:
            messages = output.messages(state.messages)
            show(lambda _: f"{state.writes:,} of {state.writes_in_all:,} writes, {messages}")

        done = job.replay(
            session,
            client.url,
            queue,
            write_id,
            source=source,
            archive=archive,
            choice=job.Choice(since, until, where),
            rate=rate,
            progress=progress,
        )
    if call.as_json:
        output.document(done.as_dict())
    else:
        row = (done.queue, done.messages, done.writes, done.already)
        output.table(("QUEUE", "MESSAGES", "WRITES", "ALREADY"), [row])


@spark.command(
    "dead-letters",
    cls=Verb,
    short_help="Show why dead letters died, or merge those that SQL selects.",
    examples=[
        "cassq spark dead-letters mail",
        "cassq spark dead-letters mail --where \"error like '%timed out%'\" --merge",
    ],
)
@queue_argument("queue")
@click.option(
    "--group", default="default", show_default=True, help="Use the dead letters of this group."
)
@click.option("--where", default="", metavar="SQL", help="Only letters for which this is true.")
@click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, help="Show this many of each."
)
@click.option("--merge", is_flag=True, help="Merge back the letters that --where selects.")
@session_options
@click.pass_context
def dead_letters(
    ctx: click.Context,
    queue: str,
    group: str,
    where: str,
    top: int,
    merge: bool,
    master: str | None,
    settings: dict[str, str],
) -> None:
    """Count the reasons, errors, consumers and producers of QUEUE's dead letters, or merge some.

    A producer is shown as the pipe that it filled. The SQL of --where uses the columns of a batch
    read, and reason, failure, error, consumer, deliveries, died_at and producer.

    With --merge the letters that --where selects return to their group, as with `cassq dead merge`,
    at most 1,000,000 at once; letters that a consumer holds are not merged.
    """
    call = ctx.ensure_object(Invocation)
    if merge and not where:
        raise click.UsageError("--merge needs --where; `cassq dead merge` merges all")
    with call.connect() as client:
        client.queue(queue)
    with session_of("dead-letters", master, settings) as session:
        from cassq.spark.jobs import dead_letters as job

        if merge:
            outcome = job.merge(session, client.url, queue, group, where=where)
            document: dict[str, Any] = {"queue": queue, "group": group, **outcome.as_dict()}
            headers: tuple[str, ...] = ("QUEUE", "GROUP", "MERGED", "IN HAND", "BROKEN PIPES")
            rows: list[tuple[object, ...]] = [
                (queue, group, outcome.messages, outcome.held, len(outcome.broken))
            ]
        else:
            found = job.analyse(session, client.url, queue, group, where=where, top=top)
            outcome, document = None, found.as_dict()
            headers = ("WHAT", "VALUE", "LETTERS")
            rows = [(each.what, each.value, each.letters) for each in found.top]
    if call.as_json:
        output.document(document)
    else:
        output.table(headers, rows)
    if outcome is not None and outcome.broken:
        ctx.exit(1)


spark.add_command(audit)
spark.add_command(rollup)
