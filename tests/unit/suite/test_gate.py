"""`pytest --gate`: what it leaves out, and what runs in one process with what."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import gate

TESTS = """
    import pytest
    @pytest.fixture(scope="session")
    def spark(): return 1
    @pytest.fixture(scope="module")
    def cluster(): return 2
    def test_quick(tmp_path_factory): pass
    @pytest.mark.waits(reason="a lease runs out")
    def test_waiting(): pass
    @pytest.mark.parametrize("place", [1, pytest.param(2, marks=pytest.mark.long(reason="slow"))])
    def test_places(place): pass
    @pytest.mark.long(reason="an hour")
    def test_long(): pass
    def test_cluster(cluster): pass
    def test_spark(spark, cluster): pass
    @pytest.mark.servers("zookeeper1_for_the_session")
    def test_lock(): pass
"""
MARKS = (
    "pytest_plugins = ['gate_plugin']\n"
    """
def pytest_configure(config):
    config.addinivalue_line("markers", "waits(reason): waits")
    config.addinivalue_line("markers", "servers(*names): uses servers")
"""
)
BESIDE = (
    "import gate_plugin\n"
    + MARKS
    + """
    config.workerinput = {}  # as pytest-xdist's processes have it
def pytest_collection_finish(session):
    for item in session.items:
        print(f"ran: {item.name}, {item.stash.get(gate_plugin.GROUP, '')}")
"""
)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with the plugin and tests of all kinds."""
    shutil.copy(Path(gate.__file__), pytester.path / "gate_plugin.py")
    pytester.makeconftest(MARKS)
    pytester.makepyfile(TESTS)
    return pytester


def test_the_gate_leaves_out_what_is_long_and_nothing_else(project: pytest.Pytester) -> None:
    project.runpytest("--gate").assert_outcomes(passed=6, deselected=2)


def test_without_the_option_everything_runs(project: pytest.Pytester) -> None:
    project.runpytest().assert_outcomes(passed=8)


@pytest.mark.parametrize("mark", ["long", "waits", "long(reason='')"])
def test_a_mark_without_a_reason_is_refused(project: pytest.Pytester, mark: str) -> None:
    project.makepyfile(f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass")
    result = project.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*wants a reason*"])


def test_what_shares_a_fixture_is_one_group_and_comes_first(project: pytest.Pytester) -> None:
    project.makeconftest(BESIDE)
    path = "test_what_shares_a_fixture_is_one_group_and_comes_first.py"
    project.runpytest("--gate").stdout.fnmatch_lines(
        [
            "ran: test_spark, spark",  # which is dearer than its cluster
            "ran: test_lock, zookeeper1_for_the_session",
            f"ran: test_cluster, {path}",
            "ran: test_waiting, ",
            "ran: test_quick, ",
            "ran: test_places*, ",
        ],
        consecutive=True,
    )


def test_in_one_process_the_order_stays(project: pytest.Pytester) -> None:
    result = project.runpytest("--gate", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_quick", "*::test_waiting", "*::test_places*"])


@pytest.mark.needs("module:xdist")
@pytest.mark.waits(reason="a run of pytest with processes of its own")
def test_a_group_runs_in_one_process(project: pytest.Pytester) -> None:
    tests = ["import os, pytest", "@pytest.fixture(scope='module')", "def shared(): return 1"]
    for number in range(12):
        tests.append(f"def test_it_{number}(shared): print('here:', os.getpid())")
        tests.append(f"def test_alone_{number}(): pass")
    project.makepyfile("\n".join(tests))
    options = ("-p", "xdist", "-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder", "-rP")
    result = project.runpytest_subprocess(*options)
    result.assert_outcomes(passed=24)
    assert len({line for line in result.outlines if line.startswith("here: ")}) == 1
