"""The keeper: renews a Spark driver's lease in each place where it leads writes.

It is a thread of the process that registered the data source. Spark plans and commits in other,
short-lived processes, which request heartbeats by putting a file for each place into the keeper's
directory. The file holds the driver's ID at that place, under which its writes are begun.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
import threading
from hashlib import sha256
from pathlib import Path

from cassq.errors import CassqError, ConfigError
from cassq.producer.staging import BEAT_SECONDS, DRIVER_LEASE_MS
from cassq.spark.clients import SparkPlace, place_of

logger: logging.Logger = logging.getLogger("cassq")

LOOK_SECONDS = 0.5


class Heartbeats:
    """The heartbeats of this process, for every file in its directory."""

    def __init__(self) -> None:
        self.directory: str = tempfile.mkdtemp(prefix="cassq-spark-")  # only this user can read it
        self._ended = threading.Event()
        self._places: dict[str, SparkPlace] = {}
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="cassq-spark-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = 0.0
        known: set[str] = set()
        while not self._ended.wait(LOOK_SECONDS):
            names = {path.name for path in Path(self.directory).glob("*.json")}
            due -= LOOK_SECONDS
            if names - known or due <= 0:
                due = BEAT_SECONDS
                known = {name for name in names if self._beat(Path(self.directory, name))}

    def _beat(self, path: Path) -> bool:
        """Renew the lease that a file requests; returns whether that succeeded. If not, it is
        retried soon."""
        try:
            request = json.loads(path.read_text())
            place = self._places.get(request["url"])
            if place is None:
                place = self._places[request["url"]] = SparkPlace(request["url"])
            place.ports.catalog.writes.beat_driver(request["driver"], DRIVER_LEASE_MS)
        except (CassqError, OSError, ValueError) as exc:
            logger.warning("a Spark driver could not renew its lease: %s", exc)
            return False
        return True

    def close(self) -> None:
        """Stop. When its lease has expired, writes led by this process may be aborted."""
        if os.getpid() != self._pid:
            return
        self._ended.set()
        self._thread.join(timeout=10)
        for place in self._places.values():
            place.close()
        shutil.rmtree(self.directory, ignore_errors=True)


_keeper: Heartbeats | None = None
_lock = threading.Lock()


def keeper() -> Heartbeats:
    """The keeper of this process, started by the first call."""
    global _keeper
    with _lock:
        if _keeper is None or _keeper._pid != os.getpid():
            _keeper = Heartbeats()
            atexit.register(_keeper.close)
        return _keeper


def driver_id(directory: str, url: str) -> str:
    """The ID of the driver at a place, for any process on the keeper's machine. directory: the
    keeper's. The first caller generates the ID; those of later drivers are greater. Raises
    ConfigError if the keeper is on another machine, or gone.
    """
    path = Path(directory, sha256(url.encode()).hexdigest()[:32] + ".json")
    for _ in range(2):
        try:
            return str(json.loads(path.read_text())["driver"])
        except FileNotFoundError:
            _ask(path, url)
    raise ConfigError(f"{path} keeps disappearing")


def _ask(path: Path, url: str) -> None:
    if not path.parent.is_dir():
        raise ConfigError(
            "the process that called cassq.spark.register is gone, or on another machine",
            hint="register in the driver's own process; with Spark Connect, write to a server on"
            " the client's machine",
        )
    ports = place_of(url).ports
    driver = ports.ids.new(ports.catalog.now_ms())
    ports.catalog.writes.beat_driver(driver, DRIVER_LEASE_MS)
    handle, draft = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        json.dump({"url": url, "driver": driver}, file)
    try:
        os.link(draft, path)  # fails if another process was faster: its ID is used
    except FileExistsError:
        logger.info("another process of this driver generated its ID at the same moment")
    finally:
        os.unlink(draft)
