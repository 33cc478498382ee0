"""Logs of commands that run for long: a line each, which nobody else can begin."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading

from cassq.cli.ui.daemon_log import LINE_MAX, WAITING_MAX, DaemonFormatter, DroppingHandler

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"
FORGED = "a client\n2030-01-01T00:00:00.000+00:00 error: forged\x1b[2J"


def record(text: str, *values: object, failed: bool = False) -> logging.LogRecord:
    exc_info = None
    if failed:
        try:
            raise ValueError(FORGED)
        except ValueError:
            exc_info = sys.exc_info()
    return logging.LogRecord("cassq", logging.WARNING, "f.py", 1, text, values, exc_info)


def test_a_line_has_its_time_and_level_and_stays_one_line() -> None:
    text = DaemonFormatter(as_json=False)
    assert re.fullmatch(
        TIME + " warning: client x is refused", text.format(record("client %s is refused", "x"))
    )
    forged = text.format(record("%s is refused", FORGED))
    assert len(forged.splitlines()) == 1
    assert "\x1b" not in forged
    assert r"a client\n2030" in forged


def test_a_traceback_is_indented_so_that_no_part_of_it_looks_like_another_line() -> None:
    lines = DaemonFormatter(as_json=False).format(record("it failed", failed=True)).splitlines()
    assert re.fullmatch(TIME + " warning: it failed", lines[0])
    assert len(lines) > 2
    assert all(line.startswith("    ") for line in lines[1:])
    assert "forged" in lines[-1]


def test_json_has_the_same_in_one_object_on_one_line() -> None:
    as_json = DaemonFormatter(as_json=True)
    line = as_json.format(record("%s is refused", FORGED))
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert re.fullmatch(TIME, found.pop("at"))
    assert found == {"level": "warning", "message": f"{FORGED} is refused"}
    found = json.loads(as_json.format(record("it failed", failed=True)))
    assert found["traceback"].startswith("Traceback")


def test_what_others_sent_does_not_become_a_long_line() -> None:
    for as_json in (False, True):
        line = DaemonFormatter(as_json=as_json).format(record("%s", "x" * 66_000_000))
        assert len(line) < LINE_MAX + 200
        assert "66000000 characters" in line


def test_nobody_waits_for_a_reader_of_the_log_and_what_is_dropped_is_counted() -> None:
    begins, reads, written = threading.Event(), threading.Event(), list[str]()

    def write(line: str) -> None:
        begins.set()
        assert reads.wait(60)
        written.append(line)

    handler = DroppingHandler(write, logging.WARNING)
    handler.handle(record("the first"))
    assert begins.wait(60), "it is on its way, and waits no longer"
    for number in range(WAITING_MAX + 50):
        handler.handle(record("line %d", number))
    assert not handler.drain(0.0)
    assert written == []
    reads.set()
    assert handler.drain(60.0)
    assert len(written) == 1 + WAITING_MAX
    handler.handle(record("the next"))
    assert handler.drain(60.0)
    assert written[-2] == "50 lines of the log dropped: standard error was not read\n"
    assert written[-1] == "the next\n"
