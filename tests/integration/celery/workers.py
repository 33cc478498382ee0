"""`celery worker` as a process of a test, and what its tests ask of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cassq.kombu.brokers import broker_of
from tests.integration.celery.tasks import app
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[3]
APP = "tests.integration.celery.tasks"


@contextmanager
def connected(url: str) -> Iterator[str]:
    """Have the tests' app use the queues and results at a URL."""
    app.conf.update(broker_url=f"cassq+{url}", result_backend=f"cassq+{url}")
    # Celery keeps these for the life of an app.
    app.amqp._producer_pool = None
    app._backend_cache = None
    app._local.__dict__.pop("backend", None)
    yield url
    app.close()
    broker_of(url).client.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a module's worker."""
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def place(home: Path) -> Iterator[str]:
    """The URL of the queues in it, with the tests' app connected to it."""
    with connected(f"file://{home}/data") as url:
        yield url


def get(result: Any, **how: Any) -> Any:
    """What a task returned, once it has. how: as for Celery's `get`."""
    return result.get(timeout=DEADLINE_SECONDS, **how)


def commanded(url: str, *words: str) -> str:
    """What a command of `celery` printed, which must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", APP, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"CASSQ_TEST_URL": url},
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    return done.stdout


class WorkerProcess:
    """A worker of the tests' app, in a group of processes of its own; `log` is what it printed."""

    command: ClassVar[tuple[str, ...]] = ("worker",)

    def __init__(self, url: str, log: Path, *options: str, name: str = "one", **env: str) -> None:
        """env: more variables of its environment."""
        self._log = log
        celery = [sys.executable, "-m", "celery", "-A", APP, *self.command, "--loglevel", "info"]
        named = ["--hostname", f"{name}@test"] if self.command == ("worker",) else []
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [*celery, *named, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={
                    **os.environ,
                    "CASSQ_TEST_URL": url,
                    "C_FORCE_ROOT": "1",
                    **env,
                },
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ready(self) -> WorkerProcess:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log
            return " ready." in self.log

        eventually("the worker is ready", is_ready)
        return self

    def kill(self, *, whole: bool = False) -> None:
        """Kill the parent with SIGKILL; whole: with its children."""
        if whole:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.terminate()
        return self.process.wait(DEADLINE_SECONDS)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(DEADLINE_SECONDS)
