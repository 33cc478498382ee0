"""Which rows of a lane's earlier holder are read at once."""

from __future__ import annotations

from typing import Any

from cassq.consumer.keyed.take_over import RowsAhead, TakeOver
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState


def free(start: int, deliveries: int) -> Claim:
    return Claim("g", "p", start, start + 1, 0, ClaimState.FREE, 0, deliveries=deliveries)


def test_what_consumers_may_have_is_read_though_others_before_it_are_read_later() -> None:
    take_over: Any = TakeOver.__new__(TakeOver)
    take_over.ahead = RowsAhead()
    take_over.ahead.add("chain", [free(0, 0)])
    failed, unused = free(2, 1), free(3, 0)
    away = claims.kept_away(free(1, 1), "popper", 1000)
    assert take_over._parted("chain", [away, failed, unused]) == ([away], [failed, unused])
