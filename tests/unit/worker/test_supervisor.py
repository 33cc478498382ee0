"""The supervisor's rules: pauses after crashes, what it says of itself, reports and words."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cassq.base.clock import ManualClock
from cassq.errors import QueueNotFoundError
from cassq.inspect.metrics import Histogram
from cassq.worker import reports
from cassq.worker.child import how
from cassq.worker.figures import worker_metrics
from cassq.worker.journal import TASK_SECONDS, added, nothing
from cassq.worker.notify import Notices
from cassq.worker.supervisor import (
    LACKING_SECONDS_MAX,
    PAUSE_SECONDS_MAX,
    Plan,
    Supervisor,
    pause_after,
)
from cassq.worker.wakeup import Wakeup, handled


def test_the_first_crash_costs_no_pause_and_the_next_ones_ever_longer_ones() -> None:
    pauses = [pause_after(crashes) for crashes in range(1, 12)]
    assert pauses[0] == 0
    assert pauses[1] > 0
    assert pauses == sorted(pauses)
    assert pauses[-1] == pause_after(10**9) == PAUSE_SECONDS_MAX


def test_it_is_not_healthy_before_its_processes_were_ready() -> None:
    clock = ManualClock()
    supervisor = Supervisor(
        Plan([], [{"queue": "q"}] * 2, 1.0), lambda *_: None, Notices({}), clock
    )
    assert supervisor.facts()["healthy"] is False
    supervisor._was_ready = True
    supervisor._publish()
    assert supervisor.facts()["healthy"] is True
    clock.advance(LACKING_SECONDS_MAX)
    assert supervisor.facts()["healthy"] is True
    clock.advance(0.001)
    assert supervisor.facts()["healthy"] is False


def test_metrics_name_every_outcome_from_the_start() -> None:
    supervisor = Supervisor(
        Plan([], [{"queue": "q"}] * 2, 1.0), lambda *_: None, Notices({}), ManualClock()
    )
    found = {each.name: each for each in worker_metrics(supervisor.facts(), {"q": "g"})}
    tasks = found["cassq_worker_tasks_total"]
    assert not isinstance(tasks, Histogram)
    assert {labels["outcome"] for labels, _ in tasks.values} == {
        *("done", "failed", "settled", "rejected", "time_limit", "abandoned", "lost", "unwritten")
    }
    assert all(value == 0 for _, value in tasks.values)


def test_totals_of_processes_that_ended_are_kept() -> None:
    buckets = [0] * (len(TASK_SECONDS) + 1)
    one = {"outcomes": {"done": 2}, "buckets": [2, *buckets[1:]], "seconds": 0.25}
    other = {"outcomes": {"done": 1, "lost": 1}, "buckets": [1, 1, *buckets[2:]], "seconds": 1.0}
    both = {"outcomes": {"done": 3, "lost": 1}, "buckets": [3, 1, *buckets[2:]], "seconds": 1.25}
    assert added(added(nothing(), one), other) == both


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-60, "was killed by signal 60"),
    ],
)
def test_an_exit_code_is_said_in_words(code: int, words: str) -> None:
    assert how(code) == words


# --- reports ------------------------------------------------------------------------------------


def test_reports_arrive_whole_however_they_are_cut() -> None:
    read_end, write_end = os.pipe()
    reader = reports.ReportReader(read_end)
    os.write(write_end, b'{"report": "ready", "po')
    assert reader.read() == []
    os.write(write_end, b'pper": "p"}\n{"report": "beat"}\n{')
    assert reader.read() == [{"report": "ready", "popper": "p"}, {"report": "beat"}]
    os.close(write_end)
    assert reader.read() == []
    assert reader.fd is None


def test_an_error_is_reported_with_what_a_command_needs_to_show_it() -> None:
    read_end, write_end = os.pipe()
    reporter, reader = reports.Reporter(write_end), reports.ReportReader(read_end)
    reporter.failed(QueueNotFoundError("there is no queue 'x'", hint="create it"), {})
    try:
        raise ZeroDivisionError("division by zero")
    except ZeroDivisionError as exc:
        reporter.failed(exc, {"tasks.py": (1, 2, 3)})
    known, unknown = reader.read()
    assert (known["kind"], known["message"], known["hint"], known["exit_code"]) == (
        *("QueueNotFoundError", "there is no queue 'x'", "create it"),
        2,
    )
    assert known["traceback"] == ""
    assert "raised ZeroDivisionError: division by zero" in unknown["message"]
    assert unknown["traceback"].startswith("Traceback")
    assert unknown["files"] == {"tasks.py": [1, 2, 3]}
    reader.close()
    reporter.send("beat")  # nobody reads: it is dropped
    os.close(write_end)


# --- waking -------------------------------------------------------------------------------------


def test_a_signal_wakes_the_one_that_waits_and_its_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    taken: list[int] = []
    with Wakeup() as wakeup, handled(wakeup, taken.append, (signal.SIGUSR1,)):
        timer = threading.Timer(0, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        wakeup.wait(1000)
        timer.join()
        assert taken == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) is before
    wakeup.give()  # after its end this does nothing


def test_what_woke_it_before_it_waits_ends_its_wait_at_once() -> None:
    read_end, write_end = os.pipe()
    with Wakeup() as wakeup:
        for _ in range(100_000):  # more than fit
            wakeup.give()
        assert wakeup.wait(1000) == []
        os.write(write_end, b"x")
        assert wakeup.wait(1000, [read_end]) == [read_end]
        assert wakeup.wait(0) == []
    os.close(read_end)
    os.close(write_end)
