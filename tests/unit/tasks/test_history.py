"""The history of a task: which steps its code may come to, after what is recorded."""

from __future__ import annotations

import pytest

from cassq.errors import StepMismatchError, UsageError
from cassq.tasks.calls import Codec
from cassq.tasks.steps.records import (
    SLEEP,
    STEP,
    STEP_PREFIX,
    WAIT,
    CallPlace,
    History,
    Record,
    free_signal,
    place_in,
    record_of,
    records_in,
)

CODEC = Codec("json")


def rows(*records: tuple[str, Record]) -> dict[str, bytes]:
    return {STEP_PREFIX + label: record.encoded(CODEC, "") for label, record in records}


def test_a_record_and_a_place_come_out_as_they_went_in() -> None:
    record = Record(WAIT, 3, {"a": [1]}, "", ("x#0",), 17, "signal:go#0", 5, 9)
    assert record_of(record.encoded(CODEC, "")) == record
    place = CallPlace(2, "a#0", 17, "mail", "g", "pipe", 4, came_from=("old", 1))
    assert place_in({"place": place.encoded()}) == place
    assert place_in({}) is None


def test_the_same_steps_may_be_come_to_again_and_new_ones_after_them() -> None:
    history = History("t", rows(("a#0", Record(STEP, 0)), ("a#1", Record(STEP, 1))))
    assert [history.come_to(STEP, "a") for _ in range(2)] == [("a#0", 0), ("a#1", 1)]
    assert history.come_to(SLEEP, "b") == ("b#0", 2)


def test_another_step_in_the_place_of_a_recorded_one_is_an_error() -> None:
    history = History("t", rows(("a#0", Record(STEP, 0))))
    with pytest.raises(StepMismatchError, match="reached step 'b#0' where it reached step 'a#0'"):
        history.come_to(STEP, "b")


def test_another_kind_of_the_same_name_is_reported() -> None:
    history = History("t", rows(("a#0", Record(STEP, 0))))
    with pytest.raises(StepMismatchError, match="reached sleep 'a#0' where it reached step 'a#0'"):
        history.come_to(SLEEP, "a")


def test_a_step_that_ran_because_another_failed_need_not_come_again() -> None:
    history = History("t", rows(("b#0", Record(STEP, 1, failed=("a#0",)))))
    label, _ = history.come_to(STEP, "a")
    history.returned(label)
    assert history.come_to(STEP, "c") == ("c#0", 1)
    history = History("t", rows(("b#0", Record(STEP, 1, failed=("a#0",)))))
    history.come_to(STEP, "a")
    with pytest.raises(StepMismatchError):
        history.come_to(STEP, "c")


def test_each_signal_is_free_until_a_wait_has_taken_it() -> None:
    taken = Record(WAIT, 0, signal="signal:go#0", ended_ms=1)
    found = {**rows(("go#0", taken)), "signal:go#0": b"1", "signal:go#1": b"2"}
    assert free_signal(found, "go") == "signal:go#1"
    del found["signal:go#1"]
    assert free_signal(found, "go") is None
    assert free_signal(found, "other") is None
    assert list(records_in(found)) == ["go#0"]


@pytest.mark.parametrize("name", ["", "x" * 201, 7])
def test_a_name_is_a_text(name: object) -> None:
    with pytest.raises(UsageError, match="name of a step"):
        History("t", {}).come_to(STEP, name)  # type: ignore[arg-type]
