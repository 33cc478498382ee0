"""How many connections a sidecar admits, and what it logs about strangers."""

from __future__ import annotations

import logging
import resource

import msgspec
import pytest

from cassq.base import rare_log
from cassq.base.rare_log import LINES_MAX, SHOWN_MAX, RareLog, short
from cassq.errors import BackendError
from cassq.extents.protocol.messages import OPS, Append, Code, Ends
from cassq.extents.protocol.wire import (
    MESSAGE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    ProtocolError,
    read_request,
)
from cassq.sidecar.engine.rocksdb.trouble import Trouble
from cassq.sidecar.serving import FILES_RESERVED, connections_allowed
from cassq.sidecar.sessions.dispatcher import refusal_of
from cassq.sidecar.sessions.server import CONNECTIONS_MAX


def test_connections_leave_open_files_to_the_engine() -> None:
    assert connections_allowed(3000) == 3000 - FILES_RESERVED
    assert connections_allowed(1 << 20) == CONNECTIONS_MAX
    assert connections_allowed(resource.RLIM_INFINITY) == CONNECTIONS_MAX
    assert connections_allowed(1024) == 256
    assert connections_allowed(256) == 64


def test_a_lack_of_open_files_is_not_a_broken_disk() -> None:
    trouble = Trouble()
    text = "IO error: While open a file for appending: /x/7.log: Too many open files"
    error = trouble.met(Exception(text), "appending to p")
    assert "Too many open files" in error.message
    assert "Too many open files" in trouble.starved
    assert not trouble.failure
    trouble.met(Exception("IO error: writer has previous error"), "appending to p")
    assert not trouble.failure
    trouble.met(Exception("IO error: Input/output error"), "syncing the log")
    assert trouble.failure


def test_what_a_stranger_says_is_one_short_line() -> None:
    assert short("fine") == "fine"
    assert short("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
    long = short("x" * 66_000_000)
    assert len(long) < SHOWN_MAX + 40
    assert "66000000 characters" in long


def test_many_like_lines_become_a_few_and_a_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    log = RareLog()
    for number in range(1000):
        log.say("refused", "client %s is refused", number)
    log.say("stalled", "client %s stopped", "a\nb")
    assert len(caplog.messages) == LINES_MAX + 1
    assert caplog.messages[-1] == "client a\\nb stopped"
    monkeypatch.setattr(rare_log, "EACH_SECONDS", 0.0)
    log.flush()
    assert caplog.messages[-1] == f"refused: {1000 - LINES_MAX} more like these"
    log.say("refused", "client %s is refused", 1)
    assert caplog.messages[-1] == "client 1 is refused"


def packed(*array: object) -> bytes:
    return msgspec.msgpack.encode(list(array))


def test_a_large_message_that_is_not_a_frame_is_not_unpacked() -> None:
    many = packed(OPS[Ends], 7, [0] * REQUEST_BYTES_MAX, 0)
    with pytest.raises(ProtocolError, match="not an Append"):
        read_request(many)
    with pytest.raises(ProtocolError, match="not an Append"):
        read_request(packed(OPS[Append], 7, "p", 1, 0, 1, 0, [0] * REQUEST_BYTES_MAX))
    assert MESSAGE_BYTES_MAX > 2 * REQUEST_BYTES_MAX
    frame = bytes(2 * REQUEST_BYTES_MAX)
    number, request = read_request(packed(OPS[Append], 7, "p", 1, 0, 1, 0, frame))
    assert (number, request) == (7, Append("p", 1, 0, 1, 0, frame))


@pytest.mark.parametrize("error", [ValueError, BackendError])
def test_a_failed_request_is_logged_in_short(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise error("of a client\n" * 5_000_000)
    except Exception as exc:
        refusal = refusal_of(exc)
    assert refusal.code is Code.FAILED
    (record,) = caplog.records
    text = logging.Formatter().format(record)  # Spark formats what is captured in its own way
    assert len(text) < 2000
    assert "of a client\\n" in text
    assert "of a client\nof" not in text
    assert ("Traceback" in text) is (error is ValueError), "where it failed is shown"
