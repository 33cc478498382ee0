"""A scenario: what is asked of every peer, and the columns its figures make."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from bench.measuring.children import Figures, Seat
from bench.peers.peer import Peer
from bench.plan import Plan

Unit = Literal["rate", "s", "ms", "MB", "share", "ratio"]


@dataclass(frozen=True)
class Case:
    """One table of a scenario: the same work for all peers, in all rounds."""

    key: str
    title: str
    size: int = 100
    one_core: bool = False
    # Servers that stand in for those that peers name, and run during their scenario only.
    instead: Mapping[str, str] = field(default_factory=dict)
    # Messages of varied length, which are read one by one.
    varied: bool = False


@dataclass(frozen=True)
class Column:
    """One figure of a case, as the table shows it."""

    figure: str
    title: str
    unit: Unit


class Scenario(abc.ABC):
    """One kind of work."""

    name: ClassVar[str]
    title: ClassVar[str]
    # The figure that tells most; whether its table compares cassq with each peer by it, and which
    # way is better.
    headline: ClassVar[str]
    compared: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = True
    # The peer that is cassq here; whether it is measured alone, or beside certain others only.
    own: ClassVar[str] = "cassq"
    alone: ClassVar[bool] = False
    peers: ClassVar[tuple[str, ...]] = ()
    # Whether the others are measured only to be held against it.
    needs_own: ClassVar[bool] = False
    # What one measurement measures beside one another: a row of the table each, by the prefix of
    # its figures.
    parts: ClassVar[Mapping[str, str]] = {}
    # Whether `reference` is measured once a round.
    has_reference: ClassVar[bool] = False

    @abc.abstractmethod
    def cases(self, plan: Plan) -> list[Case]:
        """The tables, in order."""

    @abc.abstractmethod
    def columns(self, plan: Plan) -> list[Column]:
        """What the tables show."""

    @abc.abstractmethod
    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        """Let one peer do the work once."""

    def reference(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        """The same work without any queue, to hold the others against."""
        raise NotImplementedError(f"{self.name} has no reference")

    def rounds(self, plan: Plan) -> int:
        return plan.rounds

    def takes_part(self, case: Case, peer: type[Peer]) -> bool:
        if self.alone or self.peers:
            return peer.name == self.own or peer.name in self.peers
        return not peer.traits.only or self.name in peer.traits.only
