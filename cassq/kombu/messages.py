"""Messages as kombu hands them to consumers."""

from __future__ import annotations

from typing import Any

from kombu.transport import virtual


class ChannelMessage(virtual.Message):
    """A message. One that cannot be decoded becomes a dead letter when it is acked: Celery acks it
    so, and it would be lost."""

    obstacle: str = ""  # why it cannot be decoded

    def __init__(self, payload: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(payload, channel, **kwargs)
        if self.errors:  # of decompressing it
            self.obstacle = repr(self.errors[0][1])

    def _decode(self) -> Any:
        try:
            return super()._decode()
        except Exception as exc:
            self.obstacle = repr(exc)
            raise

    def ack(self, multiple: bool = False) -> None:
        if self.obstacle and not self.acknowledged:
            self.channel.qos.cannot_decode(self.delivery_tag, self.obstacle)
            self._state = "REJECTED"
            return
        super().ack(multiple)
