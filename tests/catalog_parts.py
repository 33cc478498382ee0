"""A catalog with a part of another make: one that watches, fails, or is wrong."""

from __future__ import annotations

from typing import Any, TypeVar

from cassq.catalog.sqlite import SqliteCatalog

ROLES = ("queues", "pipes", "claims", "leases", "writes", "sidecars", "records")
P = TypeVar("P")


class WithRoles:
    """A catalog with these roles in the place of its own."""

    def __init__(self, catalog: Any, **roles: Any) -> None:
        self._catalog = catalog
        self.__dict__.update(roles)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


def put_part(catalog: SqliteCatalog, part: type[P]) -> P:
    """Have a subclass of one of the catalog's parts take the place of that part; the new one."""
    made: Any = part(catalog._db)  # type: ignore[call-arg]
    (role,) = (each for each in ROLES if isinstance(made, type(getattr(catalog, each))))
    setattr(catalog, role, made)
    return made  # type: ignore[no-any-return]
