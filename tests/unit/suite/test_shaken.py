"""`pytest --shake`: it finds who counts on a thread being fast, and spares who waits."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shaken import Shaker

TOLD = """
import threading

def test_it():
    asked, told, done = threading.Event(), threading.Event(), threading.Event()
    def answer():
        asked.wait(30)
        {answer}
    thread = threading.Thread(target=answer)
    thread.start()
    asked.set()
    told.wait(30)
    seen = done.is_set()
    thread.join()
    return seen
"""
HASTY = TOLD.format(answer="told.set()\n        done.set()")
PATIENT = TOLD.format(answer="done.set()\n        told.set()")
SLOW = """
import threading

def test_it():
    late = threading.Event()
    timer = threading.Timer(0.09, late.set)
    timer.start()
    seen = not late.is_set()
    timer.join()
    return seen
"""
SEEDS = range(4)
STALL = re.compile(r"(Thread-\d+ \(answer\)|MainThread) tests/test_it.py:\d+ \w+ \d[.\d]* s")


def shaken(root: Path, source: str, seed: int, *, main: bool = False) -> tuple[bool, list[str]]:
    """What the function of a file of tests returns when threads stand still, and which did."""
    scope: dict[str, Callable[[], bool]] = {}
    exec(compile(source, root / "tests" / "test_it.py", "exec"), scope)
    shaker = Shaker(str(seed), root, main=main)
    with shaker.tracing():
        shaker.begin("test_it")
        try:
            seen = scope["test_it"]()
        finally:
            lines = shaker.end()
    return seen, lines


def test_a_waiter_woken_too_early_is_found(tmp_path: Path) -> None:
    found = [shaken(tmp_path, HASTY, seed) for seed in SEEDS]
    assert False in [seen for seen, _ in found]
    for seen, lines in found:
        assert seen or lines
        assert all(STALL.fullmatch(line) for line in lines)


def test_a_waiter_woken_last_passes_whatever_stalls(tmp_path: Path) -> None:
    found = [shaken(tmp_path, PATIENT, seed) for seed in SEEDS]
    assert [seen for seen, _ in found] == [True] * len(SEEDS)
    assert any(lines for _, lines in found)


@pytest.mark.waits(reason="to stand still is what is tested")
def test_a_test_that_must_be_fast_itself_is_found(tmp_path: Path) -> None:
    found = [shaken(tmp_path, SLOW, seed, main=True) for seed in SEEDS]
    assert False in [seen for seen, _ in found]
    assert all(STALL.fullmatch(line) for _, lines in found for line in lines)


@pytest.mark.waits(reason="to stand still is what is tested")
@pytest.mark.parametrize("main", [False, True])
def test_threads_are_left_in_peace_afterwards(tmp_path: Path, main: bool) -> None:
    before = sys.gettrace(), threading.gettrace()
    shaken(tmp_path, PATIENT, 1, main=main)
    assert (sys.gettrace(), threading.gettrace()) == before


@pytest.mark.waits(reason="to stand still is what is tested")
def test_a_failing_test_names_the_threads_that_stalled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        **{"tests/test_it": "def test_it():\n" + "    x = 1\n" * 9 + "    assert 0"}
    )
    found = pytester.runpytest("-p", "tests.shaken", "--shake", "1", "--shake-main", "tests")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*Captured shaken call*", "MainThread tests/test_it.py:* s"])


@pytest.mark.parametrize("options", [["--shake-main"], ["--shake-share", "0.5"]])
def test_the_other_options_alone_make_no_sense(
    pytester: pytest.Pytester, options: list[str]
) -> None:
    found = pytester.runpytest("-p", "tests.shaken", *options)
    found.stderr.fnmatch_lines([f"*{options[0]} is for --shake SEED*"])


def test_a_share_of_the_tests_is_others_for_another_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        **{"tests/test_it": "".join(f"def test_{number}(): pass\n" for number in range(40))}
    )

    def run_for(seed: int) -> set[str]:
        found = pytester.inline_run(
            *("-p", "tests.shaken", "--shake", str(seed), "--shake-share", "0.2", "tests")
        )
        return {report.nodeid for report in found.getreports("pytest_runtest_logreport")}

    chosen = [run_for(seed) for seed in (1, 2, 1)]
    assert chosen[0] == chosen[2] != chosen[1]
    assert all(0 < len(each) < 20 for each in chosen)
