"""Numbers that grow from holder to holder, for a lock service that gives none of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from cassq.catalog.port import Catalog

# The number of the next holder of the lock of that name; None when another is just getting one.
NextToken = Callable[[str], int | None]

# Longer than a number takes to be had; a process that dies meanwhile delays the next by so much.
_TTL_MS = 1000


def lease_tokens(catalog: Catalog, owner: str) -> NextToken:
    """Numbers from the catalog: a lease taken and given back has a larger epoch each time.

    owner: a name nobody else uses. Cost: two transactions a number.
    """
    numbers = count(1)

    def next_token(name: str) -> int | None:
        one_time = f"{owner}.token.{next(numbers)}"
        epoch = catalog.leases.take(f"token:{name}", one_time, _TTL_MS)
        if epoch is not None:
            catalog.leases.drop(f"token:{name}", one_time)
        return epoch

    return next_token
