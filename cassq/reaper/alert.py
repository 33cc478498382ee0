"""The alert pass: notifies people that a queue, a schedule or a sidecar needs attention; see
`cassq.alerts`.

With very many queues, a run checks as many as its time allows, and the next run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cassq.alerts import watch
from cassq.alerts.incidents import load
from cassq.alerts.targets import AlertTarget
from cassq.lifecycle.ports import Ports
from cassq.model.queues import is_dead_letter_name, origin_of
from cassq.model.rows import QueueRow
from cassq.reaper.actions import Action, Pass, Scope

_AT_ONCE = 50


class Alert(Pass):
    """Checks queues that hold messages, including dead-letter queues, and queues with incidents; in
    a run over all queues also schedules and sidecars.

    targets: called at each run; if it returns none, nothing is checked.
    """

    name = "alert"

    def __init__(
        self,
        ports: Ports,
        targets: Callable[[], Sequence[AlertTarget]],
        patience: Callable[[], float],
    ) -> None:
        super().__init__(ports)
        self._patience = patience
        self._targets = targets
        self._left: list[str] = []

    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        """Cost: the same as `cassq.alerts.watch.run` for queues that hold anything."""
        if not self._targets():
            return []
        if not self._left:
            self._left = self._concerned()
        left = self._left if scope.ids is None else list(scope.ids)
        clock = self._ports.clock
        until_ms = clock.boot_ms() + self._patience() * 1000
        reports: list[Action] = []
        everything = scope.ids is None  # at first also schedules and sidecars
        while left or everything:
            queues, left = self._rows(left[:_AT_ONCE]), left[_AT_ONCE:]
            sidecars = everything and self._ports.upkeep is not None
            beside = {"sidecars": sidecars, "schedules": everything, "dry_run": dry_run}
            found = watch.run(self._ports, queues, self._targets(), **beside)
            everything = False
            reports += [Action(o.verb, o.subject, o.queue, o.outcome, o.detail) for o in found]
            if scope.ids is None and clock.boot_ms() >= until_ms:
                break
        if scope.ids is None:
            self._left = left
        return reports

    def _rows(self, queue_ids: Sequence[str]) -> list[QueueRow]:
        rows = self._ports.catalog.queues.by_ids(queue_ids)
        found = {row.id: row for row in rows if row is not None and not row.deleted}
        for row in list(found.values()):
            if is_dead_letter_name(row.name):
                parent = self._ports.catalog.queues.named(origin_of(row.name)[0])
                if parent is not None:
                    found[parent.id] = parent
        return list(found.values())

    def _concerned(self) -> list[str]:
        findings = [
            load(incident.data).finding for incident in self._ports.catalog.records.incidents()
        ]
        with_incidents = [finding.queue_id for finding in findings if finding.queue_id]
        return list(dict.fromkeys([*with_incidents, *self._ports.catalog.queues.live()]))
