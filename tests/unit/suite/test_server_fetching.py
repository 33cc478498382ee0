"""Java, Maven and jars: found, fetched once, and what is told when they are not to be had."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.deadlines import eventually, in_threads
from tests.servers.parts import jars, java
from tests.servers.parts.errors import MissingServerError

ROOT = Path(__file__).resolve().parents[3]

# A Maven that leaves a jar where it is told to, after a line in a file of its calls.
MAVEN = """#!/bin/sh
echo called >> "{calls}"
for word in "$@"; do
  case $word in -DoutputDirectory=*) place=${{word#-DoutputDirectory=}} ;; esac
done
mkdir -p "$place"
echo jar > "$place/b.jar"
echo jar > "$place/a.jar"
exit {code}
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a PATH with the system's own programs behind those of the test."""
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java.find_java.cache_clear()
    yield tmp_path
    java.find_java.cache_clear()


def maven(place: Path, code: int = 0) -> Path:
    calls = place / "calls"
    script(place / "bin" / "mvn", MAVEN.format(calls=calls, code=code))
    return calls


def test_jars_are_fetched_once_however_many_ask(bare: Path) -> None:
    calls = maven(bare)
    found: list[Path] = []
    in_threads(4, lambda number: found.append(jars.fetch("zookeeper")))
    assert len(set(found)) == 1
    assert found[0].name.startswith(f"zookeeper-{jars.version(jars.pom_of('zookeeper'))}-")
    assert calls.read_text() == "called\n"
    assert jars.class_path(found[0]) == f"{found[0]}/a.jar:{found[0]}/b.jar"


def test_a_fetch_that_failed_leaves_nothing_and_is_reported(bare: Path) -> None:
    maven(bare, code=1)
    with pytest.raises(MissingServerError, match="Maven could not fetch hazelcast's jars"):
        jars.fetch("hazelcast")
    assert [path.name for path in (bare / "cache").iterdir()] == ["fetch.lock"]


def test_without_maven_the_error_says_what_to_install(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(bare))
    with pytest.raises(MissingServerError, match="no mvn on the PATH .*apt install"):
        jars.fetch("zookeeper")


@pytest.mark.parametrize("kind", ["cassandra", "zookeeper", "hazelcast"])
def test_each_kind_s_version_is_pinned(kind: str) -> None:
    numbers = jars.version(jars.pom_of(kind)).split(".")
    assert len(numbers) == 3
    assert all(number.isdigit() for number in numbers)


def test_another_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(bare / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    home = bare / "jdk"
    right = script(home / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    monkeypatch.setattr(java.Path, "glob", lambda *_: iter(()))
    with pytest.raises(MissingServerError, match=r"need Java 17: .*java is version 21"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == str(right)


# --- the fixtures ---------------------------------------------------------------------------------

TESTS = """
    def test_with(zookeeper1): raise AssertionError("it must not run")
    def test_without(): assert True
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project that uses the fixtures, on a machine without Maven."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", str(pytester.path))
    pytester.makeconftest("pytest_plugins = ['tests.needs', 'tests.servers.fixtures']")
    pytester.makepyfile(TESTS)
    return pytester


def test_at_a_desk_a_missing_server_skips(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    result = project.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.re_match_lines([r"SKIPPED.*(no mvn on the PATH|need Java 17)"])


def test_in_ci_a_missing_server_fails(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = project.runpytest_subprocess()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*in CI a missing tool is a failure*"])


def test_tests_with_servers_are_marked_by_themselves(project: pytest.Pytester) -> None:
    project.runpytest_subprocess("-m", "not servers").assert_outcomes(passed=1, deselected=1)


# --- the keeper -----------------------------------------------------------------------------------

PARENT = """
import sys
from pathlib import Path
from tests.servers.parts.node import keep
with open("log", "ab") as log:
    keeper, pid = keep(["sleep", "1000"], Path.cwd(), log)
print(keeper.pid, pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["parent", "keeper"])
def test_a_server_ends_with_the_process_that_started_it(bare: Path, victim: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=bare,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        keeper, server = map(int, parent.stdout.readline().split())
        try:
            eventually("the server runs", lambda: command_of(server) == "sleep 1000")
            os.kill(parent.pid if victim == "parent" else keeper, 9)
            eventually("the server ends", lambda: command_of(server) == "")
        finally:
            parent.kill()
            if command_of(server) == "sleep 1000":
                os.kill(server, 9)


def command_of(pid: int) -> str:
    """The command line of a process; "" when it is gone, or about to be collected."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().strip("\0").replace("\0", " ")
    except OSError:
        return ""
