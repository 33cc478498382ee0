"""The backend of Django's tasks, in processes that have a Django with settings of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cassq
from tests.integration.commands import command
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = [
    pytest.mark.embedded_only(reason="each process opens a directory"),
    pytest.mark.needs("module:django_tasks"),
    pytest.mark.waits(reason="processes start Django"),
]
ROOT = Path(__file__).resolve().parents[3]

SETTINGS = """
import os
from pathlib import Path
SECRET_KEY = "-"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path("app.db").resolve()}}
options = {"url": "file:cassq-data", "enqueue": os.environ["ENQUEUE"], "retries": [0]}
options["queues"] = {"default": {"claim_timeout": 3}}
queues = ["default", "mails"]
TASKS = {"default": {"BACKEND": "cassq.django.Backend", "QUEUES": queues, "OPTIONS": options}}
"""
MAILS = """
import os, time
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task()
def add(a, b):
    return a + b

@task(queue_name="mails", priority=50)
async def send(to, subject=""):
    return [to, subject]

@task(takes_context=True)
def fail_once(context):
    if context.attempt == 1:
        raise ValueError("first")
    return context.attempt

@task()
def fail():
    raise KeyError("always")

@task()
def touch(path):
    open(path, "w").close()

@task()
def hold(path, gate):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists(gate):
        time.sleep(0.01)
"""
# What the scripts below begin with. `work` runs tasks until there have been so many deliveries.
BEGIN = """
import asyncio, sys, threading
from datetime import timedelta
import django
from django.conf import settings
django.setup()
from django.db import connection, transaction
from django.utils import timezone
import cassq, mails
from cassq.django.framework import *
from cassq.outbox.relay import Relay
backend = task_backends["default"]

def work(queue, count):
    backend.app.run(queue, max_tasks=count)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of a project."""
    (tmp_path / "project_settings.py").write_text(SETTINGS)
    (tmp_path / "mails.py").write_text(MAILS)
    return tmp_path


def environment(enqueue: str = "now") -> dict[str, str]:
    return {
        **os.environ,
        "ENQUEUE": enqueue,
        "PYTHONPATH": os.pathsep.join([str(ROOT), "."]),
        "DJANGO_SETTINGS_MODULE": "project_settings",
        "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
    }


def run(here: Path, enqueue: str, script: str) -> None:
    words = [sys.executable, "-c", BEGIN + script]
    env = environment(enqueue)
    done = subprocess.run(words, cwd=here, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_the_framework_promises_of_results(here: Path) -> None:
    run(
        here,
        "now",
        """
told = []
for name in (task_enqueued, task_started, task_finished):
    name.connect(lambda task_result, signal, **_: told.append(task_result.status), weak=False)
one = mails.add.enqueue(1, b=2)
assert (one.status, one.is_finished, one.args, one.kwargs) == ("READY", False, [1], {"b": 2})
assert mails.add.get_result(one.id).enqueued_at == one.enqueued_at
work("default", 1)
one.refresh()
assert (one.status, one.return_value, one.attempts) == ("SUCCESSFUL", 3, 1)
assert one.enqueued_at <= one.started_at == one.last_attempted_at <= one.finished_at
assert told == ["READY", "RUNNING", "SUCCESSFUL"], told
two = asyncio.run(mails.send.aenqueue("ann", subject="hi"))
work("mails", 1)
assert asyncio.run(mails.send.aget_result(two.id)).return_value == ["ann", "hi"]
assert backend.get_result(two.id).task == mails.send
try:
    mails.add.get_result(two.id)
except Exception as exc:
    assert type(exc).__name__ == "TaskResultMismatch"
else:
    raise AssertionError
try:
    backend.get_result("none")
except TaskResultDoesNotExist:
    pass
else:
    raise AssertionError
""",
    )


def test_tasks_that_fail_are_tried_again_and_end_as_dead_letters(here: Path) -> None:
    run(
        here,
        "now",
        """
once, always = mails.fail_once.enqueue(), mails.fail.enqueue()
work("default", 4)
for each in (once, always):
    each.refresh()
assert (once.status, once.return_value, once.attempts) == ("SUCCESSFUL", 2, 2)
assert (always.status, always.attempts, len(always.errors)) == ("FAILED", 2, 2)
assert always.errors[0].exception_class is KeyError
assert "mails.py" in always.errors[0].traceback
(letter,) = backend.app.client.queue("default").dead_letters().peek()
assert "KeyError: 'always'" in str(letter.death), letter
""",
    )


def test_times_and_priorities(here: Path) -> None:
    run(
        here,
        "now",
        """
mails.add.using(priority=-100).enqueue(1, 1)
mails.add.enqueue(2, 2)
mails.add.using(priority=100).enqueue(3, 3)
later = mails.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(4, 4)
with backend.app.client.queue("default").popper() as popper:
    found = [message.priority for _ in range(3) for message in popper.pop(10)]
assert found == [9, 4, 0], found
assert later.task.run_after == backend.get_result(later.id).task.run_after
for bad in ({"priority": 101}, {"queue_name": "none"}):
    try:
        mails.add.using(**bad)
    except Exception as exc:
        assert "InvalidTask" in type(exc).__name__
    else:
        raise AssertionError(bad)
""",
    )


@pytest.mark.parametrize("enqueue", ["commit", "outbox"])
def test_a_task_exists_if_the_transaction_commits(here: Path, enqueue: str) -> None:
    run(
        here,
        enqueue,
        """
cassq.Outbox.create(connection)
backend.app.prepare()
queue = backend.app.client.queue("default")
def pushed():
    return queue.stats().pushed
try:
    with transaction.atomic():
        lost = mails.add.enqueue(1, 1)
        raise ValueError
except ValueError:
    pass
with transaction.atomic():
    kept = mails.add.enqueue(2, 2)
    assert pushed() == 0
with Relay(backend.app.client, "app.db") as relay:
    relay.forward()
assert pushed() == 1
assert backend.get_result(kept.id).status == "READY"
work("default", 1)
assert mails.add.get_result(kept.id).return_value == 4
try:
    backend.get_result(lost.id)
except TaskResultDoesNotExist:
    pass
else:
    raise AssertionError
""",
    )


def test_options_that_do_not_exist_are_refused(here: Path) -> None:
    run(
        here,
        "now",
        """
from cassq.django import Backend
for options, error in [
    ({"enqueue": "later"}, "must be commit, now, outbox"),
    ({"uri": "file:x"}, "has the option 'uri', which does not exist"),
    ({"retries": ["x"]}, "retries must be a number of seconds"),
]:
    try:
        Backend("other", {"OPTIONS": options})
    except cassq.CassqError as exc:
        assert error in str(exc), exc
    else:
        raise AssertionError(options)
try:
    Backend("other", {"QUEUES": []})
except cassq.errors.ConfigError:
    pass
else:
    raise AssertionError
""",
    )


def test_arguments_that_cannot_be_json_raise_and_unknown_tasks_wait_for_a_worker_that_knows(
    here: Path,
) -> None:
    run(
        here,
        "now",
        """
try:
    mails.add.enqueue(object(), 1)
except Exception as exc:
    assert "type" in str(exc), exc
else:
    raise AssertionError
client = cassq.connect("file:cassq-data")
assert not any(queue.stats().pushed for queue in client.queues())
gone, known = mails.add.enqueue(1, 2), mails.add
del mails.add
work("default", 1)
assert client.queue("default").stats().groups["default"].committed == 0
mails.add = known  # a worker of the right version
work("default", 1)
gone.refresh()
assert (gone.status, gone.return_value) == ("SUCCESSFUL", 3)
""",
    )


def test_a_task_of_a_killed_worker_is_run_again(here: Path) -> None:
    run(here, "now", "mails.hold.enqueue('held', 'gate')\n")
    words = [sys.executable, "-m", "cassq", "worker", "cassq.django:worker", "--log", "quiet"]
    held = here / "held"

    def pids() -> list[str]:
        return held.read_text().split() if held.exists() else []

    with command(words, cwd=here, env=environment()) as worker:
        eventually("it runs", pids, seconds=DEADLINE_SECONDS)
        worker.kill()
        os.kill(int(pids()[0]), signal.SIGKILL)
    with command(words, cwd=here, env=environment()) as worker:
        eventually("it runs again", lambda: len(pids()) == 2, seconds=DEADLINE_SECONDS)
        (here / "gate").touch()
        with cassq.connect(f"file://{here / 'cassq-data'}") as client:
            group = lambda: client.queue("default").stats().groups["default"]  # noqa: E731
            eventually("it is done", lambda: group().committed == 1, seconds=DEADLINE_SECONDS)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_SECONDS) == 0


def test_the_worker_runs_what_the_settings_name(here: Path) -> None:
    run(here, "now", "mails.touch.enqueue('touched')\n")
    words = [sys.executable, "-m", "cassq", "worker", "cassq.django:worker", "--log", "quiet"]
    with command(words, cwd=here, env=environment()) as worker:
        eventually("it ran", (here / "touched").exists, seconds=DEADLINE_SECONDS)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_SECONDS) == 0
    with cassq.connect(f"file://{here / 'cassq-data'}") as client:
        assert client.queue("default").stats().groups["default"].committed == 1
