"""`pytest --on`: which tests run in which place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration import on

TESTS = """
    import pytest
    @pytest.fixture
    def place(): return 1
    @pytest.fixture
    def queue(place): return 2
    def test_a_queue(queue): pass
    @pytest.mark.embedded_only(reason="it counts files")
    def test_files(queue): pass
    def test_no_queue(): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the plugin and tests of all kinds."""
    monkeypatch.delenv("CASSQ_TEST_ON", raising=False)
    shutil.copy(Path(on.__file__), pytester.path / "on_plugin.py")
    pytester.makeconftest("pytest_plugins = ['on_plugin']")
    pytester.makepyfile(TESTS)
    return pytester


def test_embedded_is_what_runs_everything(project: pytest.Pytester) -> None:
    project.runpytest().assert_outcomes(passed=3)


@pytest.mark.parametrize(
    "place", ["cassandra", "sidecars", "cassandra://host:9042/cassq_test_ann?dc=dc1"]
)
def test_elsewhere_only_what_has_queues_and_no_files_runs(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    project.runpytest("--on", place).assert_outcomes(passed=1, deselected=2)
    monkeypatch.setenv("CASSQ_TEST_ON", place)
    project.runpytest().assert_outcomes(passed=1, deselected=2)


@pytest.mark.parametrize(
    "place", ["cassandr", "sidecar", "cassandra://host/production", "redis://host/"]
)
def test_a_place_that_is_none_or_not_for_tests_is_refused(
    project: pytest.Pytester, place: str
) -> None:
    result = project.runpytest("--on", place)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--on is embedded, sidecars, cassandra or *cassq_test*"])


def test_leaving_out_wants_a_reason(project: pytest.Pytester) -> None:
    project.makepyfile(
        "import pytest\n@pytest.mark.embedded_only\ndef test_it(): raise AssertionError"
    )
    result = project.runpytest("--on", "cassandra")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*embedded_only wants a reason*"])
