"""What a user of Spark reads when something is wrong: the option to set, not the library's call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import CassqError
from tests.integration.stage import numbers, push, reap

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, StructType

from cassq.spark.reading import ScanTask
from cassq.spark.source import CassqSource
from cassq.spark.streams.following import offset_of
from cassq.spark.wording import HINTS

SCHEMA = StructType().add("payload", BinaryType())
MISSING = 'check .option("queue", …) and .option("url", …)'
Act = Callable[[], object]


def said(act: Act) -> str:
    """The whole text of an error, as Spark shows it."""
    with pytest.raises(CassqError) as caught:
        act()
    return str(caught.value)


def source(client: cassq.Client, queue: cassq.Queue, **options: str) -> CassqSource:
    return CassqSource({"url": client.url, "queue": queue.name, **options})


def test_without_a_url_the_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CASSQ_URL", raising=False)
    text = said(lambda: CassqSource({"queue": "jobs"}).reader(SCHEMA))
    assert "the option `url` is missing" in text
    assert "CASSQ_URL" in text


def test_without_a_queue_the_option_is_named(client: cassq.Client) -> None:
    text = said(lambda: CassqSource({"url": client.url}).reader(SCHEMA))
    assert text == 'the option `queue` is missing (name the queue: .option("queue", "jobs"))'


def test_of_an_unknown_option_the_known_ones_are_listed(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    options = source(client, queue, sinse="2026-05-01")
    text = said(lambda: options.reader(SCHEMA))
    assert "no option 'sinse' here (it has " in text
    assert "since" in text.partition("(it has ")[2]
    assert "startingposition" not in text, "that is for streams"
    assert "startingposition" in said(lambda: options.streamReader(SCHEMA))


def test_a_missing_directory_is_named_by_the_option(tmp_path: Path) -> None:
    options = {"url": f"file://{tmp_path}/nowhere", "queue": "jobs"}
    text = said(lambda: CassqSource(options).reader(SCHEMA))
    assert "nowhere" in text
    assert '.option("url", …)' in text
    assert "--url" not in text


def test_a_missing_queue_is_named_by_the_option(client: cassq.Client) -> None:
    missing = CassqSource({"url": client.url, "queue": "nope"})
    for act in (
        lambda: missing.reader(SCHEMA).partitions(),
        lambda: missing.streamReader(SCHEMA).initialOffset(),
        lambda: missing.writer(SCHEMA, False),
    ):
        text = said(act)
        assert text.startswith(f"there is no queue 'nope' ({MISSING}")
        assert "cassq queue create" not in text


def test_a_missing_group_is_named_by_the_option(client: cassq.Client, queue: cassq.Queue) -> None:
    missing = source(client, queue, group="nope", state="waiting").reader(SCHEMA)
    assert """has no group 'nope' (check .option("group", …)""" in said(missing.partitions)


def test_a_cp_a_paused_and_a_full_queue_say_what_becomes_of_the_write(
    client: cassq.Client, spark: Any
) -> None:
    strict = client.create_queue("wording-strict", consistency="cp")
    paused = client.create_queue("wording-paused")
    paused.pause()
    texts = [said(partial(source(client, each).writer, SCHEMA, False)) for each in (strict, paused)]
    assert "is cp" in texts[0]
    assert "write to an ap queue" in texts[0]
    assert "nothing of the write is published: run it again" in texts[1]
    assert "cassq queue resume" not in texts[1]
    assert "with .option" in said(lambda: source(client, strict).streamReader(SCHEMA).commit({}))
    small = client.create_queue("wording-small", max_length=5)
    push(small, b"one")
    frame = spark.range(10).selectExpr("cast(id as string) as payload").write.format("cassq")
    with pytest.raises(Exception, match="no room for 10 .*write a smaller frame, or run"):
        frame.mode("append").options(url=client.url, queue=small.name).save()
    for each in (strict, paused, small):
        client.delete_queue(each.name)


def test_lost_messages_say_how_to_read_without_them(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(5))
    lax = '.option("failOnDataLoss", "false")'
    batch, stream = source(client, queue).reader(SCHEMA), source(client, queue).streamReader(SCHEMA)
    (task,) = batch.partitions()
    assert isinstance(task, ScanTask)
    start = stream.initialOffset()
    read = stream.latestOffset(start, stream.getDefaultReadLimit())
    (pipe_id,) = read["pipes"]
    half = {**read, "pipes": {pipe_id: [0, 2, 0]}}
    queue.purge()
    assert lax in said(lambda: stream.latestOffset(half, stream.getDefaultReadLimit()))
    stream.stop()
    reap(client)
    assert lax in said(lambda: list(batch.read(task)))


def test_a_group_that_is_read_or_popped_already_asks_for_another(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(5))
    popper = queue.popper()
    popper.pop(2)
    stream = source(client, queue).streamReader(SCHEMA)
    start = stream.initialOffset()
    text = said(lambda: stream.latestOffset(start, stream.getDefaultReadLimit()))
    stream.stop()
    assert 'give the stream a group of its own, .option("group", …)' in text


def test_a_checkpoint_of_another_place_asks_for_a_new_one(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    stream = source(client, queue).streamReader(SCHEMA)
    text = said(lambda: stream.partitions({}, offset_of("others", {})))
    assert "other queues (others)" in text
    assert "begin with a new checkpoint" in text


def test_a_bad_row_says_that_nothing_is_published(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    frame = spark.sql("select cast(null as string) as payload").write.format("cassq")
    with pytest.raises(
        Exception, match=r"row 0: the payload is null \(correct these rows or leave"
    ):
        frame.mode("append").options(url=client.url, queue=queue.name).save()


def test_a_real_job_shows_it(spark: Any, client: cassq.Client) -> None:
    frame = spark.read.format("cassq").options(url=client.url, queue="nope").load()
    with pytest.raises(Exception) as caught:
        frame.collect()
    assert f"there is no queue 'nope' ({MISSING}" in str(caught.value)


def test_the_hints_name_no_command() -> None:
    assert "" not in HINTS, "an error without a hint must not get one of another"
    assert not [text for text in HINTS.values() if "`cassq " in text or "--" in text]
