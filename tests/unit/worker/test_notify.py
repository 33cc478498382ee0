"""Notices to systemd: what is sent where, and that nothing is if nobody asked."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from cassq.worker.notify import Notices


def test_notices_reach_the_socket_of_the_service_manager(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notices = Notices({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"})
        notices.ready()
        notices.alive()
        notices.stopping()
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
        assert notices.every == 1.5


def test_a_socket_may_have_an_abstract_name() -> None:
    name = f"cassq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        Notices({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_watchdog_of_its_own_it_need_not_show_that_it_lives(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    notices = Notices(environ)
    assert notices.every is None
    notices.alive()
    notices.ready()
    assert not caplog.records


def test_a_socket_that_is_gone_is_logged_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    Notices({"NOTIFY_SOCKET": str(tmp_path / "missing")}).ready()
    assert "cannot be notified" in caplog.text
