"""cassq: a durable queue with no broker.

    import cassq

    client = cassq.connect("file:cassq-data")
    queue = client.create_queue("thumbnails")
    with queue.pusher() as pusher:
        pusher.push(b"cat.jpg")
    with queue.popper() as popper:
        for message in popper.pop(max_messages=10, wait=1.0):
            print(message.payload)
            message.ack()

Each name here is loaded on first use, so a program that imports cassq without using it loses almost
no time.
"""

from __future__ import annotations

from cassq.version import __version__

# Type checkers know this name; importing `typing` takes longer than loading all of this module.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from cassq import errors
    from cassq.client.client import Client
    from cassq.client.connecting import connect
    from cassq.client.queue import Group, Queue
    from cassq.client.schedule import Schedule
    from cassq.consumer.delivery import Message, Messages
    from cassq.errors import CassqError
    from cassq.message.message_ids import MessageId, MessageIds
    from cassq.outbox.outbox import Outbox
    from cassq.popper import Popper
    from cassq.producer.pusher import Push, Pusher

_HOMES = {
    "CassqError": "cassq.errors",
    "Client": "cassq.client.client",
    "Group": "cassq.client.queue",
    "Message": "cassq.consumer.delivery",
    "MessageId": "cassq.message.message_ids",
    "MessageIds": "cassq.message.message_ids",
    "Messages": "cassq.consumer.delivery",
    "Outbox": "cassq.outbox.outbox",
    "Popper": "cassq.popper",
    "Push": "cassq.producer.pusher",
    "Pusher": "cassq.producer.pusher",
    "Queue": "cassq.client.queue",
    "Schedule": "cassq.client.schedule",
    "connect": "cassq.client.connecting",
}

__all__ = [
    "CassqError",
    "Client",
    "Group",
    "Message",
    "MessageId",
    "MessageIds",
    "Messages",
    "Outbox",
    "Popper",
    "Push",
    "Pusher",
    "Queue",
    "Schedule",
    "__version__",
    "connect",
    "errors",
]


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "errors":
            return import_module("cassq.errors")
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'cassq' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
