"""`cassq worker`: a plain function and one command, with processes, logs, limits and endpoints."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import last_due_ms, push
from tests.integration.worker.processes import Home, WorkerProcess, check_notices, counts, home

__all__ = ["home"]

pytestmark = pytest.mark.embedded_only(reason="the command opens a directory")


@pytest.fixture
def queue(home: Home) -> Iterator[cassq.Queue]:
    with cassq.connect(home.url) as client:
        # Nothing comes again because a claim has expired.
        yield client.create_queue("jobs", claim_timeout=3600, sick_check=False, max_deliveries=3)


def names(kind: str, count: int) -> list[bytes]:
    return [f"{kind}-{number}".encode() for number in range(count)]


def test_a_plain_function_needs_one_command(home: Home, queue: cassq.Queue) -> None:
    push(queue, *names("quick", 40))
    options = ["--queue", "jobs", "--processes", "2", "--threads", "3", "--log", "json"]
    with WorkerProcess(home, *options) as worker:
        home.until("done", 40)
        assert worker.terminate() == 0
    assert set(home.noted("done").values()) == {1}
    assert counts(queue) == (40, 0, 0, 0)
    tasks = [line for line in worker.logged if "outcome" in line]
    assert len({line["id"] for line in tasks}) == len(tasks) == 40
    assert {(line["queue"], line["outcome"], line["attempts"]) for line in tasks} == {
        ("jobs", "done", 1)
    }
    assert all(line["at"] and line["seconds"] >= 0 for line in tasks)


@pytest.mark.long(reason="a task runs for several claim timeouts")
def test_a_long_task_is_kept_from_other_workers(home: Home, queue: cassq.Queue) -> None:
    queue.update(claim_timeout=1)
    push(queue, b"gate-0")
    options = ["--queue", "jobs", "--processes", "1"]
    with WorkerProcess(home, *options) as one, WorkerProcess(home, *options) as two:
        home.until("begun", 1)
        with cassq.connect(home.url) as client:
            begun_ms = client.ports.catalog.now_ms()
            due_ms = partial(last_due_ms, client, queue)
            eventually("it is kept", lambda: due_ms() > begun_ms + 4000)
        home.open_gate(1)
        home.until("done", 1)
        assert (one.terminate(), two.terminate()) == (0, 0)
    assert home.noted("begun") == {"gate-0": 1}


def test_failures_are_logged_with_their_traceback_and_the_rest_left_out_by_quiet(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, b"quick", b"raise")
    with WorkerProcess(home, "--queue", "jobs", "--log", "quiet") as worker:
        eventually("it is dead", lambda: counts(queue) == (1, 0, 0, 1))
        assert worker.terminate() == 0
    assert worker.errors.count("failed after") == 3
    assert worker.errors.count('raise ValueError("no such address")') == 3
    assert "done after" not in worker.errors


@pytest.mark.parametrize(
    ("handler", "text", "says"),
    [
        ("mine:handle", "import no_such_dependency", "No module named 'no_such_dependency'"),
        ("mine:handle", "def handle(:", "SyntaxError"),
        ("mine:handle", "raise SystemExit(0)", "raised SystemExit"),
        ("mine:handled", "def handle(message): ...", "it has: handle"),
        ("mine:handle", "def handle(): ...", "its parameters are ()"),
        ("missing:handle", "", "there is no module 'missing'"),
    ],
)
def test_what_cannot_be_loaded_ends_the_command_with_the_reason(
    home: Home, queue: cassq.Queue, handler: str, text: str, says: str
) -> None:
    (home.directory / "mine.py").write_text(text + "\n")
    push(queue, b"quick")
    with WorkerProcess(home, "--queue", "jobs", "--processes", "2", handler=handler) as worker:
        assert worker.wait() == 2
    assert says in worker.errors
    assert worker.errors.count("error: ") == 1
    assert "cassq/worker" not in worker.errors  # tracebacks begin in the user's module
    assert counts(queue) == (0, 1, 0, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--queue", "jobs", "--group", "none"], "no group 'none'"),
        (["--queue", "none"], "there is no queue 'none'"),
        (["--queue", "jobs", "--listen", "9465"], "--listen: '9465' is not an address"),
        (["--queue", "jobs", "--time-limit", "0"], "time_limit must be between"),
        (["--queue", "jobs", "--threads", "0"], "--threads"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_starts(
    home: Home, queue: cassq.Queue, options: list[str], says: str
) -> None:
    with WorkerProcess(home, *options) as worker:
        assert worker.wait() == 2
    assert says in worker.errors


def test_the_only_queue_need_not_be_named(home: Home, queue: cassq.Queue) -> None:
    push(queue, b"raise", b"quick")
    with WorkerProcess(home) as worker:
        eventually("there is a queue of dead letters too", lambda: counts(queue) == (1, 0, 0, 1))
        assert worker.terminate() == 0
    with cassq.connect(home.url) as client:
        client.create_queue("other")
    with WorkerProcess(home) as worker:
        assert worker.wait() == 2
    assert "--queue is needed: the queues are jobs, other" in worker.errors


@pytest.mark.parametrize("moment", ["start", "child", "ready", "task"])
def test_a_signal_at_any_moment_leaves_no_process_and_counts_nothing(
    home: Home, queue: cassq.Queue, moment: str
) -> None:
    push(queue, *names("quick", 300))
    options = ["--queue", "jobs", "--processes", "2", "--threads", "2", "--listen", "127.0.0.1:0"]
    with WorkerProcess(home, *options) as worker:
        match moment:
            case "child":
                eventually("it has a process", worker.children)
            case "ready":
                eventually("one is ready", lambda: '"ready": 0' not in worker.get("/health")[1])
            case "task":
                home.until("begun", 1)
        code = worker.terminate()
    assert code == (-signal.SIGTERM if moment == "start" else 0)
    committed, waiting, pending, dead = counts(queue)
    assert (committed + waiting, pending, dead) == (300, 0, 0)
    assert sum(home.noted("begun").values()) == committed
    assert queue.stats().groups["default"].deliveries == ({0: waiting} if waiting else {})


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_finish_and_gives_the_rest_back_uncounted(
    home: Home, queue: cassq.Queue, signum: signal.Signals
) -> None:
    push(queue, *names("gate", 8))
    with WorkerProcess(home, "--queue", "jobs", "--threads", "2") as worker:
        home.until("begun", 2)
        worker.signal(signum)
        worker.until_logged("jobs: stopping, with 2 tasks in hand")
        home.open_gate(2)
        assert worker.wait() == 0
    assert counts(queue) == (2, 6, 0, 0)
    assert queue.stats().groups["default"].deliveries == {0: 6}
    assert sum(home.noted("begun").values()) == 2


def test_the_processes_share_the_keys_of_a_queue_with_lanes(home: Home) -> None:
    """Each waits at the gate with what it has: so both have something at the same time."""
    with cassq.connect(home.url) as client:
        queue = client.create_queue("laned", key_lanes=4)
        queue.create_group("keyed", order="key")
        with queue.pusher() as pusher:
            for number, name in enumerate(names("gate", 8)):
                pusher.push(name, key=b"%d" % number)
        options = ["--queue", "laned", "--group", "keyed", "--processes", "2", "--threads", "1"]
        with WorkerProcess(home, *options) as worker:
            home.until("begun", 2)
            assert len({line.pid for line in home.lines}) == 2
            home.open_gate(8)
            eventually("all are done", lambda: queue.stats().groups["keyed"].committed == 8)
            assert worker.terminate() == 0


def test_what_runs_beyond_the_grace_comes_again_counted_and_the_exit_code_says_so(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, *names("gate", 3))
    with WorkerProcess(home, "--queue", "jobs", "--threads", "2", "--grace", "100ms") as worker:
        home.until("begun", 2)
        assert worker.terminate() == 1
    assert "abandoned after" in worker.errors
    assert counts(queue) == (0, 3, 0, 0)
    assert queue.stats().groups["default"].deliveries == {0: 1, 1: 2}


def test_a_second_interrupt_ends_all_processes_at_once(home: Home, queue: cassq.Queue) -> None:
    push(queue, b"gate")
    with WorkerProcess(home, "--queue", "jobs", "--grace", "1h") as worker:
        home.until("begun", 1)
        worker.signal(signal.SIGINT)
        worker.until_logged("jobs: stopping, with 1 task in hand")
        worker.signal(signal.SIGINT)
        assert worker.wait() == -signal.SIGINT
    assert home.noted("done") == {}


def test_a_task_over_its_limit_fails_and_its_process_is_replaced(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, b"gate", *names("quick", 5))
    options = ["--queue", "jobs", "--threads", "2", "--time-limit", "300ms"]
    with WorkerProcess(home, *options) as worker:
        eventually("it is dead", lambda: counts(queue)[3] == 1)
        eventually("the others are done", lambda: counts(queue) == (5, 0, 0, 1))
        assert worker.terminate() == 0
    (letter,) = queue.dead_letters().peek()
    assert letter.death["error"] == "time limit: it ran for over 0.3 s"
    begun = [line for line in home.lines if line.payload == "gate"]
    assert [line.attempts for line in begun] == [1, 2, 3]
    assert len({line.pid for line in begun}) == 3
    assert worker.errors.count("leaves: time limit") >= 3  # any may stand still for so long


def test_a_process_is_replaced_after_the_tasks_it_may_take(home: Home, queue: cassq.Queue) -> None:
    push(queue, *names("quick", 12))
    with WorkerProcess(home, "--queue", "jobs", "--max-tasks-per-child", "4") as worker:
        home.until("done", 12)
        assert worker.terminate() == 0
    assert counts(queue) == (12, 0, 0, 0)
    by_process = [line.pid for line in home.lines if line.kind == "done"]
    assert sorted(by_process.count(pid) for pid in set(by_process)) == [4, 4, 4]


def test_a_changed_source_restarts_the_processes_and_a_broken_one_waits(
    home: Home, queue: cassq.Queue
) -> None:
    other = home.directory / "texts.py"
    other.write_text("word = 'first'\n")
    (home.directory / "mine.py").write_text(
        "import tasks, texts\n"
        "def handle(message):\n"
        "    print(texts.word, message.payload.decode(), file=open('said', 'a'), flush=True)\n"
    )
    said = home.directory / "said"

    def says(text: str) -> bool:
        return said.exists() and text in said.read_text()

    options = ["--queue", "jobs", "--reload"]
    with WorkerProcess(home, *options, handler="mine:handle") as worker:
        push(queue, b"1")
        eventually("the first", lambda: says("first 1"))
        other.write_text("word = 'second, which is longer'\n")
        worker.until_logged("texts.py changed: restarting")
        other.write_text("word = \n")
        worker.until_logged("SyntaxError")
        worker.until_logged("waiting for a change of the sources")
        push(queue, b"2")
        other.write_text("word = 'third'\n")
        eventually("the third", lambda: says("third 2"))
        assert worker.terminate() == 0


def test_health_and_metrics_are_served(home: Home, queue: cassq.Queue) -> None:
    push(queue, *names("quick", 5), b"raise")
    options = ["--queue", "jobs", "--processes", "2", "--listen", "127.0.0.1:0"]
    with WorkerProcess(home, *options) as worker:
        eventually("it is dead", lambda: counts(queue) == (5, 0, 0, 1))
        eventually("it is healthy", lambda: worker.get("/health")[0] == 200)

        def ended() -> bool:
            facts = json.loads(worker.get("/health")[1])
            return bool(facts["outcomes"] == {"done": 5, "failed": 3})

        eventually("all tasks are reported", ended)
        facts = json.loads(worker.get("/health")[1])
        assert (facts["processes"], facts["ready"], facts["running"]) == (2, 2, 0)
        assert facts["replaced"] == {}
        status, text = worker.get("/metrics")
        assert status == 200
        labels = 'messaging_destination_name="jobs",messaging_consumer_group_name="default"'
        reversed_labels = ",".join(reversed(labels.split(",")))
        for metric, value in [
            ('cassq_worker_tasks_total{%s,outcome="done"}', 5.0),
            ('cassq_worker_tasks_total{%s,outcome="failed"}', 3.0),
            ("cassq_worker_task_seconds_count{%s}", 8.0),
            ('cassq_worker_processes{%s,state="ready"}', 2.0),
        ]:
            lines = [f"{metric % each} {value}" for each in (labels, reversed_labels)]
            assert any(line in text for line in lines), (metric, text)
        assert "cassq_group_open_messages" in text
        assert worker.terminate() == 0


def test_the_service_manager_is_notified(home: Home, queue: cassq.Queue) -> None:
    check_notices(home, lambda environ: WorkerProcess(home, "--queue", "jobs", **environ))


def test_an_async_function_needs_the_same_command(home: Home, queue: cassq.Queue) -> None:
    push(queue, *names("quick", 300), b"nack", b"raise")
    options = ["--queue", "jobs", "--processes", "2", "--async", "50", "--log", "json"]
    with WorkerProcess(home, *options, handler="tasks:handle_async") as worker:
        eventually("all are settled", lambda: counts(queue) == (301, 0, 0, 1))
        assert worker.terminate() == 0
    done = home.noted("done")
    assert done.pop("nack") == 2
    assert set(done.values()) == {1}
    assert "no such address" in worker.errors


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_async_tasks_after_the_grace(
    home: Home, queue: cassq.Queue, signum: signal.Signals
) -> None:
    push(queue, *names("sleep", 3), *names("stubborn", 2))
    options = ["--queue", "jobs", "--async", "4", "--grace", "100ms"]
    with WorkerProcess(home, *options, handler="tasks:handle_async") as worker:
        home.until("begun", 4)
        worker.signal(signum)
        assert worker.wait() == 1
    assert counts(queue) == (0, 5, 0, 0)
    assert queue.stats().groups["default"].deliveries == {0: 1, 1: 4}


@pytest.mark.waits(reason="a process starts anew")
def test_an_async_function_that_kills_its_process_is_counted(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, b"crash", *names("quick", 20))
    with WorkerProcess(home, "--queue", "jobs", handler="tasks:handle_async") as worker:
        eventually("it is dead", lambda: counts(queue) == (20, 0, 0, 1))
        assert worker.terminate() == 0
    assert home.noted("begun")["crash"] >= 3


@pytest.mark.waits(reason="a process is given some seconds to say something")
def test_an_async_function_that_blocks_its_loop_past_the_limit_is_killed(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, b"hold")
    options = ["--queue", "jobs", "--time-limit", "100ms", "--grace", "0"]
    with WorkerProcess(home, *options, handler="tasks:handle_async") as worker:
        worker.until_logged("time limit: its threads do not run")
        worker.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("handler", "option", "says"),
    [
        ("tasks:handle_async", "--threads", "an async function, which cannot have --threads"),
        ("tasks:handle", "--async", "is not an async function, so it cannot have --async"),
    ],
)
def test_an_option_for_the_other_kind_of_function_is_refused(
    home: Home, queue: cassq.Queue, handler: str, option: str, says: str
) -> None:
    with WorkerProcess(home, "--queue", "jobs", option, "2", handler=handler) as worker:
        assert worker.wait() == 2
    assert says in worker.errors
