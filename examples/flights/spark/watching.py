"""The parent: starts the driver, watches how far it is, kills it half way, and starts it again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cassq
from spark.pipeline import ALERTS, DEPARTURES, GROUPS, Places

FLIGHTS = Path(__file__).parents[1]
LOOK_SECONDS = 0.1
LINE_SECONDS = 2.0
SHOWN = 15


class Sample(NamedTuple):
    """How far the pipeline was at a time, in messages: acked by each group, and alerts pushed."""

    seconds: float
    acked: dict[str, int]
    alerts: int


class Kill(NamedTuple):
    """The state in which the driver was killed. cut: of each query that was in the middle of a
    batch, that batch's number."""

    sample: Sample
    cut: dict[str, int]


class DriverError(Exception):
    """The driver ended when or as it should not have; the end of its log is told."""


class Watch:
    """A run: one driver after another, on one directory. messages: all that are pushed."""

    def __init__(self, places: Places, departures: int, batches: int) -> None:
        self.samples: list[Sample] = []
        self.kill: Kill | None = None
        self.drivers = 0
        self._places = places
        self._messages = departures + 1
        self._told = [str(places.directory.resolve()), str(departures)]
        self._told.append(str(-(-self._messages // batches)))
        self._start = time.monotonic()
        self._next_line = 0.0

    def run(self, *, kill: bool) -> None:
        """To the end, by way of a kill. Raises DriverError."""
        with cassq.connect(self._places.url) as client:
            if kill:
                with self._driver() as driver:
                    self._until_killed(driver, client)
            with self._driver() as driver:
                while driver.poll() is None:
                    self._look(client)
                self._look(client, at_once=True)
                if driver.returncode != 0:
                    raise self._error(driver)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    # --- the driver -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _driver(self) -> Iterator[subprocess.Popen[bytes]]:
        """A driver with its JVM, in a process group of its own, of which nothing is left behind."""
        self.drivers += 1
        path = os.pathsep.join(filter(None, [str(FLIGHTS), os.environ.get("PYTHONPATH")]))
        with self._log().open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "spark.driver", *self._told],
                cwd=self._places.directory,
                env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._say(f"driver {self.drivers} is started")
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _until_killed(self, driver: subprocess.Popen[bytes], client: cassq.Client) -> None:
        while self.kill is None:
            sample = self._look(client)
            if driver.poll() is not None:
                raise self._error(driver)
            if sum(sample.acked.values()) >= self._messages:
                self._kill_in_a_batch(driver, sample)

    def _kill_in_a_batch(self, driver: subprocess.Popen[bytes], sample: Sample) -> None:
        """Kill it, if it stands in the middle of a batch: for a look at that it is stopped."""
        os.killpg(driver.pid, signal.SIGSTOP)
        cut = unfinished(self._places)
        if not cut:
            os.killpg(driver.pid, signal.SIGCONT)
            return
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        self.kill = Kill(sample, cut)
        text = " and ".join(f"batch {number} of {query}" for query, number in cut.items())
        self._say(f"driver {self.drivers} is killed, in {text}")

    def _error(self, driver: subprocess.Popen[bytes]) -> DriverError:
        log = self._log()
        end = log.read_text(errors="replace").splitlines()[-SHOWN:]
        text = f"driver {self.drivers} ended with exit code {driver.returncode}; the end of {log}:"
        return DriverError("\n".join([text, *end]))

    def _log(self) -> Path:
        return self._places.directory / f"driver-{self.drivers}.log"

    # --- what is seen ---------------------------------------------------------------------------

    def _look(self, client: cassq.Client, *, at_once: bool = False) -> Sample:
        """See how far it is, and show that every now and then."""
        time.sleep(LOOK_SECONDS)
        groups = client.queue(DEPARTURES).stats().groups
        acked = {group: groups[group].committed for group in GROUPS}
        sample = Sample(self.seconds, acked, client.queue(ALERTS).stats().pushed)
        self.samples.append(sample)
        if at_once or self.seconds >= self._next_line:
            self._next_line = self.seconds + LINE_SECONDS
            counts = ", ".join(f"{group} {count:,}" for group, count in acked.items())
            self._say(f"read by {counts} of {self._messages:,}; {sample.alerts:,} alerts")
        return sample

    def _say(self, what: str) -> None:
        print(f"{self.seconds:5.1f} s  {what}", flush=True)


def create_queues(places: Places) -> None:
    """The queue of departures, with a group for each query, and the queue of alerts."""
    with cassq.connect(places.url) as client:
        queue = client.create_queue(DEPARTURES)
        for group in GROUPS:
            queue.create_group(group, start="beginning")
        # Nobody reads the group that every queue begins with, so it would hold every message.
        queue.delete_group("default")
        client.create_queue(ALERTS)


def unfinished(places: Places) -> dict[str, int]:
    """The batches that are begun and not done, by the checkpoints of their queries."""
    found = {}
    for query in GROUPS:
        begun = _last(places.checkpoint(query) / "offsets")
        if begun > _last(places.checkpoint(query) / "commits"):
            found[query] = begun
    return found


def _last(log: Path) -> int:
    """The number of the last entry of a log in a checkpoint; -1 for none."""
    names = [path.name for path in log.glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)
