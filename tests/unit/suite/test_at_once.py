"""Failures are printed as they come, if asked for."""

from __future__ import annotations

import pytest

TESTS = """
def test_first():
    assert "this" == "that"

def test_second():
    print("the second runs")
"""


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")])
def test_a_failure_is_printed_before_the_run_ends(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(TESTS)
    printed = pytester.runpytest("-p", "tests.at_once", "--at-once", *options).stdout.str()
    before, _, after = printed.partition("= FAILURES =")
    assert "test_first (call)" in before
    assert 'assert "this" == "that"' in before
    assert 'assert "this" == "that"' in after
    assert "test_second (call)" not in printed


def test_it_is_printed_once_unless_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    printed = pytester.runpytest("-p", "tests.at_once").stdout.str()
    assert printed.count('assert "this" == "that"') == 1
