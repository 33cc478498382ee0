"""Which store keeps the messages: reads it from the URL, and checks that all clients agree.

With store=sidecar, frames are kept on storage sidecars, whatever the catalog; without it, where the
catalog is: in files or in Cassandra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cassq import extras
from cassq.catalog.port import Catalog
from cassq.errors import ConfigError

if TYPE_CHECKING:
    from cassq.extents.sidecar.settings import Settings

FILES, CASSANDRA, SIDECAR = "files", "cassandra", "sidecar"
STORE_OPTIONS = (
    *("store", "replicas", "zone", "sidecar_token"),
    *("sidecar_tls", "sidecar_ca", "sidecar_cert", "sidecar_key"),
    *("repair_after", "repair_rate"),
)


def sidecars_of(options: Mapping[str, str], own: str, noted: str | None = None) -> Settings | None:
    """The sidecar settings of a URL; None if it uses the catalog's own store.

    own: that store's name. noted: the store that the other clients use, for a URL without the
    option `store`. Raises as `settings_of`, and MissingExtraError if a package that sidecars need
    is missing: they are loaded only here.
    """
    store = options.get("store", noted or own)
    if store not in (own, SIDECAR):
        raise ConfigError(f"store must be {own} or {SIDECAR}, not {store!r}")
    if store == own:
        needless = [name for name in STORE_OPTIONS[1:] if name in options]
        if needless:
            raise ConfigError(
                f"{needless[0]} is only for sidecars", hint=f"write store={SIDECAR} as well"
            )
        return None
    with extras.wanted(*extras.SIDECAR):
        from cassq.client.backends.sidecar_options import settings_of
    return settings_of(options)


def agree_on_store(
    catalog: Catalog, store: str, own: str, place: str, used: Callable[[], bool]
) -> None:
    """Check that all clients use one store: the first client, or sidecar, notes it in the catalog.

    own: the name of the catalog's own store. place: the catalog's name in messages. used: whether
    the own store has extents; called only if sidecars are requested, as a catalog that was
    recreated has no note. Raises ConfigError if another store is in use. Cost: a read; the first
    time also a conditional write.
    """
    check_store(
        catalog.records.note("store", own if store == own or used() else store), store, place
    )


def check_store(noted: str, store: str, place: str) -> None:
    """Raise ConfigError if the clients of a place use a different store."""
    if noted != store:
        raise ConfigError(
            f"{place} keeps its messages with store={noted}, not store={store}",
            hint=f"write store={noted} in the URLs of all its clients; the first client or sidecar"
            " chose the store: to use another store, use a new directory or keyspace",
        )
