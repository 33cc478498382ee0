"""Telling targets: commands and webhooks that work, fail, hang, and hold up nobody."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cassq.alerts.delivery import deliver
from cassq.alerts.incidents import Notice, NoticeOutcome
from cassq.alerts.targets import AlertTarget
from cassq.base.clock import Stopwatch
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

LIMIT = 0.5
# Within which a command has begun, and a thread has its turn, on a busy machine.
SLOW_LIMIT = 3.0
# What hangs does so for longer than any test may take.
FOR_EVER = 1000
IN_TIME = DEADLINE_SECONDS


def notice(target: str, number: int = 0, *, key: str = "", tries: int = 0) -> Notice:
    event = {"id": str(number), "data": {"message": "käput"}}
    return Notice(key or f"k{number}", 1, target, 1, tries, event)


def outcomes_of(target: AlertTarget, *notices: Notice) -> list[NoticeOutcome]:
    """What became of notices (of one, if none is given), in their order."""
    wanted = list(notices) or [notice(target.name)]
    outcomes = dict(deliver_all(wanted, target))
    return [outcomes[n.event["id"]] for n in wanted]


def deliver_all(notices: list[Notice], *targets: AlertTarget) -> list[tuple[str, NoticeOutcome]]:
    found = deliver(notices, {target.name: target for target in targets})
    return [(n.event["id"], outcome) for n, outcome in found]


# --- commands ---------------------------------------------------------------------------------


def shell(script: str, name: str = "sh", timeout: float = LIMIT) -> AlertTarget:
    return AlertTarget(name, command=("sh", "-c", script), timeout=timeout)


def test_a_command_gets_the_event_as_json_on_its_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "event.json"
    assert outcomes_of(shell(f"cat > {out}", timeout=30)) == [NoticeOutcome(sent=True)]
    assert json.loads(out.read_bytes()) == {"id": "0", "data": {"message": "käput"}}


def test_a_command_that_reads_nothing_is_not_a_failure_however_large_the_event() -> None:
    large = notice("sh")._replace(event={"id": "0", "text": "x" * 1_000_000})
    assert outcomes_of(shell("exit 0", timeout=30), large) == [NoticeOutcome(sent=True)]


def test_a_command_that_fails_is_reported_with_what_it_said() -> None:
    (outcome,) = outcomes_of(shell("echo first >&2; echo no such pager >&2; exit 3", timeout=30))
    assert not outcome.sent
    assert outcome.error == "sh failed with exit code 3: first / no such pager"


def test_a_command_that_was_killed_has_failed() -> None:
    (outcome,) = outcomes_of(shell("kill -9 $$", timeout=30))
    assert outcome.error == "sh failed with signal 9"


@pytest.mark.parametrize("program", ["no-such-program-at-all", "/"])
def test_a_command_that_cannot_be_run_has_failed(program: str) -> None:
    (outcome,) = outcomes_of(AlertTarget("x", command=(program,)))
    assert f"{program} cannot be run" in outcome.error


@pytest.mark.waits(reason="a target that hangs is given some seconds")
def test_a_command_that_hangs_is_killed_with_all_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    watch = Stopwatch()
    script = f"sleep {FOR_EVER} & echo $! $$ > {pids}; wait"
    (outcome,) = outcomes_of(shell(script, timeout=SLOW_LIMIT))
    assert outcome.error.startswith("sh was killed after ")
    assert watch.seconds() < SLOW_LIMIT + IN_TIME
    for pid in map(int, pids.read_text().split()):
        eventually(f"process {pid} is gone", lambda pid=pid: not _runs(pid))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_child_that_outlives_its_command_holds_up_nothing(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    watch = Stopwatch()
    script = f"setsid sleep {FOR_EVER} & echo $! > {pid_file}; echo done"
    assert outcomes_of(shell(script, timeout=30)) == [NoticeOutcome(sent=True)]
    assert watch.seconds() < IN_TIME
    os.kill(int(pid_file.read_text()), 9)


# --- webhooks ---------------------------------------------------------------------------------


class Hook(ThreadingHTTPServer):
    """A webhook: answers with `status`, after `go` if it is to hang; keeps what came."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status = 204
        self.go = threading.Event()
        self.go.set()
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/in?a=b"


class Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, sent, json.loads(body)))
        self.server.go.wait(60)
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Nothing is written."""


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_event_as_a_structured_cloud_event(hook: Hook) -> None:
    target = AlertTarget("hook", webhook=hook.url, headers=(("Authorization", "Bearer x"),))
    assert outcomes_of(target) == [NoticeOutcome(sent=True)]
    ((path, headers, event),) = hook.requests
    assert path == "/in?a=b"
    assert headers["content-type"] == "application/cloudevents+json"
    assert headers["authorization"] == "Bearer x"
    assert event == {"id": "0", "data": {"message": "käput"}}


@pytest.mark.parametrize("status", [302, 404, 500])
def test_any_other_answer_is_a_failure(hook: Hook, status: int) -> None:
    hook.status = status
    (outcome,) = outcomes_of(AlertTarget("hook", webhook=hook.url))
    assert not outcome.sent
    assert outcome.error.endswith(f"answered with status {status}")
    assert len(hook.requests) == 1, "redirections are not followed"


def test_a_webhook_that_is_down_is_a_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        (outcome,) = outcomes_of(AlertTarget("hook", webhook=f"http://127.0.0.1:{port}/"))
    assert "cannot be reached" in outcome.error


def test_a_webhook_that_hangs_is_given_up_in_time(hook: Hook) -> None:
    hook.go.clear()
    watch = Stopwatch()
    (outcome,) = outcomes_of(AlertTarget("hook", webhook=hook.url, timeout=LIMIT))
    assert not outcome.sent
    assert watch.seconds() < IN_TIME


@pytest.mark.waits(reason="a target that hangs is given some seconds")
def test_a_webhook_that_answers_a_byte_at_a_time_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def drip() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 200 ")
                try:
                    while not stop.wait(0.05):
                        peer.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        watch = Stopwatch()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        (outcome,) = outcomes_of(AlertTarget("hook", webhook=url, timeout=SLOW_LIMIT))
        assert outcome.error == f"no answer within {SLOW_LIMIT:g} seconds"
        assert watch.seconds() < SLOW_LIMIT + IN_TIME
        stop.set()
        thread.join()


# --- several ----------------------------------------------------------------------------------


def test_a_target_that_hangs_holds_up_no_other(hook: Hook) -> None:
    hanging = [shell(f"sleep {FOR_EVER}", f"hang{number}") for number in range(5)]
    good = AlertTarget("good", webhook=hook.url)
    watch = Stopwatch()
    names = [target.name for target in (*hanging, good)]
    found = deliver([notice(name) for name in names], {t.name: t for t in (*hanging, good)})
    assert [n.target for n, outcome in found if outcome.sent] == ["good"]
    assert watch.seconds() < IN_TIME


@pytest.mark.waits(reason="a target that hangs is given some seconds")
def test_after_a_hang_nothing_more_is_tried_in_this_pass(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    outcomes = outcomes_of(
        shell(f"echo x >> {runs}; sleep 60", timeout=SLOW_LIMIT),
        *(notice("sh", number) for number in range(20)),
    )
    assert [outcome.tried for outcome in outcomes] == [True] + [False] * 19
    assert runs.read_text() == "x\n"


def test_a_refused_event_holds_no_other_event_back(hook: Hook) -> None:
    hook.status = 400
    target = AlertTarget("hook", webhook=hook.url)
    outcomes = outcomes_of(target, *(notice("hook", number) for number in range(3)))
    assert all(outcome.tried and outcome.error for outcome in outcomes)
    assert len(hook.requests) == 3


def test_what_failed_before_comes_last(hook: Hook) -> None:
    target = AlertTarget("hook", webhook=hook.url)
    outcomes_of(target, notice("hook", 1, tries=3), notice("hook", 2), notice("hook", 3, tries=1))
    assert [event["id"] for _, _, event in hook.requests] == ["2", "3", "1"]


def test_the_end_of_an_incident_is_not_sent_when_its_beginning_was_not(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    target = shell(f"echo x >> {runs}; exit 1", timeout=30)
    outcomes = outcomes_of(target, notice("sh", 1, key="same"), notice("sh", 2, key="same"))
    assert [outcome.tried for outcome in outcomes] == [True, False]
    assert runs.read_text() == "x\n"


@pytest.mark.parametrize(("state", "level"), [("raised", "WARNING"), ("recovered", "INFO")])
def test_the_log_gets_what_is_wrong_as_a_warning_and_its_end_as_information(
    state: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    event = {"id": "0", "data": {"message": "käput", "state": state}}
    with caplog.at_level(logging.INFO, "cassq"):
        assert outcomes_of(AlertTarget("log"), Notice("k", 1, "log", 1, 0, event)) == [
            NoticeOutcome(sent=True)
        ]
    assert [record.levelname for record in caplog.records] == [level]


def test_the_log_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cassq"):
        assert outcomes_of(AlertTarget("log")) == [NoticeOutcome(sent=True)]
    assert "käput" in caplog.text
