"""The records of tasks as a simulated process has them: every write is synced, and may fail."""

from __future__ import annotations

from cassq.catalog.sqlite.step_tables import SqliteSteps
from cassq.errors import BackendUnavailableError
from tests.simulation.worlds.scheduler import Process, ProcessClock

# By task and key: a value, and until when it is kept.
Records = dict[str, dict[str, tuple[bytes, int]]]


class SimSteps(SqliteSteps):
    """Records of the world, which a power cut leaves as they are. Each write is a point before and
    after its effect."""

    def __init__(self, steps: SqliteSteps, process: Process, records: Records) -> None:
        self.file = steps.file  # which is never opened
        self._process = process
        self._records = records
        self._clock = ProcessClock(process)

    def find(self, task_id: str) -> dict[str, bytes]:
        self._process.point()
        self._meet_fault("find", outcome_unknown=False)
        now_ms = self._clock.wall_ms()
        kept = self._records.get(task_id, {})
        return {key: value for key, (value, until_ms) in kept.items() if until_ms > now_ms}

    def add(self, task_id: str, key: str, value: bytes, kept_seconds: float) -> bytes:
        self._before("add")
        found = self._records.setdefault(task_id, {}).setdefault(
            key, (value, self._until_ms(kept_seconds))
        )
        self._after("add")
        return found[0]

    def change(self, task_id: str, key: str, old: bytes, new: bytes, kept_seconds: float) -> bool:
        self._before("change")
        kept = self._records.get(task_id, {})
        changed = key in kept and kept[key][0] == old
        if changed:
            kept[key] = new, self._until_ms(kept_seconds)
        self._after("change")
        return changed

    def keep(self, task_id: str, kept_seconds: float) -> None:
        self._before("keep")
        until_ms = self._until_ms(kept_seconds)
        kept = self._records.get(task_id, {})
        kept.update({key: (value, until_ms) for key, (value, _) in kept.items()})
        self._after("keep")

    def _until_ms(self, kept_seconds: float) -> int:
        return self._clock.wall_ms() + round(kept_seconds * 1000)

    def _before(self, verb: str) -> None:
        self._process.point()
        self._meet_fault(f"{verb}, no effect", outcome_unknown=False)

    def _after(self, verb: str) -> None:
        self._process.point()
        self._meet_fault(f"{verb}, after its effect", outcome_unknown=True)

    def _meet_fault(self, what: str, *, outcome_unknown: bool) -> None:
        if self._process.fault(what):
            raise BackendUnavailableError("disk I/O error", outcome_unknown=outcome_unknown)
