"""The oracle of crash loops judges by what commits returned, not by what was handed out."""

from __future__ import annotations

import pytest

from tests.faults.crashes import Oracle

ALL = [b"p:0", b"p:1"]


def oracle() -> Oracle:
    """One that heard of two messages, pushed and handed out."""
    found = Oracle()
    for report in (("try", "p", 0, 2), ("ok", "p", 0, 2), ("got", "default", ALL)):
        found.hear(report)
    return found


def test_what_was_committed_is_not_lost() -> None:
    judge = oracle()
    judge.hear(("commit", "default", ALL))
    judge.hear(("committed", "default", ALL))
    judge.judge(["default"], once=True)


def test_what_was_handed_out_and_never_committed_is_lost() -> None:
    with pytest.raises(AssertionError, match="has not committed 2"):
        oracle().judge(["default"])


def test_a_commit_that_was_under_way_at_a_kill_may_have_committed() -> None:
    judge = oracle()
    judge.hear(("commit", "default", ALL))
    judge.judge(["default"])


def test_a_commit_that_was_refused_has_not_committed() -> None:
    judge = oracle()
    judge.hear(("commit", "default", ALL[:1]))
    judge.hear(("committed", "default", ALL[:1]))
    judge.hear(("commit", "default", ALL[1:]))
    judge.hear(("lost", "default", ALL[1:]))
    with pytest.raises(AssertionError, match=r"has not committed 1, such as \[b'p:1'\]"):
        judge.judge(["default"])


def test_of_several_that_were_refused_together_some_may_be_committed() -> None:
    judge = oracle()
    judge.hear(("commit", "default", ALL))
    judge.hear(("lost", "default", ALL))
    judge.judge(["default"])


def test_two_commits_of_one_message_are_seen() -> None:
    judge = oracle()
    for _ in range(2):
        judge.hear(("commit", "default", ALL))
        judge.hear(("committed", "default", ALL))
    judge.judge(["default"])
    with pytest.raises(AssertionError, match="twice"):
        judge.judge(["default"], once=True)
