"""Wrong parts of priorities."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cassq.consumer.claiming.candidates import CandidatePipes
from cassq.consumer.claiming.claimer import Claimer
from cassq.lifecycle.retries import DeadLetters
from cassq.message.batches import Batch
from cassq.model import claims
from cassq.model.rows import Claim


def buries_without_priority() -> AbstractContextManager[Any]:
    """A dead letter is pushed as if its message had no priority."""
    right = DeadLetters._dead_letter

    def wrong(self: DeadLetters, *args: Any) -> Batch:
        return replace(right(self, *args), priority=0)

    return patch.object(DeadLetters, "_dead_letter", wrong)


def takes_without_priority() -> AbstractContextManager[Any]:
    """What is taken over, or again, has no priority any more."""
    right = claims.taken

    def wrong(free: Claim, *args: Any, **more: Any) -> tuple[Claim, list[Claim]]:
        return right(replace(free, priority=0), *args, **more)

    return patch.object(claims, "taken", wrong)


def goes_by_age_alone() -> AbstractContextManager[Any]:
    """Pipes are claimed from by their age, whatever their priority."""
    right = CandidatePipes.refresh

    def wrong(self: CandidatePipes, *, old_ms: int = 0) -> bool:
        found = right(self, old_ms=old_ms)
        by_age = sorted(self._views.values(), key=lambda view: view.row.ordinal)
        self._views = {view.row.id: view for view in by_age}
        self.levels, self.top = [], 0
        return found

    return patch.object(CandidatePipes, "refresh", wrong)


def never_begins_at_the_least() -> AbstractContextManager[Any]:
    """Every claim begins at the greatest priority, whatever the queue's `priority_share`."""
    return patch.object(Claimer, "least_is_next", lambda _self: False)
