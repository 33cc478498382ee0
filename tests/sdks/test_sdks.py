"""Each SDK goes through the scenario against a gateway that runs as a process."""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cassq

HERE = Path(__file__).parent
BUILD_SECONDS = 1500  # Rust, on a busy machine
JAVA_PROGRAM = (("java", "mvn"), ("mvn --quiet --batch-mode compile exec:java",))
# The tools that a language needs, and how its program is fetched, built and run.
PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "python": ((), (f"{sys.executable} scenario.py",)),
    "javascript": (
        ("node", "npm"),
        ("npm install --no-audit --no-fund --loglevel=error", "node scenario.mjs"),
    ),
    "go": (("go",), ("go mod tidy", "go run .")),
    "rust": (("cargo",), ("cargo run --quiet",)),
    "java": JAVA_PROGRAM,
}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """The address of a gateway over a directory."""
    command = [sys.executable, "-m", "cassq", "gateway", "--listen", "127.0.0.1:0"]
    command += ["--url", f"file://{tmp_path / 'queues'}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            shown = re.search(r"AWS_ENDPOINT_URL_SQS=(\S+)", process.stdout.readline())
            assert shown is not None
            yield shown[1]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.long(reason="SDKs come from their registries, and Rust is compiled for minutes")
@pytest.mark.parametrize("language", PROGRAMS)
def test_an_sdk_finds_everything_as_sqs_has_it(
    language: str, gateway: str, tmp_path: Path, needs: Callable[[str], str]
) -> None:
    run(language, *PROGRAMS[language], gateway, tmp_path, needs)
    with cassq.connect(f"file://{tmp_path / 'queues'}") as client:
        dead = client.queue(f"sdk-{language}-dead")
        assert dead.stats().groups["default"].pending == 1
        assert dead.audit().findings == []


# Boto3 as it is installed speaks JSON; this one is the last that spoke Query.
EARLIER = (
    f"{sys.executable} -m pip install --quiet --target earlier boto3==1.28.80 botocore==1.31.80"
)


@pytest.mark.long(reason="an earlier boto3 comes from its registry")
@pytest.mark.parametrize(("encoding", "before"), [("json", ()), ("query", (EARLIER,))])
def test_all_actions_in_both_encodings(
    encoding: str,
    before: tuple[str, ...],
    gateway: str,
    tmp_path: Path,
    needs: Callable[[str], str],
) -> None:
    commands = (*before, f"{sys.executable} actions.py {encoding}")
    run("python", (), commands, gateway, tmp_path, needs, what=f"actions in {encoding}")


@pytest.mark.long(reason="Spring comes from Maven Central")
def test_the_listener_of_spring_cloud_aws_runs_unchanged(
    gateway: str, tmp_path: Path, needs: Callable[[str], str]
) -> None:
    run("spring", *JAVA_PROGRAM, gateway, tmp_path, needs)
    with cassq.connect(f"file://{tmp_path / 'queues'}") as client:
        group = client.queue("sdk-spring").stats().groups["default"]
        assert (group.waiting, group.pending) == (0, 0)


def run(
    language: str,
    tools: tuple[str, ...],
    commands: tuple[str, ...],
    gateway: str,
    tmp_path: Path,
    needs: Callable[[str], str],
    what: str = "",
) -> None:
    """Run the program of a language, which must end well. what: it says, if that is not the
    language."""
    faulthandler.cancel_dump_traceback_later()  # each command has a limit of its own
    paths = [str(Path(needs(tool)).parent) for tool in tools]
    program = shutil.copytree(HERE / language, tmp_path / language)
    environ = {
        **os.environ,
        "PATH": os.pathsep.join([*paths, os.environ["PATH"]]),
        "AWS_ENDPOINT_URL_SQS": gateway,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }
    for command in commands:
        done = subprocess.run(
            command.split(),
            cwd=program,
            env=environ,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    assert f"{what or language}: all as expected" in done.stdout
