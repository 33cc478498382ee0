"""Jobs of Spark, without Spark: how their work is cut, and how calls and errors are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cassq.cli.main import main
from cassq.cli.spark.commands import progress_line
from cassq.errors import ConfigError
from cassq.inspect.history import DAY_MS, HOUR_MS, KEPT_MS, MINUTE_MS
from cassq.message.frames import Place
from cassq.model.rows import PipeRow, PipeState

pytestmark = pytest.mark.needs("module:pyspark", "module:pyarrow")


def pipe(number: int, messages: int) -> PipeRow:
    end = Place(messages, 100)
    return PipeRow(f"p{number}", "q", PipeState.SEALED, "me", 0, 1000, end=end, ordinal=number)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([10], [[10]]),
        ([4, 6], [[4, 6]]),
        ([4, 7], [[4], [7]]),
        ([25, 1, 9, 1], [[25], [1, 9], [1]]),
    ],
)
def test_pipes_are_taken_in_steps_of_a_number_of_messages(
    sizes: list[int], expected: list[list[int]]
) -> None:
    from cassq.spark.jobs.archive import steps

    found = steps([pipe(number, size) for number, size in enumerate(sizes)], 10)
    assert [[p.end.seq for p in step if p.end] for step in found] == expected


def test_the_most_informative_line_of_a_long_error_is_reported() -> None:
    from cassq.spark.jobs.sessions import what_failed

    long = (
        "Job aborted due to stage failure\nTraceback:\n  File x\ncassq.errors.ConfigError: no\n\n"
    )
    assert what_failed(long) == "ConfigError: no"
    assert what_failed("\n  it stopped\nmore") == "it stopped"
    assert what_failed("") == "Spark gave no reason"


def test_progress_is_reported_in_pipes_and_messages() -> None:
    from cassq.spark.jobs.archive import ArchiveProgress

    found = progress_line(ArchiveProgress(3, 12, 1500, 40_000))
    assert found == "3 of 12 pipes, 1,500 of 40,000 messages"


def test_a_setting_that_is_none_is_refused_before_spark_is_begun() -> None:
    for wrong in ("spark.driver.memory", "=4g"):
        words = ["spark", "archive", "mail", "out", "--conf", wrong]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
        assert "is not NAME=VALUE" in done.stderr


def test_a_place_that_is_not_there_is_reported_before_spark_is_begun(
    tmp_path: Path,
) -> None:
    words = ["spark", "archive", "mail", "out", "--url", f"file://{tmp_path}/none"]
    assert CliRunner().invoke(main, words).exit_code == 2


def test_chunks_are_cut_by_places_alone() -> None:
    from cassq.spark.jobs.replay_sources import chunks

    found = list(chunks({"a": 20_000, "b": 1, "c": 10_001}))
    assert found == [
        *(("a", 0, 10_000), ("a", 10_000, 20_000), ("b", 0, 1)),
        *(("c", 0, 10_000), ("c", 10_000, 10_001)),
    ]


def test_a_paced_replay_waits_until_its_average_is_that_of_the_rate() -> None:
    from cassq.spark.jobs.replay import pause

    assert pause(0, 100, 0) == 0
    assert pause(1000, 100, 4) == 6
    assert pause(1000, 100, 12) == 0


@pytest.mark.parametrize(
    ("until", "rate", "message"),
    [
        (None, 5.0, "needs `until`, a time in the past"),
        ("2026-05-01T00:00:01.001Z", 5.0, "needs `until`, a time in the past"),
        ("2026-05-01T00:00:01Z", 0.0, "more than 0"),
        ("soon", None, "until must be a time"),
    ],
)
def test_a_replay_that_could_not_be_done_once_is_refused(
    until: str | None, rate: float | None, message: str
) -> None:
    from cassq.spark.jobs.replay import Choice, check
    from cassq.spark.options import time_ms

    now_ms = time_ms("now", "2026-05-01T00:00:01Z")
    with pytest.raises(ConfigError, match=message):
        check(Choice(until=until), "w", rate, now_ms)
    with pytest.raises(ConfigError, match="needs a writeId"):
        check(Choice(), "", None, now_ms)
    check(Choice(until="2026-05-01T00:00:01Z"), "w", 5.0, now_ms)


def test_a_day_is_read_in_the_finest_step_that_is_kept_of_all_of_it() -> None:
    from cassq.spark.jobs.rollup_rows import begin_ms, day_of, is_over, step_of

    day_ms = begin_ms("2026-05-01")
    assert (day_of(day_ms), day_of(day_ms - 1)) == ("2026-05-01", "2026-04-30")
    for step_ms, coarser_ms in ((MINUTE_MS, HOUR_MS), (HOUR_MS, DAY_MS)):
        kept_ms = day_ms + KEPT_MS[step_ms]
        assert step_of(day_ms + DAY_MS - 1, kept_ms) == step_ms
        assert step_of(day_ms + DAY_MS - 1, kept_ms + 1) == coarser_ms
    over_ms = day_ms + DAY_MS + 5 * MINUTE_MS
    assert not is_over("2026-05-01", over_ms - 1)
    assert is_over("2026-05-01", over_ms)
