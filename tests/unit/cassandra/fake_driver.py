"""A driver without servers, for sessions whose requests are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from cassq.cassandra.connecting import ConnectBudget
from cassq.cassandra.contact import Contact
from cassq.cassandra.session import KEYSPACE, SERVER_TIME, Stamp
from cassq.cassandra.speculation import Speculation

SERVER_MS = 1_700_000_000_000


class FakePrepared:
    """A prepared statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_idempotent = False

    def bind(self, values: Sequence[Any]) -> SimpleNamespace:
        return SimpleNamespace(text=self.text, values=values)


class FakeFuture:
    """An answer that is there. attempted_hosts, warnings: as the driver's."""

    def __init__(self, session: FakeSession, rows: list[tuple[Any, ...]]) -> None:
        self.attempted_hosts = list(session.hosts_tried)
        self.warnings = list(session.warnings)
        self._rows = rows

    def result(self) -> list[tuple[Any, ...]]:
        return self._rows

    def add_callback(self, act: Callable[..., object], *args: Any) -> None:
        act(self._rows, *args)

    def add_errback(self, _act: Callable[..., object], *_args: Any) -> None:
        """It has no error."""


class FakeSession:
    """A session whose requests are answered at once. hosts_tried: the servers that each request
    from now on is sent to. warnings: in each answer. timeouts: of the requests."""

    def __init__(self) -> None:
        self.hosts_tried = ["a"]
        self.warnings: list[str] = []
        self.timeouts: list[float] = []
        self._default_timeout = 0.0  # of what has no timeout of its own
        self.client_protocol_handler: object = None

    def prepare(self, text: str) -> FakePrepared:
        self.timeouts.append(self._default_timeout)
        return FakePrepared(text)

    def execute_async(self, statement: Any, timeout: float) -> FakeFuture:
        self.timeouts.append(timeout)
        match statement.text:
            case text if text == SERVER_TIME:
                rows: list[tuple[Any, ...]] = [(SERVER_MS,)]
            case text if text == KEYSPACE:
                rows = [({},)]
            case _:
                rows = [(True,)]
        return FakeFuture(self, rows)


class FakeDriver:
    """The driver's cluster: one server in one data centre. `build` is for `Cql`; the rest of what
    it is given is kept."""

    def __init__(self) -> None:
        self.session = FakeSession()
        self.metadata = SimpleNamespace(all_hosts=lambda: [SimpleNamespace(datacenter="dc1")])
        self.contact: Contact
        self.speculation: Speculation
        self.budget: ConnectBudget

    def build(
        self, contact: Contact, _stamp: Stamp, speculation: Speculation, budget: ConnectBudget
    ) -> FakeDriver:
        self.contact, self.speculation, self.budget = contact, speculation, budget
        return self

    def connect(self) -> FakeSession:
        return self.session

    def refresh_keyspace_metadata(self, keyspace: str, **_options: object) -> None:
        """There is nothing to learn."""

    def shutdown(self) -> None:
        """Nothing is held."""
