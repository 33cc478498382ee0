"""The transport of kombu: queues, exchanges, prefetch limits, settling, and what waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, ContentDisallowed, DecodeError

from cassq.errors import BackendUnavailableError
from cassq.kombu.batches import PublishBatch, batch, batch_of_thread
from cassq.kombu.brokers import broker_of
from cassq.message.message_ids import MessageId
from tests.integration.deadlines import eventually

pytestmark = pytest.mark.embedded_only(reason="exchanges and groups are the same on each catalog")


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url, transport="cassq.kombu:Transport") as opened:
        yield opened
    broker_of(url).client.close()


class Reader:
    """Consumes queues of a connection, and keeps what comes."""

    def __init__(self, connection: Connection, *queues: Queue, limit: int = 0, **how: Any) -> None:
        self._connection = connection
        self.messages: list[Any] = []
        self._consumer = Consumer(
            connection.channel(), queues, on_message=self.messages.append, **how
        )
        self._consumer.qos(prefetch_count=limit)
        self._consumer.consume()

    def read(self, count: int) -> list[Any]:
        """The payloads once there are `count`, and as many more as come within a moment."""
        while len(self.messages) < count:
            self._connection.drain_events(timeout=60)
        try:
            while True:
                self._connection.drain_events(timeout=0.1)
        except TimeoutError:
            return [message.decode() for message in self.messages]

    def close(self) -> None:
        self._consumer.cancel()
        self._consumer.channel.close()


def publish(connection: Connection, body: Any, queue: str = "jobs", **how: Any) -> None:
    connection.Producer().publish(body, routing_key=queue, **how)


def test_messages_of_a_queue_come_in_order_and_once(connection: Connection) -> None:
    for number in range(5):
        publish(connection, {"number": number})
    reader = Reader(connection, Queue("jobs"))
    assert reader.read(5) == [{"number": number} for number in range(5)]
    assert not any(message.delivery_info["redelivered"] for message in reader.messages)
    for message in reader.messages:
        message.ack()
    reader.close()
    assert Queue("jobs").bind(connection.channel()).queue_declare(passive=True).message_count == 0


def test_a_prefetch_limit_holds_until_messages_are_acked(connection: Connection) -> None:
    for number in range(5):
        publish(connection, number)
    reader = Reader(connection, Queue("jobs"), limit=2)
    assert reader.read(2) == [0, 1]
    reader.messages[0].ack()
    assert reader.read(3) == [0, 1, 2]
    reader.close()
    again = Reader(connection, Queue("jobs"))
    assert sorted(again.read(4)) == [1, 2, 3, 4]
    assert not any(message.delivery_info["redelivered"] for message in again.messages)


def test_requeued_messages_come_again_and_rejected_ones_are_dead_letters(
    connection: Connection, url: str
) -> None:
    publish(connection, "again")
    publish(connection, "bad")
    reader = Reader(connection, Queue("jobs"))
    reader.read(2)
    reader.messages[0].requeue()
    reader.messages[1].reject()
    assert reader.read(3)[2] == "again"
    assert reader.messages[2].delivery_info["redelivered"]
    reader.messages[2].ack()
    reader.close()
    letters = broker_of(url).client.queue("jobs").dead_letters().peek()
    assert [letter.death["error"] for letter in letters] == ["rejected"]


@pytest.mark.parametrize("how", [{}, {"headers": {"compression": "application/x-gzip"}}])
def test_what_cannot_be_decoded_is_a_dead_letter_when_it_is_acked(
    connection: Connection, url: str, how: dict[str, Any]
) -> None:
    text = {"content_type": "application/json", "content_encoding": "utf-8"}
    publish(connection, "{broken", **text, **how)
    reader = Reader(connection, Queue("jobs"), on_decode_error=lambda message, exc: message.ack())
    letters = broker_of(url).client.queue("jobs").dead_letters()

    def is_dead() -> bool:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.05)
        for message in reader.messages:
            if not message.acknowledged:
                with pytest.raises(DecodeError):
                    message.decode()
                message.ack()
        return bool(letters.peek())

    eventually("it is dead", is_dead)
    (letter,) = letters.peek()
    assert letter.death["error"].startswith("it cannot be decoded: ")


def test_what_is_decoded_at_the_second_attempt_is_acked(connection: Connection, url: str) -> None:
    publish(connection, [1], serializer="pickle")
    reader = Reader(connection, Queue("jobs"), accept=["json"])
    connection.drain_events(timeout=60)
    (message,) = reader.messages
    with pytest.raises(ContentDisallowed):
        message.decode()
    message.accept = {"application/x-python-serialize"}
    assert message.decode() == [1]
    message.ack()
    reader.close()
    stats = broker_of(url).client.queue("jobs").stats().groups["default"]
    assert (stats.committed, stats.dead) == (1, 0)


def test_the_most_urgent_comes_first(connection: Connection) -> None:
    for priority in (0, 9, 4, 99):
        publish(connection, priority, priority=priority)
    assert Reader(connection, Queue("jobs"), limit=9).read(4) in ([9, 99, 4, 0], [99, 9, 4, 0])


def test_each_queue_of_a_fanout_gets_a_copy(connection: Connection) -> None:
    news = Exchange("news", "fanout")
    stays = Queue("stays", news)
    stays.bind(connection.channel()).declare()
    fleeting = [Queue(name, news, auto_delete=True) for name in ("one", "two")]
    readers = [Reader(connection, queue, no_ack=True) for queue in fleeting]
    connection.Producer().publish("x", exchange=news)
    assert [reader.read(1) for reader in readers] == [["x"], ["x"]]
    assert Reader(connection, stays).read(1) == ["x"]


def test_topics_are_known_to_other_connections(connection: Connection, url: str) -> None:
    topics = Exchange("logs", "topic")
    stays = Reader(connection, Queue("all", topics, routing_key="log.#"))
    fleeting = Reader(connection, Queue("some", topics, routing_key="log.*", exclusive=True))
    with Connection(url, transport="cassq.kombu:Transport") as other:
        for key in ("log.a", "log.a.b", "other"):
            other.Producer().publish(key, exchange="logs", routing_key=key)
    assert stays.read(2) == ["log.a", "log.a.b"]
    assert fleeting.read(1) == ["log.a"]


def test_an_unbound_queue_gets_nothing_more(connection: Connection) -> None:
    exchange = Exchange("mails", "direct")
    bound = Queue("mails", exchange, routing_key="m").bind(connection.channel())
    bound.declare()
    connection.Producer().publish(1, exchange=exchange, routing_key="m")
    bound.unbind_from(exchange, routing_key="m")
    connection.Producer().publish(2, exchange=exchange, routing_key="m")
    assert Reader(connection, Queue("mails")).read(1) == [1]


def test_a_queue_that_ends_with_its_consumer_leaves_nothing(
    connection: Connection, url: str
) -> None:
    events = Exchange("events", "fanout")
    reader = Reader(connection, Queue("inbox", events, auto_delete=True))
    client = broker_of(url).client
    assert [group.name for group in client.queue("exchange.events").groups()] == ["inbox"]
    reader.close()
    assert client.queue("exchange.events").groups() == []
    connection.Producer().publish("nobody listens", exchange=events)
    assert client.queue("exchange.events").stats().pushed == 0


def test_purging_and_deleting(connection: Connection, url: str) -> None:
    for number in range(3):
        publish(connection, number)
    channel = connection.channel()
    assert channel.queue_declare("jobs").message_count == 3
    assert channel.queue_purge("jobs") == 3
    assert channel.queue_declare("jobs").message_count == 0
    channel.queue_delete("jobs")
    assert broker_of(url).client.queues() == []
    with pytest.raises(ChannelError, match="no queue 'jobs'"):
        channel.queue_declare("jobs", passive=True)


def test_a_task_with_an_eta_waits_in_its_queue_and_can_be_revoked(
    connection: Connection, url: str
) -> None:
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for name in ("late", "revoked"):
        publish(connection, name, headers={"eta": eta, "id": name})
    publish(connection, "now", headers={"eta": "no time"})
    reader = Reader(connection, Queue("jobs"))
    assert reader.read(1) == ["now"]
    command = {"method": "revoke", "arguments": {"task_id": ["revoked", "unknown"]}}
    connection.Producer().publish(command, exchange=Exchange("x.pidbox", "fanout"))
    stats = broker_of(url).client.queue("jobs").stats().groups["default"]
    assert (stats.delayed, stats.purged) == (1, 1)


def test_a_batch_is_published_when_it_ends(connection: Connection, url: str) -> None:
    with batch(), batch():
        for number in range(50):
            publish(connection, number)
    assert broker_of(url).client.queue("jobs").stats().pushed == 50


@pytest.mark.parametrize("most", [2, 100])
def test_a_batch_raises_the_first_error_once_all_others_are_published(most: int) -> None:
    class WaitedFor(Future[MessageId]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            waited.append(self)
            return super().exception(timeout)

    waited: list[Future[MessageId]] = []
    published = [WaitedFor() for _ in range(5)]
    for number, future in enumerate(published):
        if number in (1, 3):
            future.set_exception(BackendUnavailableError(f"error {number}"))
        else:
            future.set_result(MessageId("id"))
    together = PublishBatch(None, most)
    for future in published:
        together.add(future)
    with pytest.raises(BackendUnavailableError, match="error 1"):
        together.flush()
    assert waited == published
    together.flush()  # the error is raised once


def test_what_a_block_published_before_an_error_stays(connection: Connection) -> None:
    with pytest.raises(ZeroDivisionError), batch():
        publish(connection, 1)
        raise ZeroDivisionError
    assert Reader(connection, Queue("jobs")).read(1) == [1]
    publish(connection, 2)  # by itself again
    assert batch_of_thread() is None


@pytest.mark.skipif(not hasattr(Producer, "batch"), reason="kombu has batches since 5.7")
def test_a_batch_of_kombus_is_published_when_it_ends(connection: Connection, url: str) -> None:
    with connection.Producer().batch(max_size=20) as together:
        assert together
        for number in range(50):
            publish(connection, number)
    assert broker_of(url).client.queue("jobs").stats().pushed == 50


def test_a_forked_child_publishes_with_a_client_of_its_own(
    connection: Connection, url: str
) -> None:
    publish(connection, "parent")
    child = os.fork()
    if not child:
        status = 1
        try:
            publish(connection, "child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(Reader(connection, Queue("jobs")).read(2)) == ["child", "parent"]


def test_settings_of_a_new_queue_are_arguments_of_its_declaration(
    connection: Connection, url: str
) -> None:
    Queue("jobs", queue_arguments={"x-cassq-max-deliveries": 3}).bind(
        connection.channel()
    ).declare()
    policy = broker_of(url).client.queue("jobs").policy
    assert (policy.max_deliveries, policy.sick_check) == (3, True)


def test_a_cp_queue_takes_tasks_with_an_eta_at_once(connection: Connection, url: str) -> None:
    client = broker_of(url).client
    client.create_queue("jobs", consistency="cp")
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    publish(connection, "late", headers={"eta": eta, "id": "late"}, priority=5)
    assert Reader(connection, Queue("jobs")).read(1) == ["late"]


def test_what_a_dead_process_had_is_free_at_once(connection: Connection, url: str) -> None:
    publish(connection, "job")
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            with Connection(url, transport="cassq.kombu:Transport") as own:
                Reader(own, Queue("jobs")).read(1)
                os.write(writes, b"!")
                os.close(writes)
                os.kill(os.getpid(), 9)
        finally:
            os._exit(1)
    assert os.read(reads, 1) == b"!"
    os.waitpid(child, 0)
    reader = Reader(connection, Queue("jobs"))
    assert reader.read(1) == ["job"]
    assert reader.messages[0].delivery_info["redelivered"]


def test_the_file_of_a_dead_process_is_removed(connection: Connection, directory: Path) -> None:
    Reader(connection, Queue("jobs"))
    (directory / "consumers" / "dead").touch()
    eventually("it is removed", lambda: len(list((directory / "consumers").iterdir())) == 1)


def test_what_kombu_has_not_written_does_not_stop_a_consumer(
    connection: Connection, url: str
) -> None:
    queue = broker_of(url).client.create_queue("jobs")
    with queue.pusher() as pusher:
        pusher.push(b"{}", headers={"kombu": "no list"})
        pusher.push(b"\xff")
        pusher.push(b'{"a": 1}')
    assert Reader(connection, Queue("jobs")).read(1) == [{"a": 1}]
    eventually("both are dead letters", lambda: len(queue.dead_letters().peek()) == 2)
