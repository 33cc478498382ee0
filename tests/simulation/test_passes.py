"""A crash of the reaper between any two steps of a pass is healed by the next pass.

Each pass is run over what a crowd that died has left, and ended after its first step that leaves a
trace (a commit, a write, a sync, a name), after its second, and so on; by a crash, or a power cut.
Then two reapers run it side by side: nothing may be left for it to do, the ledger must balance, and
everything must come out as if nothing had happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest

from cassq.message.frames import Place
from cassq.model.rows import Claim, ClaimState, Cursor
from cassq.reaper import Reaper
from tests.simulation.actors.client import SteppedClient
from tests.simulation.plants import wrong_parts
from tests.simulation.run import run_world
from tests.simulation.worlds.scenario import Scenario, draw_scenario
from tests.simulation.worlds.scheduler import CalmProcess, Process
from tests.simulation.worlds.simdisk import SimDisk
from tests.simulation.worlds.world import World

SEED = 11
FUEL = 1 << 40
PASSES = ("seal", "mend", "rollback", "retire", "expire", "scale", "rollup", "sweep")
# What there is nothing to do for in what this crowd leaves, or always is.
IDLE = ("scale", "rollup")


_ROW = " WHERE group_id = ? AND pipe_id = ? AND start_seq = ?"


class TracedDisk(SimDisk):
    """Tells of every call that leaves a trace."""

    def _traced(self, name: str, *args: Any) -> Any:
        done = getattr(SimDisk, name)(self, *args)
        if self._process.doomed:
            self._process.steps.append(FUEL - self._process.fuel)  # type: ignore[attr-defined]
        return done


for _name in ("pwritev", "sync", "sync_data", "sync_directory", "unlink", "rename", "create"):
    setattr(TracedDisk, _name, partialmethod(TracedDisk._traced, _name))


class Untended(SteppedClient):
    """Leaves everything to the reaper."""

    def maintain(self) -> None:
        """Nothing is done in passing."""


def _scenario(name: str) -> Scenario:
    drawn = draw_scenario(random.Random(SEED), ["ap", "cp"])
    spent = name == "rollback"  # what is given up is, by the pass
    size = 1 if spent else 3
    policy = {
        name: settings
        | {"claim_timeout": 0.5, "max_deliveries": size, "lease": 0.5, "max_pushes_per_pipe": 3,
           "max_claim_messages": size, "idle_seal": 60.0, "dedup_window": 0.5,
           "max_length": 12, "overflow": "drop-oldest", "message_ttl": 60.0}
        for name, settings in drawn.policy.items()
    }  # fmt: skip
    return replace(
        drawn, policy=policy, groups={"ap": [], "cp": []}, switches=150, messages=16, cuts=0,
        roles={"pusher": 2, "popper": 1, "reaper": 0, "founder": 0, "visitor": 0},
        crash_rate=0.0, pause_rate=0.0, fault_rate=0.0, jump_rate=0.0, delayed=0.0, poison=0.4,
        clumsiness=0.9 if spent else 0.3, fuel=(1, 40), catalog_lost=False, dedup=0.2,
    )  # fmt: skip


class Wreck(World):
    """What a crowd has left, and a reaper that ends after so many steps of one pass."""

    client_class = Untended
    disk_class = TracedDisk
    spoil: Callable[[SteppedClient], None] = staticmethod(lambda client: None)

    def __init__(self, name: str, fuel: int = FUEL, *, cut: bool = False) -> None:
        super().__init__(SEED, _scenario(name))
        self._name = name
        self._fuel = fuel
        self._cut = cut
        self.steps: list[int] = []  # the fuel that was used up to each
        self.actions: list[Any] = []
        self.ended_early = False

    def go_on(self) -> None:
        scheduler = self.scheduler
        while scheduler.switches < self.scenario.switches and scheduler.step():
            pass
        self.healing = True  # nobody is started again
        for process in list(scheduler.processes):
            scheduler.crash(process, noted=False)
        scheduler.clock.advance(1.0)
        if self._name == "expire":
            scheduler.clock.advance(60.0)
        if self._name == "sweep":
            self._leave_files()
        if self._name == "mend":
            self._wedge()
        self.commits.keeping = self._cut
        reaper = scheduler.start("reaper", self._reap_until)
        self._run_all()
        self.ended_early = reaper.doomed
        if self.ended_early and self._cut:
            self.cuts_left = 1
            self.cut_power()
        self._reap_side_by_side()

    def _run_all(self) -> None:
        while self.scheduler.processes:
            self.scheduler.step()

    def _leave_files(self) -> None:
        """Retire, and crash before the files are removed."""
        client = self.open_client(CalmProcess(self.scheduler, "retirer"))
        client.ports.store.drop = lambda pipe_ids: None  # type: ignore[method-assign]
        client.ports.catalog.pipes.forget = lambda pipe_ids: None  # type: ignore[method-assign]
        self._reap(client, ("seal", "rollback", "retire"))

    def _wedge(self) -> None:
        """Take claim rows away, and have others reach into what follows them, as a transaction that
        was entered twice has done. What goes was delivered once: how often goes with it."""
        database = self.commits.connection
        rows = database.execute(
            "SELECT group_id, pipe_id, start_seq, end_seq, deliveries FROM claims"
            " ORDER BY pipe_id, group_id, start_seq"
        ).fetchall()
        for number, (group_id, pipe_id, start, end, deliveries) in enumerate(rows):
            key = (group_id, pipe_id, start)
            if number % 2 == 0 and deliveries == 1:
                database.execute("DELETE FROM claims" + _ROW, key)
            else:
                database.execute("UPDATE claims SET end_seq = ?" + _ROW, (end + 1, *key))

    def _reap(self, client: SteppedClient, only: Collection[str], **how: bool) -> list[Any]:
        return client.reaper.reap([queue._row for queue in client.queues()], only=only, **how)

    def _reap_until(self, process: Process) -> None:
        client = self.open_client(process)
        rows = [queue._row for queue in client.queues()]
        process.steps = self.steps  # type: ignore[attr-defined]
        self.spoil(client)
        process.doom(self._fuel)
        watch = self.commits.watch

        def note() -> None:
            if self.commits.committer is process:
                self.steps.append(FUEL - process.fuel)
            watch()

        self.commits.watch = note
        self.actions = client.reaper.reap(rows, only=(self._name,))
        process.spare()

    def _reap_side_by_side(self) -> None:
        def reap(process: Process) -> None:
            client = self.open_client(process)
            self.spoil(client)
            self._reap(client, (self._name,))

        # Who is taken for a mover at work, may take his time.
        self.scheduler.clock.advance(31.0)
        for number in range(2):
            self.scheduler.start(f"next{number}", reap)
        self._run_all()
        client = self.open_client(CalmProcess(self.scheduler, "looker"))
        if self._name not in IDLE:
            left = [
                action
                for action in self._reap(client, (self._name,), dry_run=True)
                if action.verb != "expire"  # it looks again and again, whatever there is
            ]
            assert not left, f"{self._name} leaves {left}"


def _first_failure(name: str, *, cut: bool, spoil: Any = None) -> str:
    """End the pass after each of its steps; why it was not healed, if it was not."""
    whole = _wreck(name, FUEL, False, spoil)
    failure = run_world(whole)
    if failure is not None:
        return f"{name}, after the crash of others: {failure}"
    assert whole.actions or name in IDLE, f"there was nothing to {name}"
    for number, used in enumerate([0, *whole.steps]):
        wreck = _wreck(name, used + 1, cut, spoil)
        failure = run_world(wreck)
        if failure is not None:
            return f"{name}, ended after {number} of {len(whole.steps)} steps: {failure}"
        assert wreck.ended_early or number == len(whole.steps)
    return ""


def _wreck(name: str, fuel: int, cut: bool, spoil: Any) -> Wreck:
    wreck = Wreck(name, fuel, cut=cut)
    wreck.spoil = spoil or wreck.spoil
    return wreck


@pytest.mark.parametrize("cut", [False, True], ids=["crash", "power-cut"])
@pytest.mark.parametrize("name", PASSES)
def test_a_crash_between_any_two_steps_is_healed_by_the_next_pass(name: str, cut: bool) -> None:
    assert _first_failure(name, cut=cut) == ""


def _buries_twice(client: SteppedClient) -> None:
    """Who finds a burial half done does not look whether the letter arrived."""
    add = wrong_parts.BuriesTwice(client.ports, client._append_to).add
    client.runtime.online().reaper = Reaper(client.ports, add)


def _forgets_first(client: SteppedClient) -> None:
    """Retired pipes are forgotten before their files are removed: run to its end it passes."""
    store, catalog = client.ports.store, client.ports.catalog
    drop, forget = store.drop, catalog.pipes.forget

    def wrong(pipe_ids: Sequence[str]) -> None:
        forget(pipe_ids)
        drop(pipe_ids)

    store.drop = wrong  # type: ignore[method-assign]


def _gives_gaps_up(client: SteppedClient) -> None:
    """What no claim row covers is taken to be done."""
    catalog = client.ports.catalog
    mend = catalog.claims.mend

    def wrong(cursor: Cursor, old: Sequence[Claim], new: Sequence[Claim], chain: Place) -> bool:
        there = {row.version for row in old}
        rows = [row if row.version in there else replace(row, state=ClaimState.DONE) for row in new]
        return mend(cursor, old, rows, chain)

    catalog.claims.mend = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("name", "spoil"),
    [("rollback", _buries_twice), ("retire", _forgets_first), ("mend", _gives_gaps_up)],
)
def test_a_pass_that_does_not_stand_a_crash_is_caught(name: str, spoil: Any) -> None:
    """By the crash of the reaper, or of the crowd before it."""
    assert "BrokenPromiseError" in _first_failure(name, cut=False, spoil=spoil)
