"""The gateway and other servers of SQS' protocol under the same raw client."""

from __future__ import annotations

from typing import Any

from bench.measuring.children import Figures, Job, Seat, run
from bench.peers.peer import Peer
from bench.plan import Plan
from bench.scenarios.backlog import shown
from bench.scenarios.gateway.load import (
    CONNECTIONS,
    GROUPS,
    FifoLoad,
    Load,
    after_leaving,
    at_backlogs,
    in_loop,
    latency,
    throughput,
)
from bench.scenarios.scenario import Case, Column, Scenario
from bench.servers.sqs import client_core

SECONDS_MAX = 900.0
OWN = "cassq-gateway"
BODY_BYTES = 300
# A peer that cannot keep up at all would only be measured waiting.
LATENCY_PEERS = (OWN, "elasticmq", "elasticmq-stored")
# A peer that is not made for backlogs does not answer at all if more wait in a FIFO queue.
SHALLOWER = 10


class OverSqs(Scenario):
    name = "gateway"
    title = "By the protocol of SQS: one server process on one core, its client on the other"
    headline = "batch"
    own = OWN
    peers = ("elasticmq", "elasticmq-stored", "moto")

    def cases(self, plan: Plan) -> list[Case]:
        return [
            Case(
                "gateway",
                f"messages of {BODY_BYTES} B from {CONNECTIONS} raw keep-alive connections; µs are"
                " the server's processor time for a message",
                size=BODY_BYTES,
            ),
            Case(
                "gateway-fifo",
                f"the same on FIFO queues, with a deduplication id for each message and {GROUPS:,}"
                " groups",
                size=BODY_BYTES,
            ),
            Case(
                "gateway-backlog",
                "receive and delete in tens, messages a second, by how many wait",
                size=BODY_BYTES,
            ),
            Case(
                "gateway-fifo-backlog",
                f"the same on FIFO queues of {GROUPS:,} groups",
                size=BODY_BYTES,
            ),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("send", "SendMessage/s", "rate"),
            Column("send_us", "µs", "rate"),
            Column("batch", "batches of ten, messages/s", "rate"),
            Column("batch_us", "µs", "rate"),
            Column("receive", "received and deleted in tens/s", "rate"),
            Column("receive_us", "µs", "rate"),
            Column("plain_push", "/v1 pushed in thousands/s", "rate"),
            Column("plain_pop", "/v1 received and acked in thousands/s", "rate"),
            Column("p50_ms", f"send to long poll at {plan.latency_rate}/s, p50 ms", "ms"),
            Column("p99_ms", "p99 ms", "ms"),
            Column(
                "leave_ms", "until another has what a client that left waited for, most ms", "ms"
            ),
            *(
                Column(f"pop@{count}", f"{shown(count)} wait", "rate")
                for count in plan.gateway_backlogs
            ),
            Column("held", "deepest over shallowest", "ratio"),
            Column("server_rss_bytes", "server MB", "MB"),
        ]

    def takes_part(self, case: Case, peer: type[Peer]) -> bool:
        """One that is too slow to have a backlog has none."""
        traits = peer.traits
        slow = case.key == "gateway-backlog" and not traits.batches
        shallow = case.key == "gateway-fifo-backlog" and not traits.deep
        return super().takes_part(case, peer) and not (slow or shallow)

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        deep = seat.peer_class().traits.deep
        kind = FifoLoad if case.key.startswith("gateway-fifo") else Load
        if case.key.endswith("-backlog"):
            backlogs = plan.gateway_backlogs if deep else plan.gateway_backlogs[:1]
            window, rounds = plan.gateway_window, plan.backlog_rounds
            return _run(at_backlogs, seat, backlogs, window, rounds, kind)
        if kind is FifoLoad:
            waiting = plan.gateway_window if deep else plan.gateway_window // SHALLOWER
            return _run(throughput, seat, plan.gateway_s, FifoLoad, waiting)
        figures = _run(throughput, seat, plan.gateway_s)
        if seat.peer_name in LATENCY_PEERS:
            figures.update(_run(latency, seat, plan.latency_rate, plan.latency_s))
        if seat.peer_name == OWN:
            figures.update(_run(after_leaving, seat))
        return figures


def _run(*given: Any) -> Figures:
    """Work of the load, in a process on the clients' core."""
    return run([Job(in_loop, given, client_core())], SECONDS_MAX)[0]
