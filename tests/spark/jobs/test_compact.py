"""The job `compact`: an archive's small pipes to packs, each once, whatever became of earlier
runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import ConfigError
from tests.integration.stage import numbers, push
from tests.spark.jobs.test_archive import archived, files, folder, payloads, rows, sealed

pytest.importorskip("pyspark")

from cassq.spark.jobs.compact import PACK_PIPES, plan

COUNT = 5


@pytest.fixture
def archive(spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path) -> Path:
    """An archive of five pipes with ten messages each."""
    for n in range(COUNT):
        push(queue, *numbers(10, 10 * n))
    archived(spark, client, queue, tmp_path / "archive")
    return tmp_path / "archive"


def compacted(spark: Any, queue: cassq.Queue, archive: Path, **options: Any) -> Any:
    from cassq.spark.jobs.compact import compact

    return compact(spark, queue.name, str(archive), str(archive.parent / "packs"), **options)


def packed(archive: Path, queue: cassq.Queue) -> Path:
    """The only pack."""
    (pack,) = (archive.parent / "packs" / f"queue={queue.name}").iterdir()
    return pack


def parts(path: Path) -> int:
    return len(list(path.rglob("*.parquet")))


@pytest.mark.long(reason="Spark jobs")
def test_small_pipes_are_moved_to_one_file_and_are_not_archived_again(
    spark: Any, client: cassq.Client, queue: cassq.Queue, archive: Path
) -> None:
    before = [row.asDict() for row in rows(spark, archive)]
    done = compacted(spark, queue, archive, pipes_least=2)
    assert (done.packs, done.pipes, done.messages, done.left, done.mended) == (1, 5, 50, 0, 0)
    assert (parts(archive), parts(archive.parent / "packs")) == (0, 1)
    found = [row.asDict() for row in rows(spark, archive.parent / "packs")]
    assert {each.pop("pack") for each in found} == {f"p{sealed(client, queue)[0]}"}
    assert found == before
    again = archived(spark, client, queue, archive)
    assert (again.pipes, again.already) == (0, COUNT)
    push(queue, *numbers(10, 50))
    assert archived(spark, client, queue, archive).pipes == 1
    second = compacted(spark, queue, archive, pipes_least=2)
    assert (second.packs, second.left) == (0, 1)
    both = payloads(spark, archive) + payloads(spark, archive.parent / "packs")
    assert sorted(both) == sorted(numbers(60))


@pytest.mark.long(reason="Spark jobs")
def test_a_pack_that_a_killed_run_left_without_its_mark_is_made_again(
    spark: Any, queue: cassq.Queue, archive: Path
) -> None:
    kept = archive.parent / "kept"
    shutil.copytree(archive, kept)
    compacted(spark, queue, archive, pipes_least=2)
    pack = packed(archive, queue)
    for mark in ("", '["half'):
        shutil.rmtree(archive)
        shutil.copytree(kept, archive)
        (pack / "._whole.crc").unlink(missing_ok=True)
        (pack / "_whole").write_text(mark)
        shutil.copy(next(pack.glob("part-*")), pack / "part-stray.parquet")
        done = compacted(spark, queue, archive, pipes_least=2)
        assert (done.pipes, done.mended) == (COUNT, 0)
        assert payloads(spark, archive.parent / "packs") == sorted(numbers(50))
        assert parts(archive) == 0


@pytest.mark.long(reason="Spark jobs")
def test_what_a_killed_run_had_moved_is_removed_from_the_archive(
    spark: Any, client: cassq.Client, queue: cassq.Queue, archive: Path
) -> None:
    first, second = (folder(archive, queue, each) for each in sealed(client, queue)[:2])
    kept = archive.parent / "kept"
    for each in (first, second):
        shutil.copytree(each, kept / each.name)
    compacted(spark, queue, archive, pipes_least=2)
    written = files(archive.parent / "packs")
    for each in (first, second):
        shutil.rmtree(each)
        shutil.copytree(kept / each.name, each)
    done = compacted(spark, queue, archive, pipes_least=2)
    assert (done.packs, done.mended) == (0, 2)
    assert parts(archive) == 0
    assert files(archive.parent / "packs") == written


@pytest.mark.long(reason="Spark jobs")
def test_what_is_compacted_is_replayed(
    spark: Any, client: cassq.Client, queue: cassq.Queue, archive: Path
) -> None:
    from cassq.spark.jobs.replay import replay
    from tests.integration.stage import drain
    from tests.integration.stage import payloads as payloads_of

    compacted(spark, queue, archive, pipes_least=2)
    target = client.create_queue(f"{queue.name}-again")
    replay(
        *(spark, client.url, target.name, "one"),
        source=queue.name,
        archive=str(archive.parent / "packs"),
    )
    assert sorted(payloads_of(drain(target.popper()))) == sorted(numbers(50))
    with pytest.raises(ConfigError, match="nothing of queue"):
        replay(*(spark, client.url, target.name, "two"), source=queue.name, archive=str(archive))
    client.delete_queue(target.name)


@pytest.mark.long(reason="Spark jobs")
def test_the_command_compacts_and_refuses_an_archive_as_its_target(
    spark: Any, client: cassq.Client, queue: cassq.Queue, archive: Path
) -> None:
    into = str(archive.parent / "packs")
    words = ["spark", "compact", queue.name, str(archive)]
    few = CliRunner().invoke(main, [*words, into])
    assert few.exit_code == 0, few.output
    assert few.stdout.split()[-4:] == ["0", "0", "0", str(COUNT)]
    wrong = CliRunner().invoke(main, [*words, str(archive)])
    assert (wrong.exit_code, parts(archive)) == (2, COUNT)
    assert "is an archive itself" in wrong.stderr
    done = CliRunner().invoke(main, [*words, into, "--pipes-least", "2", "--json"])
    assert json.loads(done.stdout)["pipes"] == COUNT, done.output
    nothing = CliRunner().invoke(main, ["spark", "compact", "nope", str(archive), into])
    assert nothing.exit_code == 2
    assert "nothing of queue 'nope' is archived" in nothing.stderr


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("sizes", "least", "wanted"),
    [
        ({}, 2, []),
        ({"a": 1}, 2, []),
        ({"b": 1, "a": 1}, 2, [["a", "b"]]),
        ({"a": 1, "b": 1}, 3, []),
        ({"a": 100 * MIB, "b": 100 * MIB}, 3, [["a", "b"]]),
        (dict.fromkeys("abcdefghijkl", 100 * MIB), 100, [list("abcdefghij"), list("kl")]),
    ],
)
def test_packs_are_full_or_of_many_pipes(
    sizes: dict[str, int], least: int, wanted: list[list[str]]
) -> None:
    assert list(plan(sizes, least)) == wanted


def test_a_pack_has_a_limited_number_of_pipes() -> None:
    names = [f"{n:06}" for n in range(2 * PACK_PIPES + 1)]
    assert [len(pack) for pack in plan(dict.fromkeys(names, 1), 2)] == [PACK_PIPES] * 2
