"""The transport: connections of kombu to queues of cassq."""

from __future__ import annotations

import os
from typing import Any

from kombu.transport import base, virtual
from kombu.utils.url import maybe_sanitize_url

from cassq.base.clock import Stopwatch
from cassq.kombu.batches import CONNECTION_ERRORS
from cassq.kombu.brokers import TransportBroker, broker_of
from cassq.kombu.channel import Channel
from cassq.kombu.exchanges import Declared, Exchanges
from cassq.kombu.options import TransportOptions, options_of
from cassq.kombu.signals import Signal
from cassq.version import __version__

# While a channel is at its prefetch limit, callers get control back soon: they may have to ack.
FULL_SECONDS = 0.05
FOREVER_SECONDS = 3600.0
BATCH = 100  # how many messages an event loop delivers before it does other things


class Transport(virtual.Transport):
    """A connection. It uses the process's client, opened when it is first needed."""

    Channel: type = Channel
    can_parse_url = True
    default_port = None
    driver_type = "cassq"
    driver_name = "cassq"
    connection_errors: tuple[type[BaseException], ...] = (
        *virtual.Transport.connection_errors,
        *CONNECTION_ERRORS,
    )
    implements: Any = base.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
        batch_publish=True,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self.options: TransportOptions = options_of(client.transport_options or {})
        self.exchanges: Exchanges = Exchanges(self.options)
        self.declared: dict[str, Declared] = {}
        self.signal: Signal = Signal()
        self._pid = os.getpid()
        self._broker: TransportBroker | None = None
        super().__init__(client, **kwargs)

    @property
    def is_ours(self) -> bool:
        """Whether this process made the connection, and not its parent before a fork."""
        return self._pid == os.getpid()

    @property
    def broker(self) -> TransportBroker:
        broker = self._broker
        if broker is None or not broker.is_open:
            broker = self._broker = broker_of(self.url)
        return broker

    @property
    def url(self) -> str:
        """The URL of the queues, as `cassq.connect` takes it."""
        return str(self.client.hostname or "").removeprefix("cassq+")

    def driver_version(self) -> str:
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return f"cassq+{self.url if include_password else maybe_sanitize_url(self.url)}"

    def establish_connection(self) -> Any:
        assert self.broker
        return super().establish_connection()

    def verify_connection(self, connection: Any) -> bool:
        return True

    # --- delivering -----------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Wait for one message, and deliver it. Raises TimeoutError if none comes in time, or if a
        channel is at its prefetch limit and a timeout was given."""
        watch = Stopwatch()
        limit = FOREVER_SECONDS if timeout is None else timeout
        while True:
            self.signal.clear()
            if self._deliver_one():
                return
            left = limit - watch.seconds()
            if self._is_full():
                left = min(left, FULL_SECONDS)
            if left > 0:
                self.signal.wait(left)
                if self._deliver_one():
                    return
            if timeout is not None and (watch.seconds() >= limit or self._is_full()):
                raise TimeoutError

    def _is_full(self) -> bool:
        return any(
            channel.qos.prefetch_count and not channel.qos.can_consume()
            for channel in self.channels
        )

    def _deliver_one(self) -> bool:
        """Deliver one message of any channel, round robin; False if none has one."""
        channels = self.channels
        for index, channel in enumerate(list(channels)):
            if channel.deliver_next():
                channels.append(channels.pop(index))
                return True
        return False

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        loop.add_reader(self.signal.fd, self.on_readable, loop)

    def on_readable(self, loop: Any) -> None:
        """Deliver messages that were taken, at most `BATCH`."""
        self.signal.clear()
        for _ in range(BATCH):
            if not self._deliver_one():
                return
        self.signal.set()  # the rest, at the loop's next turn
