"""Tools a test needs: a skip with the reason at a desk, a failure in CI."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import needs

THIS = Path(needs.__file__)


@pytest.fixture
def desk(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the plugin, outside of CI."""
    shutil.copy(THIS, pytester.path / "needs_plugin.py")
    pytester.makeconftest("pytest_plugins = ['needs_plugin']")
    monkeypatch.delenv("CI", raising=False)
    return pytester


@pytest.fixture
def ci(desk: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The same in CI."""
    monkeypatch.setenv("CI", "true")
    return desk


BY_MARKER = """
    import pytest
    @pytest.mark.needs("no-such-server")
    def test_it(): raise AssertionError("it must not run")
"""
BY_FIXTURE = """
    def test_it(needs): needs("no-such-server"); raise AssertionError("it must not go on")
"""
BY_MODULE = """
    import pytest
    pytest.importorskip("no_such_module_at_all")
"""
BY_SKIPIF = """
    import pytest
    @pytest.mark.skipif(True, reason="no-such-server is not installed")
    def test_it(): ...
"""


@pytest.mark.parametrize("source", [BY_MARKER, BY_FIXTURE, BY_SKIPIF])
def test_at_a_desk_a_missing_tool_skips_with_the_reason(desk: pytest.Pytester, source: str) -> None:
    desk.makepyfile(source)
    result = desk.runpytest_subprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no-such-server is not installed*"])


@pytest.mark.parametrize("source", [BY_MARKER, BY_FIXTURE, BY_SKIPIF])
def test_in_ci_a_missing_tool_fails(ci: pytest.Pytester, source: str) -> None:
    ci.makepyfile(source)
    result = ci.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no-such-server is not installed*"])


def test_in_ci_a_module_that_skips_itself_fails(ci: pytest.Pytester) -> None:
    ci.makepyfile(BY_MODULE)
    result = ci.runpytest_subprocess()
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*no_such_module_at_all*"])


def test_in_ci_a_permitted_skip_passes_and_is_listed(ci: pytest.Pytester) -> None:
    ci.makepyfile(
        """
        import pytest
        @pytest.mark.may_skip("only ext4 can do it")
        def test_it(): pytest.skip("this is not ext4")
        """
    )
    result = ci.runpytest_subprocess()
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*test_it: this is not ext4 (only ext4 can do it)"])


def test_in_ci_an_expected_failure_is_not_a_skip(ci: pytest.Pytester) -> None:
    ci.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False")
    ci.runpytest_subprocess().assert_outcomes(xfailed=1)


def test_a_tool_that_is_there_is_found_by_name_and_by_module() -> None:
    assert needs.find("sh") == shutil.which("sh")
    assert needs.find("module:json") == "json"
    assert needs.find("module:no_such_module_at_all") is None


@pytest.mark.parametrize(
    ("version_text", "found"),
    [('openjdk version "17.0.15" 2025', True), ('java version "1.8.0_401"', False), ("", False)],
)
def test_an_old_java_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version_text: str, found: bool
) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{version_text}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert needs.find("java") == (str(java) if found else None)
