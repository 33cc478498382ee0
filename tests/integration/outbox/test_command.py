"""`cassq outbox`: the tables are made, and messages forwarded, once or until a signal."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cassq
from cassq.cli.main import main
from tests.integration.outbox.databases import left
from tests.integration.stage import numbers

pytestmark = pytest.mark.embedded_only(reason="the command opens a directory")
ROOT = Path(__file__).resolve().parents[3]


def run(url: str, *words: str, code: int = 0) -> Result:
    done = CliRunner(env={"CASSQ_URL": url}).invoke(main, ["outbox", *words])
    assert done.exit_code == code, done.output
    return done


def document(done: Result) -> Any:
    return json.loads(done.stdout)


def test_its_tables_are_made_once(url: str, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    assert "there is no database" in run(url, "create", "--in", str(path), code=2).stderr
    sqlite3.connect(path).close()
    made = document(run(url, "create", "--in", str(path), "--json"))
    assert run(url, "create", "--in", f"sqlite:///{path}").stdout == f"outbox {made['outbox']}\n"


def test_once_forwards_what_there_is(
    url: str, queue: cassq.Queue, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    outbox.push_many("jobs", numbers(3))
    connection.commit()
    (waiting,) = document(run(url, "status", "--from", str(file), "--json"))
    assert (waiting["queue"], waiting["waiting"]) == ("jobs", 3)
    assert run(url, "relay", "--from", str(file), "--once").stdout == "forwarded 3 messages\n"
    assert run(url, "status", "--from", str(file)).stdout.split() == ["QUEUE", "WAITING", "OLDEST"]
    assert queue.stats().pushed == 3
    outbox.push("none", b"1")
    connection.commit()
    done = document(run(url, "relay", "--from", str(file), "--once", "--json", code=1))
    assert done == {
        "forwarded": 0,
        "found": 0,
        "stuck": {"none": "there is no queue 'none'"},
        "leads": True,
    }


def test_it_forwards_until_it_is_asked_to_end(
    url: str, queue: cassq.Queue, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    words = [sys.executable, "-m", "cassq", "outbox", "relay", "--url", url, "--from", str(file)]
    with subprocess.Popen([*words, "--every", "10ms"], cwd=ROOT) as process:
        with closing(queue.popper()) as popper:
            for number in numbers(2):
                outbox.push("jobs", number)
                connection.commit()
                (message,) = popper.pop(1, wait=60)
                message.ack()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert left(file) == (0, 0)
