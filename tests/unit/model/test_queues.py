"""Names and policies of queues and groups: what is allowed, what is refused, and how it is said."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.errors import ConfigError, InvalidNameError
from cassq.model.queues import (
    ATTRIBUTES_LENGTH_MAX,
    NAME_LENGTH_MAX,
    GroupPolicy,
    QueuePolicy,
    as_dict,
    changed,
    check_group_name,
    check_queue_name,
    dead_letter_name,
    differences,
    group_policy,
    is_dead_letter_name,
    known_only,
    queue_policy,
    rules_of,
    to_json,
)

PLAIN = ["q", "Orders", "a.b", "a_b-c", "2026", "..x", "x" * NAME_LENGTH_MAX, "-"]
PATHS = ["/team/orders", "/a", "/a/b/c/d.e"]
WRONG = [
    *("", "/", "a/b", "a/", "/a/", "//a", "/a//b", "a b", "a\n", "a~b", "é", "a:b", "a*", "\0"),
    *(".", "..", "/a/..", "/./a", "x" * (NAME_LENGTH_MAX + 1)),
]


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN + PATHS)
def test_a_queue_has_a_plain_name_or_a_path(name: str) -> None:
    assert check_queue_name(name) == name


@pytest.mark.parametrize("name", WRONG)
def test_any_other_name_for_a_queue_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(InvalidNameError, match="queue") as caught:
        check_queue_name(name)
    assert "letters, digits" in caught.value.hint
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", PLAIN)
def test_a_group_has_a_plain_name(name: str) -> None:
    assert check_group_name(name) == name


@pytest.mark.parametrize("name", WRONG + PATHS)
def test_any_other_name_for_a_group_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="group"):
        check_group_name(name)


@pytest.mark.parametrize("name", [None, 5, b"queue", ["q"]])
def test_a_name_that_is_not_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidNameError, match=f"not {type(name).__name__}"):
        check_queue_name(name)


names = st.from_regex(r"[A-Za-z0-9._-]{1,20}|(/[A-Za-z0-9._-]{1,9}){1,3}", fullmatch=True)


@given(names, names)
def test_names_of_dead_letters_are_unique_to_a_group_and_no_user_can_choose_them(
    queue: str, group: str
) -> None:
    name = dead_letter_name(queue, group)
    assert is_dead_letter_name(name)
    assert not is_dead_letter_name(queue)
    assert name.split("~") == [queue, group, "dead"]
    with pytest.raises(InvalidNameError):
        check_queue_name(name)


# --- policies ---------------------------------------------------------------------------------


def test_the_defaults_are_those_that_are_promised() -> None:
    policy = QueuePolicy()
    assert (policy.consistency, policy.claim_timeout, policy.max_deliveries) == ("ap", 30.0, 10)
    assert (policy.max_pop_width, policy.max_claim_messages) == (8, 10_000)
    assert (policy.max_pushes_per_pipe, policy.max_push_time_of_pipe) == (1_000_000, 600.0)
    assert not policy.strict
    assert QueuePolicy(consistency="cp").strict


SECONDS = {
    "claim_timeout": (0.05, 7 * 86400),
    "max_push_time_of_pipe": (0.05, 365 * 86400),
    "lease": (0.5, 3600),
    "idle_seal": (0.05, 365 * 86400),
}
COUNTS = {
    "max_deliveries": 1_000_000,
    "max_pop_width": 1024,
    "max_open_pipes": 1024,
    "key_lanes": 64,
    "max_claim_messages": 1_000_000,
    "max_pushes_per_pipe": 1_000_000_000,
    "max_bytes_per_pipe": 1 << 40,
}


@pytest.mark.parametrize(("name", "bounds"), SECONDS.items())
def test_seconds_are_taken_from_their_least_to_their_most(
    name: str, bounds: tuple[float, float]
) -> None:
    least, most = bounds
    for value in (least, most, 1):
        kept = getattr(QueuePolicy(**{name: value}), name)
        assert kept == value
        assert isinstance(kept, float)
    for value in (least - 0.001, most + 1, 0, -1):
        with pytest.raises(ConfigError, match=f"{name} must be between {least}"):
            QueuePolicy(**{name: value})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", ["1", None, True, float("nan"), float("inf"), [1]])
def test_anything_but_a_number_of_seconds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a number of seconds"):
        QueuePolicy(**{name: value})


@pytest.mark.parametrize(("name", "most"), COUNTS.items())
def test_counts_are_whole_and_from_one_to_their_most(name: str, most: int) -> None:
    for value in (1, most):
        assert getattr(QueuePolicy(**{name: value}), name) == value
    for wrong in (0, -1, most + 1, 1.0, "1", None, True):
        with pytest.raises(
            ConfigError, match=f"{name} must be a whole number between 1 and {most}"
        ):
            QueuePolicy(**{name: wrong})


@pytest.mark.parametrize("value", ["AP", "", None, 1, ["ap"]])
def test_consistency_is_one_of_two(value: Any) -> None:
    with pytest.raises(ConfigError, match="consistency must be 'ap' or 'cp'"):
        QueuePolicy(consistency=value)


@pytest.mark.parametrize("value", ["gzip", "", None, 1])
def test_compression_is_one_of_three(value: Any) -> None:
    with pytest.raises(ConfigError, match="none, zstd or lz4"):
        QueuePolicy(compression=value)


def test_a_group_takes_the_queue_s_values_unless_it_has_its_own() -> None:
    own = as_dict(GroupPolicy())
    assert (own.pop("exclusive"), own.pop("order"), own.pop("fair")) == (False, "any", False)
    assert own.pop("on_dead") == "continue"
    assert set(own.values()) == {None}
    assert GroupPolicy(claim_timeout=5).claim_timeout == 5.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exclusive": 1}, "exclusive must be True or False"),
        ({"exclusive": None}, "exclusive must be True or False"),
        ({"claim_timeout": 0.01}, "claim_timeout must be between"),
        ({"max_deliveries": 0}, "max_deliveries must be a whole number"),
    ],
)
def test_a_group_s_bad_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GroupPolicy(**changes)


def test_the_least_number_of_open_pipes_is_not_above_the_most() -> None:
    assert QueuePolicy(min_open_pipes=16).min_open_pipes == 16
    for wrong in (17, 0, 1.0, True):
        with pytest.raises(ConfigError, match="min_open_pipes (is|must)"):
            QueuePolicy(min_open_pipes=wrong)
    with pytest.raises(ConfigError, match="more than max_open_pipes, 2"):
        QueuePolicy(min_open_pipes=3, max_open_pipes=2)


CHECKED_ELSEWHERE = {
    "consistency", "compression",  # above
    "retry_schedule", "retry_jitter", "sick_check", "sick_hold", "min_open_pipes",  # below
    "dead_letters", "attributes",  # below
    # tests/integration/producer/test_max_length.py and its neighbours
    "rate", "concurrency",  # tests/integration/consumer/test_limits.py
    "priority_share",  # tests/unit/model/test_priorities.py
    "message_ttl", "retain_consumed", "retain_unconsumed", "max_length", "overflow",
    "push_paused", "pop_paused", "dedup_window",
    # tests/unit/alerts/test_rules.py and its neighbours
    "owner", "alert_no_consumer", "alert_oldest_age", "alert_dead_growth", "alert_stalled",
}  # fmt: skip


def test_every_number_of_a_policy_is_checked() -> None:
    checked = {*SECONDS, *COUNTS, *CHECKED_ELSEWHERE}
    assert checked == {field.name for field in fields(QueuePolicy)}


def test_no_more_pipes_are_kept_open_than_may_be() -> None:
    assert QueuePolicy(min_open_pipes=4, max_open_pipes=4).min_open_pipes == 4
    with pytest.raises(ConfigError, match="more than max_open_pipes"):
        QueuePolicy(min_open_pipes=5, max_open_pipes=4)


@pytest.mark.parametrize("name", [5, None, "a b", "jobs~default~dead", "a/b"])
def test_dead_letters_move_to_a_queue_of_a_valid_name(name: Any) -> None:
    assert QueuePolicy(dead_letters="/team/failed").dead_letters == "/team/failed"
    with pytest.raises((ConfigError, InvalidNameError)):
        QueuePolicy(dead_letters=name)


def test_attributes_are_a_text_of_limited_length() -> None:
    assert QueuePolicy(attributes="{}").attributes == "{}"
    for wrong in (None, {}, "x" * (ATTRIBUTES_LENGTH_MAX + 1)):
        with pytest.raises(ConfigError, match="attributes"):
            QueuePolicy(attributes=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["notjson", "[1]", '"text"', "5"])
def test_attributes_can_be_set_only_to_an_object_but_what_is_stored_can_be_read(wrong: str) -> None:
    with pytest.raises(ConfigError, match="JSON object, not"):
        changed(QueuePolicy(), {"attributes": wrong})
    assert queue_policy(to_json(QueuePolicy(attributes=wrong))).attributes == wrong
    for right in ("", "{}", '{"tags":{"a":"b"}}'):
        assert changed(QueuePolicy(), {"attributes": right}).attributes == right


@pytest.mark.parametrize("policy", [QueuePolicy, GroupPolicy])
def test_a_schedule_is_some_seconds(policy: type[QueuePolicy | GroupPolicy]) -> None:
    assert policy(retry_schedule=[10, 100, 1000]).retry_schedule == (10.0, 100.0, 1000.0)
    assert policy(retry_schedule=[]).retry_schedule == ()
    wrong: list[Any] = [
        "10", 10, [-1], ["10"], [True], [float("nan")], [float("inf")], [10**9], [None], [1] * 101,
    ]  # fmt: skip
    for schedule in wrong:
        with pytest.raises(ConfigError, match="retry_schedule"):
            policy(retry_schedule=schedule)


@pytest.mark.parametrize("jitter", [-0.1, 1.01, 5, float("nan"), "1", True])
def test_a_jitter_is_a_share(jitter: Any) -> None:
    for policy in (QueuePolicy, GroupPolicy):
        with pytest.raises(ConfigError, match="retry_jitter must be a share from 0 to 1") as caught:
            policy(retry_jitter=jitter)
        assert "tenth" in caught.value.hint


def test_a_jitter_that_was_allowed_once_is_taken_as_the_largest() -> None:
    assert queue_policy('{"retry_jitter": 5.0}').retry_jitter == 1.0
    assert group_policy('{"retry_jitter": 5.0}').retry_jitter == 1.0
    assert group_policy('{"retry_jitter": null}').retry_jitter is None


@pytest.mark.parametrize(("failures", "waits"), [(1, 10_000), (2, 100_000), (3, 100_000)])
def test_the_last_step_of_a_schedule_repeats(failures: int, waits: int) -> None:
    rules = rules_of(QueuePolicy(retry_schedule=(10, 100)), GroupPolicy())
    assert rules.retry_ms(failures, 0.5) == waits


def test_jitter_lengthens_by_up_to_its_share() -> None:
    rules = rules_of(QueuePolicy(retry_schedule=(10,), retry_jitter=0.5), GroupPolicy())
    assert [rules.retry_ms(1, chance) for chance in (0.0, 0.5, 1.0)] == [10_000, 12_500, 15_000]


def test_rules_are_the_group_s_where_it_has_its_own() -> None:
    queue = QueuePolicy(retry_schedule=(1,), max_deliveries=5, claim_timeout=7)
    assert rules_of(queue, GroupPolicy()).retry_schedule == (1.0,)
    own = rules_of(queue, GroupPolicy(retry_schedule=(), sick_check=False, max_deliveries=2))
    assert (own.retry_schedule, own.sick_check, own.max_deliveries) == ((), False, 2)
    assert own.claim_timeout_ms == 7000


# --- changing and storing -----------------------------------------------------------------------


def test_a_changed_policy_is_another_one_and_checked_like_the_first() -> None:
    old = QueuePolicy()
    new = changed(old, {"claim_timeout": 5, "max_deliveries": 3})
    assert (new.claim_timeout, new.max_deliveries, new.lease) == (5.0, 3, old.lease)
    assert old == QueuePolicy()
    with pytest.raises(ConfigError):
        changed(old, {"claim_timeout": -5})


@pytest.mark.parametrize("policy", [QueuePolicy(), GroupPolicy()])
def test_a_setting_that_does_not_exist_is_named_and_those_that_do(
    policy: QueuePolicy | GroupPolicy,
) -> None:
    with pytest.raises(ConfigError, match="no setting 'claim_time'") as caught:
        changed(policy, {"claim_time": 5})
    assert "claim_timeout" in caught.value.hint


def test_a_policy_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        QueuePolicy().lease = 5.0  # type: ignore[misc]


def test_differences_name_each_setting_with_both_values() -> None:
    old, new = QueuePolicy(), QueuePolicy(lease=5, compression="zstd")
    assert differences(old, new) == {"lease": (10.0, 5.0), "compression": ("none", "zstd")}
    assert differences(old, QueuePolicy()) == {}


def test_a_stored_policy_comes_back_also_from_a_newer_cassq() -> None:
    policy = QueuePolicy(consistency="cp", lease=3)
    stored = as_dict(policy) | {"a_setting_of_tomorrow": 1}
    assert QueuePolicy(**known_only(QueuePolicy, stored)) == policy


def test_a_stored_policy_of_an_older_cassq_gets_the_defaults_of_what_it_lacks() -> None:
    stored = as_dict(QueuePolicy(lease=3))
    del stored["idle_seal"]
    assert QueuePolicy(**known_only(QueuePolicy, stored)) == QueuePolicy(lease=3)


def test_how_long_a_sick_group_keeps_messages_is_checked_and_inherited() -> None:
    assert QueuePolicy().sick_hold == 600.0
    assert QueuePolicy(sick_hold=0).sick_hold == 0.0
    for wrong in (-1, math.nan, math.inf, "1", True, None, 11 * 365 * 86400):
        with pytest.raises(ConfigError, match="sick_hold"):
            QueuePolicy(sick_hold=wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with pytest.raises(ConfigError, match="sick_hold"):
                GroupPolicy(sick_hold=wrong)  # type: ignore[arg-type]
    queue = QueuePolicy(sick_hold=7)
    assert rules_of(queue, GroupPolicy()).sick_hold_ms == 7000
    assert rules_of(queue, GroupPolicy(sick_hold=0.5)).sick_hold_ms == 500


def test_policies_that_were_stored_before_a_setting_was_there_have_its_default() -> None:
    stored = json.loads(to_json(QueuePolicy(max_deliveries=3)))
    del stored["sick_hold"]
    assert queue_policy(json.dumps(stored)) == QueuePolicy(max_deliveries=3)
    stored = json.loads(to_json(GroupPolicy(max_deliveries=3)))
    del stored["sick_hold"]
    assert group_policy(json.dumps(stored)) == GroupPolicy(max_deliveries=3)
