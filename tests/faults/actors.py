"""Actors: processes of their own that play a part on the queues and tell the test what they did.

An actor is started by a fork server, so it costs milliseconds and inherits nothing of the test's
clients. What it tells arrives through a pipe and survives its death: a part tells *before* what
it is about to risk and *after* what it was acknowledged.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from cassq.base.clock import Stopwatch
from tests.integration.deadlines import DEADLINE_SECONDS

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.faults.parts"])

Report = tuple[Any, ...]


class Actor:
    """One process that plays a part of `tests.faults.parts`, or `module:part` of another; made by
    the fixture `act`."""

    def __init__(self, part: str, *args: Any) -> None:
        self._inbox, outbox = _context.Pipe(duplex=False)
        hears, self._voice = _context.Pipe(duplex=False)
        self.part = part
        self.heard: list[Report] = []
        self._stopped = False
        self._process = _context.Process(
            target=_play, args=(part, outbox, hears, args), daemon=True
        )
        self._process.start()
        outbox.close()
        hears.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    # --- talking --------------------------------------------------------------------------------

    def say(self, word: Any) -> None:
        """Send a word to the actor."""
        self._voice.send(word)

    def listen(self, seconds: float = 0.0) -> list[Report]:
        """What it told since the last look; waits up to `seconds` for something."""
        fresh: list[Report] = []
        with contextlib.suppress(EOFError, OSError):  # when it is gone, what it told still counts
            while self._inbox.poll(0.0 if fresh else seconds):
                fresh.append(self._inbox.recv())
        self.heard += fresh
        for report in fresh:
            if report[0] == "failed":
                self.failed(report[1])
        return fresh

    def failed(self, trace: str) -> None:
        """It met an error that its part does not expect."""
        pytest.fail(f"the {self.part} failed:\n{trace}")

    def reports(self, word: str) -> list[Report]:
        """Everything it told so far that begins with `word`."""
        self.listen()
        return [report for report in self.heard if report[0] == word]

    def expect(self, word: str, *, seconds: float = DEADLINE_SECONDS) -> Report:
        """Wait until it tells something that begins with `word`, if it has not yet; the last."""
        watch = Stopwatch()
        while not (found := self.reports(word)):
            self.listen(0.2)
            if watch.seconds() > seconds or not (self.alive or self._inbox.poll(0)):
                if found := self.reports(word):
                    break
                pytest.fail(f"the {self.part} did not tell {word!r}, but {self.heard[-3:]!r}")
        return found[-1]

    # --- harm -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """kill -9; returns when it is dead."""
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(DEADLINE_SECONDS)
        assert not self.alive
        self.listen()

    def stop(self) -> None:
        """Stop it in its tracks, wherever that is; returns when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        self._stopped = True
        watch = Stopwatch()
        while _state(self.pid) not in {"T", "t", "Z", ""}:
            assert watch.seconds() < DEADLINE_SECONDS

    def go_on(self) -> None:
        """Let a stopped actor go on."""
        os.kill(self.pid, signal.SIGCONT)
        self._stopped = False

    def join(self, *, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for its end; its exit code."""
        watch = Stopwatch()
        while self.alive and watch.seconds() < seconds:
            self.listen(0.05)
        self._process.join(0.1)
        self.listen()
        if self._process.exitcode is None:
            pytest.fail(f"the {self.part} did not end within {seconds} seconds")
        return self._process.exitcode

    def end(self) -> None:
        """Whatever it does: end it."""
        if self.alive:
            if self._stopped:
                self.go_on()
            self.kill()
        self._inbox.close()
        self._voice.close()


Act = Callable[..., Actor]


@pytest.fixture
def act() -> Iterator[Act]:
    """Starts actors; all are ended with the test, however it ends."""
    actors: list[Actor] = []

    def start(part: str, *args: Any) -> Actor:
        actors.append(Actor(part, *args))
        return actors[-1]

    yield start
    for actor in actors:
        actor.end()


def listen_to(actors: Iterable[Actor], seconds: float) -> list[Report]:
    """What any of these actors told; waits up to `seconds` for something."""
    by_inbox = {actor._inbox: actor for actor in actors if not actor._stopped}
    reports: list[Report] = []
    for inbox in wait(list(by_inbox), seconds):
        assert isinstance(inbox, Connection)
        reports += by_inbox[inbox].listen()
    return reports


def _state(pid: int) -> str:
    """The kernel's letter for what a process does; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _play(part: str, outbox: Connection, hears: Connection, args: tuple[Any, ...]) -> None:
    from tests.faults.parts import Stage

    module, _, name = part.rpartition(":")
    parts = importlib.import_module(module or "tests.faults.parts")

    def tell(*what: Any) -> None:
        outbox.send(what)

    try:
        getattr(parts, name)(Stage(tell, hears), *args)
    except BaseException:
        tell("failed", traceback.format_exc())
        raise
