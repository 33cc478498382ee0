"""Exchanges: which queues are bound to them, in a record that all processes share.

Lasting queues are listed in the record of their exchange, by compare-and-set, and get a copy of
each message. Queues that end with their consumer are groups of the exchange's own queue: a message
is written there once, and each group drops the messages that its bindings do not match.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cassq.base.clock import attempts, contended
from cassq.errors import GroupExistsError, GroupNotFoundError
from cassq.kombu.brokers import TransportBroker
from cassq.kombu.names import queue_name
from cassq.kombu.options import TransportOptions

CACHED_MS = 1000
# The type of an exchange that was not declared.
DEFAULT_TYPE = "direct"


@dataclass(slots=True)
class Declared:
    """A queue as it was declared. bindings: of one that ends with its consumer, by exchange."""

    arguments: dict[str, Any] = field(default_factory=dict)
    temporary: bool = False
    bindings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ttl_ms(self) -> int:
        """How old its messages may become; 0: any age."""
        return int(self.arguments.get("x-message-ttl") or 0)

    def expires(self, options: TransportOptions) -> float:
        """How many seconds it outlives its consumer."""
        given = (self.arguments.get("x-expires") or 0) / 1000
        return max(15.0, given or options.group_expires)


class Exchanges:
    """The exchanges of a broker, as one connection sees them."""

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self.types: dict[str, str] = {}
        self._cached: dict[str, tuple[int, list[list[str]]]] = {}

    def matching(self, broker: TransportBroker, exchange: str, key: str) -> list[str]:
        """The lasting queues that get a message published with a routing key. Cost: a read per
        second at most."""
        now_ms = broker.clock.boot_ms()
        cached = self._cached.get(exchange)
        if cached is None or now_ms - cached[0] >= CACHED_MS:
            text = broker.client.ports.catalog.leases.shared(self._record(exchange))
            known = json.loads(text) if text else {"bindings": []}
            cached = self._cached[exchange] = now_ms, known["bindings"]
            self.types.setdefault(exchange, known.get("type", DEFAULT_TYPE))
        kind = self.types.get(exchange, DEFAULT_TYPE)
        found = (queue for pattern, queue in cached[1] if matches(kind, pattern, key))
        return list(dict.fromkeys(found))

    def bind(self, broker: TransportBroker, exchange: str, key: str, queue: str) -> None:
        """Bind a lasting queue. Cost: a read; the first time, also a conditional write."""
        binding = [key, queue]
        self._change(broker, exchange, lambda old: old if binding in old else [*old, binding])

    def unbind(
        self, broker: TransportBroker, exchange: str, queue: str, key: str | None = None
    ) -> None:
        """Remove the bindings of a queue; key: only that one."""
        self._change(
            broker,
            exchange,
            lambda old: [each for each in old if each[1] != queue or key not in (None, each[0])],
        )

    def _change(self, broker: TransportBroker, exchange: str, change: Any) -> None:
        leases, name = broker.client.ports.catalog.leases, self._record(exchange)
        for _ in attempts(broker.clock):
            text = leases.shared(name)
            old = json.loads(text)["bindings"] if text else []
            new = change(old)
            if new == old:
                break
            record = {
                "type": self.types.get(exchange, DEFAULT_TYPE),
                "bindings": new,
                "by": uuid.uuid4().hex,  # no two writers write the same text
            }
            if leases.swap(name, text, json.dumps(record)):
                break
        else:
            raise contended(f"the bindings of exchange {exchange!r}")
        self._cached.pop(exchange, None)

    def _record(self, exchange: str) -> str:
        return f"kombu:{self._options.prefix}{exchange}"

    # --- queues that end with their consumers ---------------------------------------------------

    def join(self, broker: TransportBroker, exchange: str, queue: str, declared: Declared) -> None:
        """Create the group of the exchange's queue that stands for a queue, unless it exists."""
        try:
            broker.exchange_queue(exchange, self._options).create_group(
                queue_name(queue), start="now", group_expires=declared.expires(self._options)
            )
        except GroupExistsError:
            return  # it exists, with another expiry

    def leave(self, broker: TransportBroker, exchange: str, queue: str) -> None:
        """Remove the group of a queue."""
        try:
            broker.exchange_queue(exchange, self._options).delete_group(queue_name(queue))
        except GroupNotFoundError:
            return  # it has expired

    def has_groups(self, broker: TransportBroker, exchange: str) -> bool:
        """Whether queues that end with their consumer are bound to an exchange. Cost: two reads."""
        found = broker.find(queue_name(exchange, self._options.prefix + "exchange."))
        return found is not None and bool(found.groups())


def matches(kind: str, pattern: str, key: str) -> bool:
    """Whether a binding matches a routing key. kind: the type of the exchange."""
    if kind == "fanout":
        return True
    if kind == "topic":
        return bool(_compiled(pattern).fullmatch(key))
    return pattern == key


@lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression of a topic pattern: `*` is one word, `#` any number of words."""
    found = ""
    for index, word in enumerate(pattern.split(".")):
        if word == "#":
            found += r".*" if not index else r"(?:\..*)?"
        else:
            dot = r"\." if index else ""
            found += dot + (r"[^.]+" if word == "*" else re.escape(word))
    if pattern.startswith("#."):
        found = r"(?:.*\.)?" + found.removeprefix(r".*\.")
    return re.compile(found)
