"""The supervisor of a worker's processes: starts them, replaces them, and ends them.

    starting  ->  ready  ->  leaving  ->  gone       it said why: another is started at once
        |           |
        |           +-> gone                         it crashed: another is started, after a pause
        +-> gone                                     if the one before crashed too

It runs in one thread, which waits for signals, reports and time in one place. If a process crashes,
`freed` frees its claims at once, so its messages need not wait for the claim timeout. Signals that
the plan names are passed on to the processes that are ready.

SIGTERM and SIGINT end all processes as a worker ends; those that take longer than the grace are
killed. A second SIGINT kills them at once, and ends the supervisor. If the supervisor is killed,
the processes end too: each sees that its standard input is closed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from cassq.base.clock import Clock, SystemClock
from cassq.worker.child import Child, how
from cassq.worker.journal import added, nothing
from cassq.worker.loop import TIME_LIMIT
from cassq.worker.notify import Notices
from cassq.worker.sources import WatchedFiles
from cassq.worker.wakeup import Wakeup, handled, interrupt_again

logger: logging.Logger = logging.getLogger("cassq.worker")

LOOK_SECONDS = 1.0
LOOK_AT_SOURCES_SECONDS = 0.25
# How long a process may take to end after the grace, and to report after the time limit.
MARGIN_SECONDS = 5.0
# A crash of a process that lived at least this long counts as the first in a row.
SETTLED_SECONDS = 10.0
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
# A worker is healthy as long as processes have been missing for no longer than this.
LACKING_SECONDS_MAX = 30.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Plan(NamedTuple):
    """What to run. command: starts a process. orders: for each process, what it reads from its
    standard input; "queue" names the queue that it takes from. crash_costs: what a crash means, for
    the log. passed_on: signals to pass on to all processes. The rest: options of `cassq worker`."""

    command: Sequence[str]
    orders: Sequence[Mapping[str, Any]]
    grace: float
    time_limit: float | None = None
    reload: bool = False
    crash_costs: str = "its messages are delivered again, which counts as an attempt"
    passed_on: Sequence[signal.Signals] = ()


def pause_after(crashes: int) -> float:
    """Seconds until a process is replaced. crashes: how many there were in a row."""
    if crashes <= 1:
        return 0.0
    return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * 2.0 ** min(crashes - 2, 16))


class _Slot:
    """The place of one process. due_ms: when to start one, if the slot is empty; None: when a
    source changes. crashes: how many processes crashed in a row."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self.orders = orders
        self.child: Child | None = None
        self.due_ms: int | None = 0
        self.crashes = 0


class Supervisor:
    """Runs processes by a plan, until it is stopped.

    freed: called with the orders of a process that crashed, and the name of its popper. failed: the
    "failed" report (see `reports`) of a process at the first start, which ended everything.
    """

    def __init__(
        self,
        plan: Plan,
        freed: Callable[[Mapping[str, Any], str], object],
        notices: Notices,
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._freed = freed
        self._notices = notices
        self._clock = clock or SystemClock()
        self._slots = [_Slot(orders) for orders in plan.orders]
        queues = dict.fromkeys(_queue(orders) for orders in plan.orders)
        self._past: dict[str, Mapping[str, Any]] = {queue: nothing() for queue in queues}
        # How many processes were replaced, by queue and by why.
        self._replaced: dict[str, dict[str, int]] = {queue: {} for queue in queues}
        self._leaving: list[Child] = []
        self._watched = WatchedFiles()
        self._interrupted = False
        self._stopping = False
        self._said_stopping = False
        self._looked_ms = self._alive_ms = self._silence_ms = 0
        self._was_ready = False
        self._well_ms = self._clock.boot_ms()
        self._exit_code = 0
        self.failed: Mapping[str, Any] | None = None
        self._facts: Mapping[str, Any] = {}
        self._publish()

    def run(self) -> int:
        """Run until it is stopped and all processes have ended. Returns the exit code: 0, or 1 if
        tasks were left behind or processes had to be killed."""
        signals = (*SIGNALS, *self._plan.passed_on)
        with Wakeup() as wakeup, handled(wakeup, self._take_signal, signals):
            try:
                while True:
                    self._start_processes()
                    children = self._children()
                    if self._stopping:
                        self._end(children)
                        if not children:
                            break
                    fds = [child.fd for child in children if child.fd is not None]
                    wakeup.wait(self._until_next(), fds)
                    self._look_after(children)
                    self._publish()
            finally:
                for child in self._children():  # only if an error ended the loop
                    child.kill("its supervisor failed")
        self._publish()
        return self._exit_code

    def facts(self) -> Mapping[str, Any]:
        """What /health says; safe in any thread. healthy: all processes have taken messages, and
        none has been missing for longer than half a minute."""
        facts = dict(self._facts)
        lacking_ms = self._clock.boot_ms() - facts.pop("well_ms")
        facts["healthy"] = facts["was_ready"] and lacking_ms <= LACKING_SECONDS_MAX * 1000
        return facts

    # --- processes ------------------------------------------------------------------------------

    def _children(self) -> list[Child]:
        return [slot.child for slot in self._slots if slot.child is not None] + self._leaving

    def _start_processes(self) -> None:
        now_ms = self._clock.boot_ms()
        for slot in self._slots:
            due = slot.due_ms is not None and slot.due_ms <= now_ms
            if slot.child is None and due and not self._stopping:
                try:
                    slot.child = Child(self._plan.command, slot.orders, now_ms)
                except OSError as exc:
                    slot.crashes += 1
                    pause = max(PAUSE_SECONDS, pause_after(slot.crashes))
                    slot.due_ms = now_ms + round(pause * 1000)
                    logger.error("no process can be started: %s; trying again in %g s", exc, pause)

    def _look_after(self, children: Sequence[Child]) -> None:
        now_ms = self._clock.boot_ms()
        for child in children:
            code = child.exit_code()  # first: so all that it reported before its end is read
            child.read_reports(now_ms)
            self._take_reports(child)
            if code is not None:
                child.close()
                self._on_exit(child, code, now_ms)
        self._look_for_silence(now_ms)
        self._look_at_sources(now_ms)
        if all(slot.child is not None and slot.child.is_ready for slot in self._slots):
            self._well_ms = now_ms
            if not self._was_ready:
                self._was_ready = True
                self._notices.ready()
        every = self._notices.every
        if every is not None and now_ms - self._alive_ms >= every * 1000:
            self._alive_ms = now_ms
            self._notices.alive()

    def _take_reports(self, child: Child) -> None:
        if self._plan.reload:
            self._watched.add(child.files)
        slot = self._slot_of(child)
        if child.leaving and slot is not None:
            logger.info("process %d leaves: %s", child.pid, child.leaving.replace("_", " "))
            self._count_replaced(child, child.leaving)
            slot.child, slot.due_ms, slot.crashes = None, 0, 0
            self._leaving.append(child)

    def _slot_of(self, child: Child) -> _Slot | None:
        return next((slot for slot in self._slots if slot.child is child), None)

    def _count_replaced(self, child: Child, why: str) -> None:
        replaced = self._replaced[_queue(child.orders)]
        replaced[why] = replaced.get(why, 0) + 1

    def _on_exit(self, child: Child, code: int, now_ms: int) -> None:
        """A process has ended."""
        slot = self._slot_of(child)
        if slot is None:
            self._leaving.remove(child)
        else:
            slot.child = None
        queue = _queue(child.orders)
        self._past[queue] = added(self._past[queue], child.facts)
        died = bool(child.popper) and not child.ended
        if died:
            self._freed(child.orders, child.popper)
        if self._stopping:
            left_behind = code != 0 and child.ended and child.leaving != TIME_LIMIT
            if died or left_behind:
                logger.warning("process %d %s before its work was done", child.pid, how(code))
                self._exit_code = self._exit_code or 1
            return
        if slot is None:
            return
        if child.terminated_ms is not None:  # for a change of its sources
            slot.due_ms, slot.crashes = 0, 0
        elif child.failed is not None and self._plan.reload:
            _log_failure(child.failed)
            logger.warning("waiting for a change of the sources")
            slot.due_ms = None
        elif child.failed is not None and not self._was_ready:
            self.failed = child.failed
            self.stop()
        else:
            self._replace(slot, child, code, now_ms)

    def _replace(self, slot: _Slot, child: Child, code: int, now_ms: int) -> None:
        """Plan the start of a process instead of one that crashed."""
        settled = now_ms - child.began_ms >= SETTLED_SECONDS * 1000
        slot.crashes = 1 if settled else slot.crashes + 1
        pause = pause_after(slot.crashes)
        slot.due_ms = now_ms + round(pause * 1000)
        self._count_replaced(child, "crash")
        if child.failed is not None:
            _log_failure(child.failed)
        logger.warning(
            "process %d %s%s: %s; another starts %s",
            child.pid,
            how(code),
            f" ({child.killed})" if child.killed else "",
            self._plan.crash_costs,
            f"in {pause:g} s" if pause else "now",
        )

    def _look_for_silence(self, now_ms: int) -> None:
        """Kill processes that do not report, because a task past its time limit lets no other
        thread run, and processes that do not end in time."""
        limit = self._plan.time_limit
        slept = now_ms - self._silence_ms > MARGIN_SECONDS * 500
        self._silence_ms = now_ms
        if slept:  # this process was paused, perhaps with the whole machine: it heard no child
            for child in self._children():
                child.reported_ms = now_ms
        if limit is not None:
            for child in self._children():
                silent_ms = now_ms - child.reported_ms
                if child.popper and silent_ms > (limit + MARGIN_SECONDS) * 1000:
                    child.kill("time limit: its threads do not run")
        allowed_ms = (self._plan.grace + MARGIN_SECONDS) * 1000
        for child in self._children():
            if child.terminated_ms is not None and now_ms - child.terminated_ms > allowed_ms:
                child.kill("it did not end within the grace")

    # --- sources --------------------------------------------------------------------------------

    def _look_at_sources(self, now_ms: int) -> None:
        due = now_ms - self._looked_ms >= LOOK_AT_SOURCES_SECONDS * 1000
        if not (self._plan.reload and due) or self._stopping:
            return
        self._looked_ms = now_ms
        changed = self._watched.changed()
        if not changed:
            return
        logger.info("%s changed: restarting", ", ".join(changed))
        for slot in self._slots:
            if slot.child is not None:
                slot.child.terminate(now_ms)
            else:
                slot.due_ms, slot.crashes = 0, 0

    # --- stopping -------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all processes as a worker ends, then return from `run`. Safe in a signal handler."""
        self._stopping = True

    def _end(self, children: Sequence[Child]) -> None:
        if not self._said_stopping:
            self._said_stopping = True
            self._notices.stopping()
        for child in children:
            child.terminate(self._clock.boot_ms())

    def _take_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            return  # it has woken the loop, which looks at all processes
        if signum in self._plan.passed_on:
            for child in self._children():
                if child.is_ready:  # before, it would end the process
                    os.kill(child.pid, signum)
            return
        if signum == signal.SIGINT:
            if self._interrupted:
                for child in self._children():
                    child.kill("interrupted")
                interrupt_again()
            self._interrupted = True
        self.stop()

    def _until_next(self) -> float:
        seconds = LOOK_AT_SOURCES_SECONDS if self._plan.reload else LOOK_SECONDS
        if self._notices.every is not None:
            seconds = min(seconds, self._notices.every)
        now_ms = self._clock.boot_ms()
        waiting = [slot.due_ms for slot in self._slots if slot.child is None]
        due = [due_ms for due_ms in waiting if due_ms is not None and not self._stopping]
        return min([seconds, *((due_ms - now_ms) / 1000 for due_ms in due)])

    # --- what it does ---------------------------------------------------------------------------

    def _publish(self) -> None:
        """Update `facts`, for other threads."""
        self._facts = {
            **self._facts_of(self._past),
            "pids": [child.pid for child in self._children()],
            "stopping": self._stopping,
            "was_ready": self._was_ready,
            "well_ms": self._well_ms,
            "queues": {queue: self._facts_of([queue]) for queue in self._past},
        }

    def _facts_of(self, queues: Collection[str]) -> dict[str, Any]:
        """The facts of the processes that take from some queues."""
        children = [child for child in self._children() if _queue(child.orders) in queues]
        totals: Mapping[str, Any] = nothing()
        for each in (*map(self._past.__getitem__, queues), *(child.facts for child in children)):
            totals = added(totals, each)
        return {
            "processes": sum(_queue(slot.orders) in queues for slot in self._slots),
            "ready": sum(child.is_ready for child in children),
            "running": sum(child.facts["running"] for child in children),
            "stuck": sum(child.facts["stuck"] for child in children),
            "replaced": dict(sum((Counter(self._replaced[queue]) for queue in queues), Counter())),
            **totals,
        }


def _queue(orders: Mapping[str, Any]) -> str:
    found: str = orders["queue"]
    return found


def _log_failure(failed: Mapping[str, Any]) -> None:
    logger.error("%s%s", failed["traceback"], failed["message"])
