"""On Cassandra: messages through one node, synced or as it comes, and through three nodes."""

from __future__ import annotations

from typing import ClassVar

from bench.measuring.children import Figures, Job, Seat, run
from bench.peers.peer import Peer
from bench.plan import SIZES, Plan
from bench.scenarios.scenario import Case, Scenario
from bench.scenarios.through import SECONDS_MAX, Through, pass_through

OWN = "cassq-cassandra"
KAFKA = ("kafka", "kafka-synced")
THREE = {"cassandra": "cassandra-three"}
PERIODIC = {"cassandra": "cassandra-periodic"}
# Three nodes have the same cores between them and each does all the work.
THREE_SHARE = 4
MESSAGES_MIN = 200


class OnCassandra(Through):
    name = "cassandra"
    title = "On Cassandra: push all, then pop and commit all, one process"
    own = OWN
    peers: ClassVar[tuple[str, ...]] = ("cassandra-rows", "cassandra-rows-batched", *KAFKA)

    def cases(self, plan: Plan) -> list[Case]:
        one, three, periodic = "one node", "three nodes, three replicas", "one node, not synced"
        # Next to each other what has the same servers.
        return [
            *(Case(f"cassandra/{size}", f"{one}, messages of {size:,} B", size) for size in SIZES),
            *(
                Case(f"cassandra/{key}/{size}", f"{what}, messages of {size:,} B", size, False, how)
                for key, what, how in (("periodic", periodic, PERIODIC), ("three", three, THREE))
                for size in SIZES
            ),
        ]

    def takes_part(self, case: Case, peer: type[Peer]) -> bool:
        return Scenario.takes_part(self, case, peer)

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        share = THREE_SHARE if case.instead == THREE else 1
        count = plan.messages_for(case.size, batches=True) // share
        count = max(count // seat.peer_class().traits.slowness, MESSAGES_MIN)
        return run([Job(pass_through, (seat, count))], SECONDS_MAX)[0]
