"""Wrong parts of limits."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from cassq.model import limits
from cassq.model.limits import Permits


def reads_no_permits() -> AbstractContextManager[Any]:
    """Each popper takes the permits as if nobody else had any."""

    def wrong(text: str, now_ms: int) -> Permits:
        return {}

    return patch.object(limits, "permits_of", wrong)


def reads_no_slots() -> AbstractContextManager[Any]:
    """Slots are reserved from now on, whatever others have reserved."""
    return patch.object(limits, "next_us_of", lambda text: 0)


def frees_permits_early() -> AbstractContextManager[Any]:
    """Permits are over before the claims that they are for."""
    permits_of = limits.permits_of

    def wrong(text: str, now_ms: int) -> Permits:
        return permits_of(text, now_ms + 3000)

    return patch.object(limits, "permits_of", wrong)
