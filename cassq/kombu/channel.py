"""Channels of kombu on queues of cassq."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from queue import Empty
from typing import Any

from kombu.transport import virtual

from cassq.client.queue import Queue
from cassq.consumer.delivery import Message as Popped
from cassq.errors import ClaimLostError, QueueNotFoundError
from cassq.kombu.batches import PublishBatch, batch_of_thread, log_failure
from cassq.kombu.brokers import TransportBroker
from cassq.kombu.envelopes import ChannelMessage, due_of, packed, unpacked
from cassq.kombu.exchanges import DEFAULT_TYPE, Declared, matches
from cassq.kombu.intake import ChannelPrefetch, Taken
from cassq.kombu.names import queue_name
from cassq.kombu.options import TransportOptions, settings_of
from cassq.kombu.revoking import cancel_revoked, note_published, note_waiting
from cassq.model.queues import DEFAULT_GROUP
from cassq.popper import Popper

logger: logging.Logger = logging.getLogger("cassq")

_tags = itertools.count(1)


class QoS(virtual.QoS):
    """The prefetch limit of a channel, and how its messages are settled. Thread-safe."""

    restore_at_shutdown = False

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        self.channel = channel
        self._intake = channel.intake
        self.prefetch_count = prefetch_count

    @property
    def prefetch_count(self) -> int:
        return self._intake.limit

    @prefetch_count.setter
    def prefetch_count(self, count: int | None) -> None:
        self._intake.limit = count or 0

    def can_consume(self) -> bool:
        return self._intake.room() > 0

    def can_consume_max_estimate(self) -> int | None:
        return self._intake.room() if self._intake.limit else None

    def append(self, message: Any, delivery_tag: int) -> None:
        """Nothing to do: the message counts as in hand since it was taken."""

    def get(self, delivery_tag: int) -> Any:
        taken = self._intake.held(delivery_tag)
        if taken is None:
            raise KeyError(delivery_tag)
        return self.channel.Message(taken.raw, channel=self.channel)

    def ack(self, delivery_tag: int) -> None:
        def ack(taken: Taken) -> None:
            if self.channel.options.sync_acks:
                taken.popper.commit([taken.message])
            else:
                taken.message.ack()

        self._settle(delivery_tag, ack)

    def reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """requeue: delivered again by the queue's `retry_schedule`, which counts towards its
        `max_deliveries`; otherwise the message becomes a dead letter."""
        if requeue:
            self._settle(delivery_tag, lambda taken: taken.message.nack(error="requeued"))
        else:
            self._settle(delivery_tag, lambda taken: taken.message.dead("rejected"))

    def cannot_decode(self, delivery_tag: int, obstacle: str) -> None:
        """Make a message a dead letter, because it cannot be decoded."""
        reason = f"it cannot be decoded: {obstacle}"
        self._settle(delivery_tag, lambda taken: taken.message.dead(reason))

    def _settle(self, tag: int, settle: Callable[[Taken], None]) -> None:
        taken = self._intake.drop(tag)
        if taken is None:
            return
        try:
            settle(taken)
        except ClaimLostError as exc:
            logger.warning("message %s of %s was lost: %s", taken.message.id, taken.queue, exc)

    def restore_unacked(self) -> list[Any]:
        """Give back unsettled messages, untried."""
        self._intake.give_back_held()
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Nothing to do: the channel gives back what it has when it closes."""


class Channel(virtual.Channel):
    """A channel. Its queues are queues of cassq, or groups of the queue of an exchange."""

    QoS = QoS
    Message = ChannelMessage
    supports_fanout = True
    do_restore = False
    body_encoding = None

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self.options: TransportOptions = connection.options
        self.intake: ChannelPrefetch = ChannelPrefetch(connection.signal.set, self._opened)
        self._poppers: dict[str, Popper] = {}  # of `basic_get`
        super().__init__(connection, **kwargs)

    @property
    def broker(self) -> TransportBroker:
        """The broker of this process."""
        broker: TransportBroker = self.connection.broker
        return broker

    # --- declaring ------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = DEFAULT_TYPE,
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        super().exchange_declare(exchange, type, durable, auto_delete, arguments, nowait, passive)
        if not passive:
            self.connection.exchanges.types[exchange or f"amq.{type}"] = type or DEFAULT_TYPE

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        arguments = dict(kwargs.get("arguments") or {})
        temporary = bool(
            kwargs.get("auto_delete") or kwargs.get("exclusive") or "x-expires" in arguments
        )
        old = self.connection.declared.get(queue)
        bindings = old.bindings if old is not None else {}
        self.connection.declared[queue] = Declared(arguments, temporary, bindings)
        if not temporary:
            self._queue(queue)

    def _declared(self, queue: str) -> Declared:
        return self.connection.declared.get(queue) or Declared()

    def _queue(self, queue: str) -> Queue:
        """The cassq queue for this kombu name, created if it does not exist."""
        broker, name = self.broker, queue_name(queue, self.options.prefix)
        found = broker.known(name)
        if found is None:
            settings = settings_of(self.options, self._declared(queue).arguments)
            found = broker.queue(name, settings)
        return found

    def _find(self, queue: str) -> Queue | None:
        return self.broker.find(queue_name(queue, self.options.prefix))

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self.connection.declared or self._find(queue) is not None

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        exchange = exchange or f"amq.{DEFAULT_TYPE}"
        declared = self._declared(queue)
        self.state.binding_declare(queue, exchange, routing_key, arguments)
        exchanges = self.connection.exchanges
        if not declared.temporary:
            exchanges.bind(self.broker, exchange, routing_key or "", queue)
            return
        keys = declared.bindings.setdefault(exchange, [])
        if routing_key not in keys:
            keys.append(routing_key or "")
        exchanges.join(self.broker, exchange, queue, declared)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **kwargs: Any,
    ) -> None:
        exchange = exchange or f"amq.{DEFAULT_TYPE}"
        self.state.binding_delete(queue, exchange, routing_key)
        declared = self._declared(queue)
        if declared.temporary:
            keys = declared.bindings.get(exchange, [])
            if routing_key in keys:
                keys.remove(routing_key)
        else:
            self.connection.exchanges.unbind(self.broker, exchange, queue, routing_key)

    def list_bindings(self) -> Any:
        return [(key.queue, key.exchange, key.routing_key) for key in list(self.state.bindings)]

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        if if_empty and self._size(queue):
            return
        bound = {each.exchange for each in self.state.queue_bindings(queue)}
        self.state.queue_bindings_delete(queue)
        declared = self._declared(queue)
        self.connection.declared.pop(queue, None)
        for exchange in declared.bindings:
            self.connection.exchanges.leave(self.broker, exchange, queue)
        for exchange in () if declared.temporary else bound:
            self.connection.exchanges.unbind(self.broker, exchange, queue)
        self._delete(queue)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        name = queue_name(queue, self.options.prefix)
        try:
            if self.broker.find(name) is not None:
                self.broker.client.delete_queue(name)
        except QueueNotFoundError:
            return  # others were quicker
        finally:
            self.broker.forget(name)

    def _size(self, queue: str) -> int:
        """How many messages wait, including those that are not due yet."""
        found = self._find(queue)
        return 0 if found is None else sum(found.count_waiting(DEFAULT_GROUP).values())

    def _purge(self, queue: str) -> int:
        found = self._find(queue)
        return 0 if found is None else sum(found.purge(DEFAULT_GROUP).values())

    # --- publishing -----------------------------------------------------------------------------

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: str,
        routing_key: str,
        batch: PublishBatch | None = None,
        **kwargs: Any,
    ) -> None:
        """Durable on return, unless it is part of a batch, or `confirm_publish` is off."""
        info = message["properties"].setdefault("delivery_info", {})
        info.update(exchange=exchange, routing_key=routing_key)
        if not exchange:
            self._put(routing_key, message, batch)
            return
        broker, exchanges = self.broker, self.connection.exchanges
        for queue in exchanges.matching(broker, exchange, routing_key or ""):
            self._put(queue, message, batch)
        if exchange.endswith(".pidbox"):
            cancel_revoked(broker, message)
        if exchanges.has_groups(broker, exchange):
            payload, headers = packed(message)
            of_exchange = broker.exchange_queue(exchange, self.options)
            # Not waited for: those that listen now get it, and nobody needs it on disk.
            soon = broker.pusher(of_exchange).push_soon(payload, headers=headers)
            soon.add_done_callback(log_failure)

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """The batch that `kombu.Producer.batch` publishes to."""
        return PublishBatch(self, max_size)

    def _put(
        self,
        queue: str,
        message: Mapping[str, Any],
        batch: PublishBatch | None = None,
        **kwargs: Any,
    ) -> None:
        payload, headers = packed(message)
        broker, found = self.broker, self._queue(queue)
        due = self._due(found, message)
        priority = 0 if broker.is_strict(found) else self._get_message_priority(message)
        pusher = broker.pusher(found)
        batch = batch or batch_of_thread()
        confirms = self.options.confirm_publish
        if batch is not None and batch.of_group and not confirms:
            batch = None
        if batch is None and confirms:
            message_id = pusher.push(payload, headers=headers, due=due, priority=priority)
            if due is not None:
                note_waiting(broker, message, found.name, message_id, due)
            return
        future = pusher.push_soon(payload, headers=headers, due=due, priority=priority)
        if due is not None:
            future.add_done_callback(partial(note_published, broker, message, found.name, due))
        if batch is not None:
            batch.add(future)
        else:
            future.add_done_callback(log_failure)

    def _due(self, queue: Queue, message: Mapping[str, Any]) -> datetime | None:
        try:
            due = due_of(message, self.broker.now())
        except (ValueError, TypeError):
            logger.warning(
                "the eta %r is not a time: pushed without delay", message["headers"]["eta"]
            )
            return None
        if due is not None and self.broker.is_strict(queue):
            self.broker.warn_strict(queue)
            return None
        return due

    # --- consuming ------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.intake.consume(queue, self._open_poppers(queue), no_ack=no_ack)

    def _open_poppers(self, queue: str) -> list[Popper]:
        declared, keep_alive = self._declared(queue), self.options.visibility_timeout
        if not declared.bindings:
            return [self.broker.popper(self._queue(queue), DEFAULT_GROUP, keep_alive)]
        found = []
        for exchange in declared.bindings:
            self.connection.exchanges.join(self.broker, exchange, queue, declared)
            of_exchange = self.broker.exchange_queue(exchange, self.options)
            found.append(self.broker.popper(of_exchange, queue_name(queue), keep_alive))
        return found

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        takers = self.intake.cancel(queue)
        declared = self.connection.declared.get(queue)
        if declared is not None and declared.temporary:
            for fetcher in takers:
                fetcher.close()
            self.queue_delete(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        try:
            taken = self._get_taken(queue)
        except Empty:
            return None
        if no_ack:
            taken.message.ack()
        else:
            self.intake.hold(taken)
        return self.Message(taken.raw, channel=self)

    def _get_taken(self, queue: str) -> Taken:
        popper = self._poppers.get(queue)
        if popper is None:
            popper = self._poppers[queue] = self._open_poppers(queue)[0]
        for message in popper.pop():
            taken = self._opened(queue, message, popper)
            if taken is not None:
                return taken
            message.ack()
        raise Empty

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        taken = self._get_taken(queue)
        self.intake.hold(taken)
        return taken.raw

    def _opened(self, queue: str, message: Popped, popper: Popper) -> Taken | None:
        """The delivery of a popped message; None if the queue's bindings do not match it, or it is
        older than the queue's TTL."""
        tag = next(_tags)
        raw = unpacked(message.payload, message.headers, tag, message.attempts > 1)
        declared = self._declared(queue)
        if declared.bindings:
            info = raw["properties"]["delivery_info"]
            exchange, key = info.get("exchange", ""), info.get("routing_key") or ""
            kind = self.connection.exchanges.types.get(exchange, DEFAULT_TYPE)
            if not any(matches(kind, each, key) for each in declared.bindings.get(exchange, [])):
                return None
            age_ms = self.broker.clock.wall_ms() - message.pushed_ms
            if declared.ttl_ms and age_ms > declared.ttl_ms:
                return None
        return Taken(queue, tag, message, popper, raw)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        self.connection.drain_events(self.connection, timeout=timeout)

    def deliver_next(self) -> bool:
        """Deliver one message that was taken; False if no message was."""
        taken = self.intake.next()
        if taken is None:
            return False
        self.connection._deliver(taken.raw, taken.queue)
        return True

    def close(self) -> None:
        if not self.closed and self.connection is not None:
            if self.connection.is_ours:
                self.intake.close()
                for popper in self._poppers.values():
                    popper.close()
            else:  # made before a fork: it belongs to the parent
                self._consumers.clear()
        super().close()
