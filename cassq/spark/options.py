"""The options of the data source, read and checked; `docs/spark.md` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from cassq.errors import ConfigError
from cassq.model.queues import check_group_name
from cassq.spark.clients import absolute

# Spark's own options, which every source gets.
_SPARKS = {"path", "checkpointlocation", "queryname"}
_PLACE = {"url", "queue"}
_SEVERAL = {"queues", "queuepattern"}
_READS = {"group", "messagesperpartition", "minpartitions", "failondataloss"}
SCHEMA = (
    "payload binary, headers map<string,string>, key binary, id string, pipe string, seq bigint,"
    " pushed_at timestamp, attempts int, priority int"
)
SCHEMA_OF_SEVERAL = f"{SCHEMA}, queue string"
STORED, UNFINISHED, DEAD = "stored", "unfinished", "dead"
STATES = (STORED, UNFINISHED, "waiting", "pending", "delayed", DEAD)
MESSAGES_PER_PARTITION = 500_000
GROUP = "group"
_STARTS = {"group": GROUP, "earliest": "beginning", "latest": "now"}


class WriteOptions(NamedTuple):
    """The options of a write, in a batch or a stream. queue: empty if each row names its queue."""

    url: str
    queue: str
    payload: str = "payload"  # names of columns
    headers: str = "headers"
    key: str = "key"
    delay: str = "delay"
    due: str = "due"
    priority: str = "priority"
    queue_column: str = "queue"
    write_id: str = ""


class ReadOptions(NamedTuple):
    """The options of a batch read. since_ms, until_ms: the range of push times to read, in wall
    milliseconds. queues, pattern: which queues to read, if queue is empty. only: None, or the names
    to which a filter of the query limits these."""

    url: str
    queue: str
    group: str = "default"
    state: str = STORED
    since_ms: int | None = None
    until_ms: int | None = None
    messages_per_partition: int = MESSAGES_PER_PARTITION
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    queues: tuple[str, ...] = ()
    pattern: str = ""
    only: frozenset[str] | None = None


class StreamOptions(NamedTuple):
    """The options of a stream read. queues, pattern: which queues to read, if queue is empty."""

    url: str
    queue: str
    group: str = "default"
    messages_per_trigger: int | None = None
    messages_per_partition: int = MESSAGES_PER_PARTITION
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    start: str | datetime = GROUP  # or as `start` of `Queue.create_group`
    queues: tuple[str, ...] = ()
    pattern: str = ""


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options. Raises ConfigError for one that is unknown, missing or wrong."""
    columns = ("payload", "headers", "key", "delay", "due", "priority")
    _check(options, {"writeid", "queuecolumn", *(f"{name}column" for name in columns)})
    return WriteOptions(
        absolute(options.get("url")),
        options.get("queue") or options.get("path") or "",
        **{name: options.get(f"{name}Column", name) for name in columns},
        queue_column=options.get("queueColumn", "queue"),
        write_id=options.get("writeId", ""),
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options. Raises ConfigError for one that is unknown, missing or wrong."""
    _check(options, _READS | _SEVERAL | {"state", "since", "until"})
    queue, queues, pattern = _queues(options)
    state = options.get("state", STORED)
    if state not in STATES:
        raise ConfigError(f"state must be one of {', '.join(STATES)}, not {state!r}")
    return ReadOptions(
        absolute(options.get("url")),
        queue,
        group=check_group_name(options.get("group", "default")),
        state=state,
        since_ms=_time(options, "since"),
        until_ms=_time(options, "until"),
        messages_per_partition=_per_partition(options),
        min_partitions=_count(options, "minPartitions", "partitions") or 1,
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        queues=queues,
        pattern=pattern,
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options. Raises ConfigError for one that is unknown, missing or wrong."""
    _check(options, _READS | _SEVERAL | {"maxmessagespertrigger", "startingposition"})
    queue, queues, pattern = _queues(options)
    return StreamOptions(
        absolute(options.get("url")),
        queue,
        group=check_group_name(options.get("group", "default")),
        messages_per_trigger=_count(options, "maxMessagesPerTrigger"),
        messages_per_partition=_per_partition(options),
        min_partitions=_count(options, "minPartitions", "partitions") or 1,
        fail_on_data_loss=_truth(options, "failOnDataLoss", default=True),
        start=_start(options.get("startingPosition", GROUP)),
        queues=queues,
        pattern=pattern,
    )


def _start(text: str) -> str | datetime:
    if text.lower() in _STARTS:
        return _STARTS[text.lower()]
    choices = f"{', '.join(_STARTS)}, or a time"
    return datetime.fromtimestamp(time_ms("startingPosition", text, choices) / 1000, UTC)


def _check(options: Mapping[str, str], known: set[str]) -> None:
    unknown = sorted(name for name in options if name.lower() not in known | _PLACE | _SPARKS)
    if unknown:
        raise ConfigError(
            f"the data source cassq has no option {unknown[0]!r} here",
            hint=f"it has {', '.join(sorted(_PLACE | known))}; case does not matter",
        )


def reads_several(options: Mapping[str, str]) -> bool:
    """Whether these options read several queues; each row then has a column `queue`."""
    return any(name.lower() in _SEVERAL for name in options)


def _queues(options: Mapping[str, str]) -> tuple[str, tuple[str, ...], str]:
    """The queue, the queues and the pattern to read; only one of the three is not empty."""
    if not reads_several(options):
        return _place(options)[1], (), ""
    given = [name for name in ("queue", "path", "queues", "queuePattern") if name in options]
    if len(given) > 1:
        raise ConfigError(f"the options `{given[0]}` and `{given[1]}` both name queues")
    found = [name.strip() for name in options.get("queues", "").split(",")]
    names = tuple(dict.fromkeys(name for name in found if name))
    pattern = options.get("queuePattern", "")
    if not names and not pattern:
        raise ConfigError(
            f"the option `{given[0]}` is empty",
            hint='name queues: .option("queues", "mails,orders"), or'
            ' .option("queuePattern", "mails-*")',
        )
    return "", names, pattern


def _place(options: Mapping[str, str]) -> tuple[str, str]:
    queue = options.get("queue") or options.get("path")
    if not queue:
        raise ConfigError(
            "the option `queue` is missing", hint='name the queue: .option("queue", "jobs")'
        )
    return absolute(options.get("url")), queue


def _count(options: Mapping[str, str], name: str, of: str = "messages") -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name} must be a number of {of}, at least 1, not {text!r}")
    return int(text)


def _per_partition(options: Mapping[str, str]) -> int:
    return _count(options, "messagesPerPartition") or MESSAGES_PER_PARTITION


def _truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not {options[name]!r}")
    return text == "true"


def _time(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    return None if text is None else time_ms(name, text)


def time_ms(name: str, text: str, choices: str = "a time") -> int:
    """A time in wall milliseconds. Raises ConfigError if `text` is not one. name: the option.
    choices: the values that it accepts."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise ConfigError(
            f"{name} must be {choices} such as 2026-05-01T12:00:00Z, not {text!r}"
        ) from exc
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)
