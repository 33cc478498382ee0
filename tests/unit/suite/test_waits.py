"""Tests that wait: found and listed, unless a mark says why."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import waits

WAITING = """
    import threading
    import pytest
    {mark}
    def test_it(): threading.Event().wait(0.5)
"""
TITLE = "*idle for more than 0.2 s, and no mark says why*"
CPU_SECONDS = 0.3
ROUNDED = 0.05  # processor times are counted in hundredths, of the user and of the system each
BURN = f"import time\nwhile time.process_time() < {CPU_SECONDS}: pass"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the plugin, to which nobody ever seems to work: here many may, meanwhile."""
    shutil.copy(Path(waits.__file__), pytester.path / "waits_plugin.py")
    pytester.makeconftest(
        "import waits_plugin\n"
        "waits_plugin.look = lambda: waits_plugin.Work(0.0, {})\n"
        "pytest_plugins = ['waits_plugin']\n"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'long(reason): long')\n"
    )
    return pytester


def test_a_test_that_waits_is_listed_and_passes(project: pytest.Pytester) -> None:
    project.makepyfile(WAITING.format(mark=""))
    result = project.runpytest("--idle-most", "0.2")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([TITLE, "*0.* s  *::test_it"])


@pytest.mark.parametrize("mark", ["waits", "long"])
def test_one_whose_mark_says_why_is_not(project: pytest.Pytester, mark: str) -> None:
    project.makepyfile(WAITING.format(mark=f"@pytest.mark.{mark}(reason='a lease runs out')"))
    project.runpytest("--idle-most", "0.2").stdout.no_fnmatch_line(TITLE)


def test_one_that_waits_for_less_is_not(project: pytest.Pytester) -> None:
    project.makepyfile(WAITING.format(mark=""))
    project.runpytest("--idle-most", "100").stdout.no_fnmatch_line("*no mark says why*")


def test_processes_at_work_are_not_idle() -> None:
    before = waits.look()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ended = waits.look()
    assert ended.busy_since(before) >= CPU_SECONDS - ROUNDED
    code = f"{BURN}\nprint('burnt', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "burnt\n"
        living = waits.look()
        child.communicate("end\n")
    assert living.busy_since(ended) >= CPU_SECONDS - ROUNDED


def test_waiting_for_a_processor_is_not_idling() -> None:
    before = waits.Work(1.0, {1: (0.5, 0.0), 2: (3.0, 3.0)})
    after = waits.Work(5.0, {1: (1.0, 1.0), 3: (0.5, 1.0)})  # one has ended, another begun
    assert after.busy_since(before) == 4.0 * (1 + 2.0 / 1.0)
    assert waits.Work(5.0, {}).busy_since(before) == 4.0
