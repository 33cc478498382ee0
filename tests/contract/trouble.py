"""A Cassandra session that counts what it is asked for, and gets into trouble when told to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cassq.cassandra.session import Row, Statement
from cassq.errors import BackendError, BackendTimeoutError
from tests.contract.cassandra_place import BorrowedCql, Keyspace

Trouble = Callable[[], str]


class Killed(BaseException):
    """The process ended here."""


def never() -> str:
    """No trouble."""
    return ""


def now_and_then(chance: random.Random, often: float) -> Trouble:
    """Conditional writes without an answer: some were applied, some were not. Never more than two
    after one another: then whoever tries would give up."""
    met: list[str] = []

    def draw() -> str:
        trouble = chance.choice(["applied", "lost"]) if chance.random() < often else ""
        if all(met[-2:]) and len(met) > 1:
            trouble = ""
        met.append(trouble)
        return trouble

    return draw


def in_turn(*troubles: str) -> Trouble:
    """The next conditional writes meet with these; "" is none. After them there is none."""
    left = list(troubles)
    return lambda: left.pop(0) if left else ""


class TroubledCql(BorrowedCql):
    """rounds: of each kind, since the last `clear`. together: how many conditional batches were
    sent side by side, each time; they are rounds, too.

    trouble: what becomes of the next conditional write: "applied" or "lost", both without an
    answer. before_reading: is called before each linearized read; before_round before each round
    of any kind. kill_at: the round, from 0, that is not begun any more.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        super().__init__(keyspace)
        self.rounds: Counter[str] = Counter()
        self.together: list[int] = []
        self.trouble: Trouble = never
        self.before_reading: Callable[[], None] = lambda: None
        self.before_round: Callable[[], None] = lambda: None
        self.kill_at: int | None = None

    def read_many(
        self, statements: Iterable[Statement], *, serial: bool = False
    ) -> list[list[Row]]:
        if serial:
            self.before_reading()
        found = list(statements)
        if found:
            self._count("serial read" if serial else "read")
        return super().read_many(found, serial=serial)

    def write_many(self, statements: Iterable[Statement]) -> None:
        found = list(statements)
        if found:
            self._count("write")
        super().write_many(found)

    def apply(self, text: str, values: Sequence[Any] = ()) -> tuple[bool, Row]:
        return self._troubled(lambda: super(TroubledCql, self).apply(text, values))

    def apply_batch(self, statements: Sequence[Statement]) -> bool:
        return self._troubled(lambda: super(TroubledCql, self).apply_batch(statements))

    def apply_many(self, statements: Iterable[Statement]) -> list[bool | None]:
        answers: list[bool | None] = []
        for text, values in statements:
            try:
                answers.append(self.apply(text, values)[0])
            except BackendTimeoutError:
                answers.append(None)
        return answers

    def apply_batches(self, batches: Iterable[Sequence[Statement]]) -> list[bool | None]:
        answers: list[bool | None] = []
        for statements in batches:
            try:
                answers.append(self.apply_batch(statements))
            except BackendTimeoutError:
                answers.append(None)
        return answers

    def answers_of(self, batches: Iterable[Sequence[Statement]]) -> list[bool | BackendError]:
        answers: list[bool | BackendError] = []
        self.together.append(0)
        for statements in batches:
            self.together[-1] += 1
            try:
                answers.append(self.apply_batch(statements))
            except BackendTimeoutError as exc:
                answers.append(exc)
        return answers

    def _troubled(self, act: Callable[[], Any]) -> Any:
        self._count("conditional")
        trouble = self.trouble()
        answer = act() if trouble != "lost" else None
        if trouble:
            raise BackendTimeoutError("no answer came", outcome_unknown=True)
        return answer

    def _count(self, kind: str) -> None:
        self.before_round()
        if self.kill_at is not None and self.rounds.total() >= self.kill_at:
            raise Killed()
        self.rounds[kind] += 1
