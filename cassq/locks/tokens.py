"""Tokens that grow from holder to holder, for lock services without fences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from cassq.catalog.port import Catalog

# Returns the token for the next holder of a named lock; None while another client is getting one.
NextToken = Callable[[str], int | None]

# Longer than getting a token takes; a process that dies meanwhile delays the next one by this.
_TTL_MS = 1000


def lease_tokens(catalog: Catalog, owner: str) -> NextToken:
    """Tokens from the catalog: a lease's epoch grows each time it is taken and released.

    owner: a unique name. Cost: two transactions per token.
    """
    numbers = count(1)

    def next_token(name: str) -> int | None:
        one_time = f"{owner}.token.{next(numbers)}"
        epoch = catalog.leases.take(f"token:{name}", one_time, _TTL_MS)
        if epoch is not None:
            catalog.leases.drop(f"token:{name}", one_time)
        return epoch

    return next_token
