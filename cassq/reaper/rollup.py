"""The rollup pass: samples every queue once a minute, for the history.

With very many queues, a run samples as many as its time allows, and the next run continues. On
networked catalogs several queues are sampled concurrently.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cassq.errors import BackendError, CorruptionError
from cassq.inspect import history
from cassq.inspect.history import EVERYTHING, MINUTE_MS
from cassq.lifecycle.ports import Ports
from cassq.model.rows import Sample
from cassq.reaper.actions import DONE, FAILED, PLANNED, Action, Pass, Scope

logger: logging.Logger = logging.getLogger("cassq")

AT_ONCE = 8


class Rollup(Pass):
    """Samples the queues that were not yet sampled in this minute, for about `patience` seconds."""

    name = "rollup"

    def __init__(self, ports: Ports, patience: Callable[[], float]) -> None:
        super().__init__(ports)
        self._patience = patience
        self._minute_ms = -1
        self._left: Sequence[str] = ()

    def _look(self, scope: Scope) -> Sequence[str]:
        """The ids of the queues that still need a sample. Cost: one read; the first time in a
        minute, also a listing of all queues."""
        catalog = self._ports.catalog
        if scope.ids is not None:
            return scope.ids
        minute_ms = catalog.now_ms() // MINUTE_MS * MINUTE_MS
        if catalog.records.samples(EVERYTHING, MINUTE_MS, minute_ms):
            return ()
        if self._minute_ms != minute_ms:
            self._minute_ms = minute_ms
            queues = [queue.id for queue in catalog.queues.listed()]
            # Each minute begins with another queue, in case no run reaches the end.
            first = minute_ms // MINUTE_MS * 997 % len(queues) if queues else 0
            self._left = [*queues[first:], *queues[:first]]
        return self._left

    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        """Cost: for each queue, one read if it was already sampled, else its statistics and one
        write."""
        clock = self._ports.clock
        until_ms = clock.boot_ms() + self._patience() * 1000
        queues = self._look(scope)
        left, actions = deque(queues), list[Action]()

        def sample() -> None:
            is_first = True
            while left and (is_first or clock.boot_ms() < until_ms):
                is_first = False
                try:
                    queue_id = left.popleft()
                except IndexError:
                    return  # another thread took the last queue
                actions.extend(self._sample(queue_id, dry_run=dry_run))

        at_once = min(len(queues), 1 if self._ports.sharing is None else AT_ONCE)
        if at_once <= 1:
            sample()
        else:
            with ThreadPoolExecutor(at_once) as pool:
                for done in [pool.submit(sample) for _ in range(at_once)]:
                    done.result()
        if scope.ids is None and not dry_run and queues:
            self._left = list(left)
            if not self._left:
                mark = Sample(EVERYTHING, MINUTE_MS, self._minute_ms, "{}")
                self._ports.catalog.records.add_samples([mark])
        return actions

    def _sample(self, queue_id: str, *, dry_run: bool) -> list[Action]:
        queue = self._ports.catalog.queues.by_id(queue_id)
        if queue is None or queue.deleted:
            return []
        now_ms = self._ports.catalog.now_ms()
        try:
            noted = history.roll_up(self._ports, [queue], now_ms, dry_run=dry_run)
        except (BackendError, CorruptionError) as exc:
            logger.warning("cannot sample queue %s: %s", queue.name, exc)
            return [Action("rollup", "minute", queue.name, FAILED, str(exc))]
        outcome = PLANNED if dry_run else DONE
        return [Action("rollup", one.step, one.queue, outcome, one.detail) for one in noted]
