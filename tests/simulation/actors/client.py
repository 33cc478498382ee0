"""The real client as a simulated process has it: no thread, and a bell that only rings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cassq.base.housekeeper import Maintain
from cassq.client import client as client_module
from cassq.client.backends.embedded import Embedded
from cassq.client.client import Client
from cassq.client.runtime import Runtime
from cassq.client.spool import Spool
from cassq.doorbell import LOOK_AGAIN_SECONDS, Doorbell, Waiter
from cassq.errors import BackendError, CassqError, GroupNotFoundError, OwnershipError
from cassq.extents.port import ExtentMissingError
from tests.simulation.worlds.scheduler import Process, ProcessClock

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World


class SimWaiter(Waiter):
    """Looks for itself, again and again."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        clock = self._process.scheduler.clock
        until_ms = clock.boot_ms() + 1000 * min(seconds, LOOK_AGAIN_SECONDS)
        while not ready() and clock.boot_ms() < until_ms:
            self._process.sleep(0.02)

    def wake(self) -> None:
        """It looks again in a moment."""

    def close(self) -> None:
        """Nothing is held."""


class SimDoorbell(Doorbell):
    """A bell nobody hears: poppers look by themselves. Ringing is a point."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def ring(self) -> None:
        self._process.point()

    def listen(self) -> Waiter:
        return SimWaiter(self._process)

    def close(self) -> None:
        """Nothing is held."""


class SteppedRuntime(Runtime):
    """The real one, without threads: what they would do is done by `maintain`."""

    def appends_side_by_side(self) -> bool:
        return False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tasks: dict[Maintain, float] = {}

    def add_maintenance(self, maintain: Maintain, first: float) -> None:
        now = self.ports.clock.boot_ms() / 1000
        self._tasks.setdefault(self.reap_in_passing, now + 1.0)
        self._tasks[maintain] = now + first

    def keep_fresh(self, refresh: Maintain, first: float) -> None:
        self._tasks[refresh] = self.ports.clock.boot_ms() / 1000 + first

    def maintain(self) -> None:
        """Do what is due, as the housekeeper does."""
        now = self.ports.clock.boot_ms() / 1000
        for task, due in list(self._tasks.items()):
            if due <= now:
                self._tasks[task] = now + 1.0
                try:
                    self._tasks[task] = now + task()
                except CassqError:
                    self._tasks[task] = now + 1.0


class SteppedClient(Client):
    """The real client, without its threads."""

    runtime_class = SteppedRuntime
    runtime: SteppedRuntime

    def __init__(self, embedded: Embedded, process: Process, spool: Spool | None = None) -> None:
        self.process = process
        super().__init__("sim:", embedded, ProcessClock(process), spool)
        client_module._clients.discard(self)

    def maintain(self) -> None:
        """Do what is due."""
        self.runtime.maintain()


def open_client(world: World, process: Process) -> SteppedClient:
    """A client, however often opening it fails."""
    while True:
        try:
            return world.open_client(process)
        except BackendError as exc:
            met(process, "opening", exc)
            process.sleep(0.05)


def close_client(world: World, process: Process, client: SteppedClient) -> None:
    """Give back what it has out, and end it."""
    process.scheduler.note(process, "closes its client")
    world.checker.closing(client.runtime.open)
    try:
        client.close()
    except (BackendError, OwnershipError, GroupNotFoundError) as exc:
        met(process, "closing", exc)


def met(process: Process, doing: str, exc: CassqError) -> None:
    """An error that is one of the port's; any other is a failure of the run."""
    if isinstance(exc, ExtentMissingError):
        raise exc
    process.scheduler.note(process, f"{doing}: {type(exc).__name__}: {exc.message}")
