"""The relay: in order, each once, past queues that take nothing, and beside other relays."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

import cassq
from cassq.errors import BackendTimeoutError, BackendUnavailableError, ConfigError, UsageError
from cassq.outbox import relay as relaying
from cassq.outbox.database import OutboxDatabase, database_of
from cassq.outbox.relay import Relay
from cassq.outbox.sqlite import SqliteSession
from cassq.outbox.table import LandingPlace
from tests.integration.deadlines import eventually, joined
from tests.integration.outbox.databases import left
from tests.integration.stage import drain, numbers, payloads


def arrived(client: cassq.Client, queue: str = "jobs") -> list[bytes]:
    return payloads(drain(client.queue(queue).popper()))


@pytest.fixture
def relay(client: cassq.Client, queue: cassq.Queue, file: Path) -> Relay:
    """A relay to a client with the queue `jobs`."""
    return Relay(client, str(file), retry=0.01)


# --- order and number -----------------------------------------------------------------------


def test_each_queue_gets_its_messages_in_order(
    client: cassq.Client,
    relay: Relay,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
) -> None:
    client.create_queue("orders", consistency="cp")
    for number in numbers(200):
        outbox.push("jobs" if int(number) % 3 else "orders", number)
    outbox.push_many("jobs", numbers(20_000, 200))
    connection.commit()
    assert relay.forward().forwarded == 20_200
    assert arrived(client) == [n for n in numbers(20_200) if int(n) >= 200 or int(n) % 3]
    assert arrived(client, "orders") == numbers(200)[::3]
    assert left(file) == (0, 0)
    relay.close()


def test_large_messages_are_taken_a_few_at_a_time(
    client: cassq.Client, relay: Relay, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    outbox.push_many("jobs", [bytes([n]) * 3_000_000 for n in range(5)])
    connection.commit()
    assert len(relay._database.rows(8192, relaying.BYTES_MAX)) == 3
    assert relay.forward().forwarded == 5
    assert [payload[0] for payload in arrived(client)] == [0, 1, 2, 3, 4]
    relay.close()


def test_a_row_that_is_committed_late_is_not_missed(client: cassq.Client, postgres: str) -> None:
    import psycopg

    client.create_queue("jobs")
    with (
        psycopg.connect(postgres) as slow,
        psycopg.connect(postgres) as fast,
        Relay(client, postgres) as relay,
    ):
        cassq.Outbox(slow).push("jobs", b"late")  # it has the lower id
        cassq.Outbox(fast).push_many("jobs", [b"1", b"2"])
        cassq.Outbox(fast).push("jobs", b"3")
        fast.commit()
        assert relay.forward().forwarded == 3
        slow.commit()
        assert relay.forward().forwarded == 1
    assert arrived(client) == [b"1", b"2", b"3", b"late"]


def test_a_connection_to_postgresql_that_is_cut_is_opened_again(
    client: cassq.Client, postgres: str
) -> None:
    import psycopg

    client.create_queue("jobs")
    with psycopg.connect(postgres, autocommit=True) as mine, Relay(client, postgres) as relay:
        outbox = cassq.Outbox(mine)
        outbox.push_many("jobs", numbers(5000))
        relay.forward()
        outbox.push_many("jobs", numbers(10, 5000))
        mine.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        with pytest.raises(BackendUnavailableError):
            relay.forward()
        assert relay.forward().forwarded == 10
    assert sorted(arrived(client), key=int) == numbers(5010)


# --- queues that take nothing ---------------------------------------------------------------


def test_messages_for_a_queue_that_is_missing_wait_and_others_go_on(
    client: cassq.Client,
    relay: Relay,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in numbers(4):
        outbox.push("none" if int(number) % 2 else "jobs", number)
    connection.commit()
    for _ in range(2):
        done = relay.forward()
        assert done.stuck == {"none": "there is no queue 'none'"}
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "messages for queue 'none' wait in the outbox: there is no queue 'none' (create it with"
    )
    assert (arrived(client), left(file)) == ([b"0", b"2"], (2, 0))
    client.create_queue("none")
    assert eventually("it is tried again", lambda: relay.forward().forwarded) == 2
    assert (arrived(client, "none"), relay.forward().stuck) == ([b"1", b"3"], {})
    relay.close()


@pytest.mark.parametrize("why", ["paused", "full", "cp"])
def test_a_queue_that_refuses_messages_gets_them_later(
    client: cassq.Client,
    relay: Relay,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    why: str,
) -> None:
    mails = client.create_queue("mails", consistency="cp" if why == "cp" else "ap")
    outbox.push_many("mails", numbers(3))
    outbox.push_many("mails", numbers(3, 3), delay=60 if why == "cp" else None)
    outbox.push("jobs", b"other")
    connection.commit()
    match why:
        case "paused":
            mails.pause(pop=False)
        case "full":
            mails.update(max_length=2, overflow="reject")
    done = relay.forward()
    taken = {"paused": 0, "full": 2, "cp": 3}[why]
    assert (done.forwarded, list(done.stuck)) == (1 + taken, ["mails"])
    assert arrived(client) == [b"other"]
    match why:
        case "paused":
            mails.resume()
        case "full":
            mails.update(max_length=None)
        case "cp":
            connection.execute("UPDATE cassq_outbox SET due_ms = NULL")
            connection.commit()
    eventually("all are there", lambda: relay.forward() and left(file) == (0, 0))
    assert arrived(client, "mails") == numbers(6)
    relay.close()


@pytest.mark.parametrize(
    ("column", "value"), [("payload", "text"), ("headers", b"[]"), ("headers", b"\xff")]
)
def test_a_row_of_another_program_that_is_not_a_message_holds_up_those_behind_it(
    client: cassq.Client,
    relay: Relay,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    column: str,
    value: object,
) -> None:
    outbox.push_many("jobs", numbers(4))
    connection.execute(f"UPDATE cassq_outbox SET {column} = ? WHERE id = 3", (value,))
    connection.commit()
    done = relay.forward()
    assert done.forwarded == 2
    assert done.stuck["jobs"].startswith("row 3 of cassq_outbox is not a message")
    connection.execute("DELETE FROM cassq_outbox WHERE id = 3")
    connection.commit()
    assert eventually("it goes on", lambda: relay.forward().forwarded) == 1
    assert arrived(client) == [b"0", b"1", b"3"]
    relay.close()


def test_a_queue_that_is_created_again_gets_the_rest(
    client: cassq.Client, relay: Relay, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    outbox.push("jobs", b"old")
    connection.commit()
    relay.forward()
    client.delete_queue("jobs")
    client.create_queue("jobs")
    outbox.push("jobs", b"new")
    connection.commit()
    assert eventually("it goes on", lambda: relay.forward().forwarded) == 1
    assert arrived(client) == [b"new"]
    relay.close()


# --- errors ---------------------------------------------------------------------------------


class Failing(OutboxDatabase):
    """A database that fails once, before or after it has done what it was asked to."""

    def __init__(self, path: Path, step: str, *, after: bool) -> None:
        super().__init__(database_of(str(path))._session, "sqlite")
        self._step = step
        self._after = after

    def note(self, epoch: int, place: LandingPlace) -> None:
        self._once("note", lambda: super(Failing, self).note(epoch, place))

    def done(self, epoch: int, rows: object, places: object) -> None:
        self._once("done", lambda: super(Failing, self).done(epoch, rows, places))  # type: ignore[arg-type]

    def _once(self, step: str, act: object) -> None:
        fails, self._step = step == self._step, "" if step == self._step else self._step
        if fails and not self._after:
            raise BackendUnavailableError("planned")
        act()  # type: ignore[operator]
        if fails:
            raise BackendUnavailableError("planned")


@pytest.mark.parametrize("step", ["note", "done"])
@pytest.mark.parametrize("after", [False, True])
def test_an_error_at_any_step_doubles_nothing(
    client: cassq.Client,
    queue: cassq.Queue,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    step: str,
    after: bool,
) -> None:
    outbox.push_many("jobs", numbers(3))
    connection.commit()
    with Relay(client, Failing(file, step, after=after)) as relay:
        with pytest.raises(BackendUnavailableError, match="planned"):
            relay.forward()
        outbox.push("jobs", b"3")
        connection.commit()
        relay.forward()
    assert (arrived(client), left(file)) == (numbers(4), (0, 0))


def test_what_holds_the_database_is_waited_for(
    client: cassq.Client,
    queue: cassq.Queue,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
) -> None:
    relay = Relay(client, OutboxDatabase(SqliteSession(str(file), busy_seconds=0.01), "sqlite"))
    outbox.push("jobs", b"1")
    connection.commit()
    outbox.push("jobs", b"lost")
    with pytest.raises(BackendTimeoutError, match="locked"):
        relay.forward()
    connection.rollback()
    assert relay.forward().forwarded == 1
    assert arrived(client) == [b"1"]
    relay.close()


@pytest.mark.parametrize(
    ("dsn", "error"),
    [
        ("mysql://host/app", "there can be no outbox at mysql:"),
        ("sqlite://", "there can be no outbox at sqlite:"),
        ("absent.db", "there is no database absent.db"),
        ("", "must be named by a non-empty str"),
    ],
)
def test_what_is_not_a_database_is_refused(client: cassq.Client, dsn: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error), Relay(client, dsn) as relay:
        relay.forward()


def test_a_database_without_an_outbox_is_refused(client: cassq.Client, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").close()
    with Relay(client, str(tmp_path / "empty.db")) as relay:
        with pytest.raises(ConfigError, match="this database has no outbox"):
            relay.forward()
    with pytest.raises(UsageError, match="every"):
        Relay(client, "empty.db", every=0)


# --- running --------------------------------------------------------------------------------


def test_it_runs_in_a_thread_until_it_is_stopped(
    client: cassq.Client,
    queue: cassq.Queue,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
) -> None:
    relay = Relay(client, str(file), every=0.001)

    def run() -> None:
        with relay:
            relay.run()

    thread = threading.Thread(target=run)
    thread.start()
    with queue.popper() as popper:
        for number in numbers(3):
            outbox.push("jobs", number)
            connection.commit()
            (message,) = popper.pop(1, wait=60)
            assert message.payload == number
            message.ack()
    relay.stop()
    joined("the relay", thread)
    assert left(file) == (0, 0)


def test_while_one_leads_another_does_nothing(
    client: cassq.Client, relay: Relay, file: Path, connection: sqlite3.Connection,
    outbox: cassq.Outbox,
) -> None:  # fmt: skip
    assert relay.forward().leads
    outbox.push("jobs", b"1")
    connection.commit()
    with Relay(client, str(file)) as other:
        assert not other.forward().leads
        relay.close()  # it lets the other lead at once
        done = other.forward()
        assert (done.leads, done.forwarded) == (True, 1)
