"""Measuring in fresh processes: nothing a peer leaves in memory meets the next one."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any

from bench.peers.peer import Peer, Place
from bench.peers.roster import peer_class

Figures = dict[str, float]

# Processes are spawned: a child of fork would inherit the client libraries' threads half alive.
CONTEXT = multiprocessing.get_context("spawn")
GATE_SECONDS_MAX = 120.0


class MeasurementError(Exception):
    """A measuring process failed; the message holds its traceback."""


@dataclass(frozen=True)
class Seat:
    """A peer at a place, as a child process needs it to build the peer."""

    peer_name: str
    place: Place

    def peer_class(self) -> type[Peer]:
        return peer_class(self.peer_name)

    def peer(self) -> Peer:
        return self.peer_class()(self.place)

    def part(self, label: str) -> Seat:
        """A place of its own within this one, for a further queue."""
        directory = self.place.directory / label
        directory.mkdir()
        queue = f"{self.place.queue}-{label}"
        return replace(self, place=replace(self.place, directory=directory, queue=queue))


@dataclass(frozen=True)
class Job:
    """One child: its function is called as `function(gate, *arguments)`."""

    function: Callable[..., Figures]
    arguments: tuple[Any, ...]
    # The only core it may use; none means all.
    core: int | None = None


class Gate:
    """Where the children of one measurement wait for one another."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier

    def meet(self) -> None:
        """Return once all children are here."""
        self._barrier.wait(GATE_SECONDS_MAX)

    def leave(self) -> None:
        """Let nobody wait for a child that failed."""
        self._barrier.abort()


def _main(job: Job, barrier: Barrier, answers: Connection) -> None:
    gate = Gate(barrier)
    try:
        if job.core is not None:
            os.sched_setaffinity(0, {job.core})
        answers.send((True, job.function(gate, *job.arguments)))
    except BaseException:
        gate.leave()
        answers.send((False, traceback.format_exc()))


def run(jobs: Sequence[Job], seconds_max: float) -> list[Figures]:
    """Run the jobs at the same time, a process each, and return what each measured."""
    barrier = CONTEXT.Barrier(len(jobs))
    pipes = [CONTEXT.Pipe(duplex=False) for _ in jobs]
    children = [
        CONTEXT.Process(target=_main, args=(job, barrier, answers), daemon=True)
        for job, (_, answers) in zip(jobs, pipes, strict=True)
    ]
    try:
        for child, (_, answers) in zip(children, pipes, strict=True):
            child.start()
            # Only the child may hold the writing end: then its death is seen as the end of file.
            answers.close()
        figures = _collect([reading for reading, _ in pipes], seconds_max)
    except BaseException:
        for child in children:
            if child.pid is not None:
                child.kill()
        raise
    finally:
        for child in children:
            if child.pid is not None:
                child.join()
    return figures


def _collect(answers: Sequence[Connection], seconds_max: float) -> list[Figures]:
    deadline = time.monotonic() + seconds_max
    figures: dict[int, Figures] = {}
    broken = ""
    while len(figures) < len(answers):
        open_ends = [end for index, end in enumerate(answers) if index not in figures]
        ready = wait(open_ends, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise MeasurementError(f"not finished within {seconds_max:.0f} s")
        for end in ready:
            assert isinstance(end, Connection)
            try:
                succeeded, answer = end.recv()
            except EOFError:
                succeeded, answer = False, "a measuring process died"
            if not succeeded and not _is_echo(answer):
                raise MeasurementError(answer)
            broken = broken or ("" if succeeded else answer)
            figures[answers.index(end)] = answer if succeeded else {}
    if broken:
        raise MeasurementError(broken)
    return [figures[index] for index in range(len(answers))]


def _is_echo(failure: str) -> bool:
    """Whether a child only saw that another one had failed, whose own words are still to come."""
    return BrokenBarrierError.__name__ in failure
