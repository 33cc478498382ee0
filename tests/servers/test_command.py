"""The command for real: a cluster that outlives its shell, and none that outlives its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.integration.deadlines import eventually
from tests.servers import registry
from tests.servers.parts import jars
from tests.servers.parts.addresses import claim_subnet
from tests.servers.parts.errors import MissingServerError
from tests.servers.parts.java import find_java

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120

pytestmark = pytest.mark.servers

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}"


@pytest.fixture
def run(name: str) -> Iterator[Run]:
    """`run(verb, ...)` of this test's own cluster, which is ended with the test."""
    try:
        find_java()
        jars.fetch("zookeeper")
    except MissingServerError as error:
        needs.missing(str(error))

    def called(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.servers", *words, "--name", name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    yield called
    if name in registry.names():
        called("down")


def printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def states(status: dict[str, Any]) -> list[str]:
    return [node["state"] for node in status["nodes"]]


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_detached_cluster_does_what_other_shells_ask(run: Run, name: str) -> None:
    up = printed(run("up", "zookeeper", "--nodes", "3", "--detach", "--json"))
    assert states(up) == ["running"] * 3
    assert up["url"].count(":2181") == 3
    assert states(printed(run("kill", "2", "--json"))) == ["running", "down", "running"]
    assert states(printed(run("restart", "2", "--json"))) == ["running"] * 3
    assert states(printed(run("pause", "1", "3", "--json"))) == ["paused", "running", "paused"]
    assert states(printed(run("resume", "1", "--json"))) == ["running", "running", "paused"]
    mended = printed(run("mend", "--json"))
    assert states(mended) == ["running"] * 3
    assert "leader" in {node["mode"] for node in mended["nodes"]}
    assert f"node {2:<10} {up['contact_points'][1]}" in run("status").stdout
    assert "clientPort" in run("logs", "1").stdout
    again = run("up", "zookeeper", "--detach")
    assert (again.returncode, "is up already" in again.stderr) == (1, True)
    wrong = run("kill", "4")
    assert (wrong.returncode, "nodes 1 to 3, not 4" in wrong.stderr) == (1, True)
    uncuttable = run("cut", "1")
    assert (uncuttable.returncode, "without partitions" in uncuttable.stderr) == (1, True)
    assert printed(run("down", "--json")) == {"ended": name}
    assert not any(is_there(node["pid"]) for node in mended["nodes"])
    assert not Path(up["home"]).exists()
    gone = run("status")
    assert (gone.returncode, f"no cluster {name}" in gone.stderr) == (1, True)


def test_what_was_fetched_is_named_with_its_version_and_its_place(run: Run) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.servers", "fetch", "zookeeper"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pinned = jars.version(jars.pom_of("zookeeper"))
    assert done.stdout == f"zookeeper {pinned}: {jars.fetch('zookeeper')}\n"


@pytest.mark.long(reason="servers that start and end")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_cluster_ends_with_its_owner_however_that_ends(
    run: Run, name: str, ending: signal.Signals
) -> None:
    words = ["up", "zookeeper", "--json", "--name", name]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.servers", *words], cwd=ROOT, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        (node,) = json.loads(owner.stdout.readline())["nodes"]
        assert is_there(node["pid"])
        printed(run("pause", "1", "--json"))  # a stopped process ends as well
        owner.send_signal(ending)
    assert owner.returncode == (-ending if ending == signal.SIGKILL else 0)
    eventually("the server ends", lambda: not is_there(node["pid"]))
    assert name not in registry.names()


@pytest.mark.long(reason="servers that start and end")
def test_a_home_that_is_given_is_gone_on_with(run: Run, tmp_path: Path) -> None:
    subnet = claim_subnet()
    subnet.release()
    words = ("up", "zookeeper", "--detach", "--json", "--subnet", subnet.prefix)
    for number in (1, 2):
        up = printed(run(*words, "--home", str(tmp_path)))
        assert up["contact_points"] == [f"{subnet.prefix}.1"]
        client = pytest.importorskip("kazoo.client").KazooClient(hosts=f"{subnet.prefix}.1:2181")
        client.start(SECONDS_MAX)
        client.create("/kept-", b"", sequence=True)
        assert len([each for each in client.get_children("/") if "kept" in each]) == number
        client.stop()
        client.close()
        printed(run("down", "--json"))
