"""Messages of kombu: as payloads and headers of cassq, and as consumers get them.

The payload is the body, unchanged: nothing is encoded in base64. Everything else is in one header,
as JSON. The header says whether the body was a str, because kombu's serialisers want it back so.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from cassq.base.arguments import DELAY_MAX_SECONDS

HEADER = "kombu"
# Properties that are set for each delivery.
_MADE = frozenset({"delivery_tag", "body_encoding"})


def packed(message: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The payload and headers for a message."""
    body = message["body"]
    text = isinstance(body, str)
    properties = {name: value for name, value in message["properties"].items() if name not in _MADE}
    rest = [
        text,
        message.get("content-type"),
        message.get("content-encoding"),
        message.get("headers") or {},
        properties,
    ]
    payload = body.encode() if text else bytes(body or b"")
    return payload, {HEADER: dumps(rest, separators=(",", ":"))}


def unpacked(payload: bytes, headers: Mapping[str, str], tag: int, again: bool) -> dict[str, Any]:
    """The message in a payload and its headers. tag: of this delivery. again: whether it was
    delivered before. A payload without kombu's header, from another program, is taken as JSON."""
    if HEADER in headers:
        text, kind, encoding, own, properties = loads(headers[HEADER])
    else:
        text, kind, encoding, own, properties = True, "application/json", "utf-8", {}, {}
    properties["delivery_tag"] = tag
    info = properties.setdefault("delivery_info", {})
    info["redelivered"] = again
    return {
        "body": payload.decode() if text else payload,
        "content-type": kind,
        "content-encoding": encoding,
        "headers": own,
        "properties": properties,
    }


def due_of(message: Mapping[str, Any], now: datetime) -> datetime | None:
    """When a task with `eta` or `countdown` is due; None if that is not later than now, or later
    than a queue can delay it. Raises ValueError or TypeError for anything but a time."""
    eta = (message.get("headers") or {}).get("eta")
    if not eta:
        return None
    due = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    wait = (due - now).total_seconds()
    return due if 0 < wait < DELAY_MAX_SECONDS else None


class ChannelMessage(virtual.Message):
    """A message. One that cannot be decoded becomes a dead letter when it is acked: Celery acks
    such messages, so they would be lost otherwise."""

    obstacle: str = ""  # why it cannot be decoded

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(payload, channel, **kwargs)
        if self.errors:  # of decompressing it
            self.obstacle = repr(self.errors[0][1])

    def _decode(self) -> Any:
        try:
            found = super()._decode()
        except Exception as exc:
            self.obstacle = repr(exc)
            raise
        self.obstacle = ""
        return found

    def ack(self, multiple: bool = False) -> None:
        if self.obstacle and not self.acknowledged:
            self.channel.qos.cannot_decode(self.delivery_tag, self.obstacle)
            self._state = "REJECTED"
            return
        super().ack(multiple)
