"""An outbox in a file of SQLite: written in transactions, and forwarded by a relay."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from time import perf_counter

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.outbox.relay import Relay

SECONDS_MAX = 300.0
AT_ONCE = 1_000


def pass_through(_gate: Gate, seat: Seat, count: int) -> Figures:
    """Write messages, in large transactions and in small ones, and forward all of them."""
    directory = seat.place.directory.resolve()
    path, payloads = directory / "app.db", chunk(seat.place.size, AT_ONCE)
    with (
        closing(sqlite3.connect(path)) as connection,
        cassq.connect(f"file://{directory / 'queues'}") as client,
        Relay(client, str(path)) as relay,
    ):
        connection.execute("PRAGMA journal_mode=WAL")
        cassq.Outbox.create(connection)
        connection.commit()
        outbox = cassq.Outbox(connection)
        started = perf_counter()
        for _ in range(count // AT_ONCE):
            outbox.push_many("jobs", payloads)
            connection.commit()
        many = rate(count, perf_counter() - started)
        single = count // 100
        started = perf_counter()
        for _ in range(single):
            outbox.push("jobs", payloads[0])
            connection.commit()
        one = rate(single, perf_counter() - started)
        queue, total = client.create_queue("jobs"), count // AT_ONCE * AT_ONCE + single
        started = perf_counter()
        forwarded = relay.forward().forwarded
        relayed = rate(forwarded, perf_counter() - started)
        if queue.stats().pushed != total:
            raise LostMessagesError(f"{queue.stats().pushed} of {total} messages are there")
    return {"many": many, "one": one, "relayed": relayed, "messages": total}


class InOutbox(Scenario):
    name = "outbox"
    title = "An outbox in SQLite: written in transactions, and forwarded"
    headline = "relayed"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("outbox", "messages of 100 B, one relay")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("many", f"written/s, {AT_ONCE:,} in a transaction", "rate"),
            Column("one", "one in a transaction", "rate"),
            Column("relayed", "forwarded/s", "rate"),
            Column("messages", "messages", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_through, (seat, plan.outbox_messages))], SECONDS_MAX)[0]
