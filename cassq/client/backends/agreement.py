"""What all clients of a keyspace must have in common: quorums, locker and store.

The first client notes them in the keyspace. The others read them there, and are refused if their
URL contradicts. `cassq schema change` changes the locker, and the store while there are no queues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

from cassq.base.clock import Clock
from cassq.base.ids import Ids
from cassq.cassandra.contact import Contact
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.notes import Notes
from cassq.catalog.cassandra.replication import replicas_of
from cassq.client.backends.stores import CASSANDRA, SIDECAR, agree_on_store, check_store
from cassq.consumer.presence import GONE_MS, LOOK_SECONDS
from cassq.errors import ConfigError, UsageError
from cassq.locks.late import LateLocker
from cassq.locks.lease import LeaseLocker
from cassq.locks.opening import open_locker
from cassq.locks.port import Locker
from cassq.locks.tokens import lease_tokens

LOCKS, STORE, QUORUMS = "locks", "store", "quorums"
LEASES = "leases"  # the locker that needs no further server
# Whether the keyspace itself has any extent.
ANY_EXTENT = "SELECT pipe_id FROM extents LIMIT 1"
# Whether there is any pipe, or any extent on sidecars.
ANY_PIPE = "SELECT pipe_id FROM pipes LIMIT 1"
ANY_PLACEMENT = "SELECT pipe_id FROM placements LIMIT 1"

_CREDENTIALS = re.compile(r"//[^/@]*@")


class Agreement:
    """What the clients of a session's keyspace use. Cost: one read; a read and a conditional write
    more for each value that no client has noted yet."""

    def __init__(self, cql: Cql, catalog: CassandraCatalog) -> None:
        self._cql = cql
        self._catalog = catalog
        self._notes = Notes(cql)
        self._noted = self._notes.all()
        self._place = f"keyspace {cql.contact.keyspace!r}"

    # --- agreeing -----------------------------------------------------------------------------

    @property
    def store(self) -> str | None:
        """The store in use; None before the first client."""
        return self._noted.get(STORE)

    @property
    def locks(self) -> str | None:
        """The URL of the locker in use, without credentials, or `LEASES`; None before the first
        client."""
        return self._noted.get(LOCKS)

    def on_quorums(self) -> None:
        """Check that the quorums of all clients overlap."""
        used = quorums_of(self._cql.contact, replicas_of(self._cql) or {})
        if not used:
            return
        noted = self._noted.get(QUORUMS) or self._notes.note(QUORUMS, used)
        if noted != used:
            raise ConfigError(
                f"the quorums of the clients of {self._place} are {noted!r}, not {used!r}",
                hint="with several data centres all clients need consistency=quorum&serial=serial;"
                " to change this, stop all clients, and delete the row 'quorums' of table meta",
            )

    def on_store(self, store: str) -> None:
        """Check that all clients use this store: see `agree_on_store`."""
        if self.store is not None:
            check_store(self.store, store, self._place)
            return
        agree_on_store(
            self._catalog, store, CASSANDRA, self._place, lambda: bool(self._cql.read(ANY_EXTENT))
        )

    def open_locker(self, url: str, clock: Clock, ids: Ids) -> Locker:
        """Open the locker of a URL, or, without a URL, the one in use."""
        used = self.locks
        if not url and used is not None:
            if used == LEASES:
                return LeaseLocker(self._catalog, ids.client)
            return LateLocker(lambda: self._service(used, clock, ids))
        desired = shown_locks(url or LEASES)
        self._check_locks(desired)
        if desired == LEASES:
            locker: Locker = LeaseLocker(self._catalog, ids.client)
        else:
            locker = self._service(url, clock, ids)
        if used is not None:
            return locker
        try:
            self._noted[LOCKS] = self._notes.note(LOCKS, desired)  # it is known to work
            self._check_locks(desired)
        except BaseException:
            locker.close()
            raise
        return locker

    def _service(self, url: str, clock: Clock, ids: Ids) -> Locker:
        return open_locker(url, clock, next_token=lease_tokens(self._catalog, ids.client))

    def _check_locks(self, desired: str) -> None:
        """Raise ConfigError if other clients use another locker. desired: from `shown_locks`."""
        used = self.locks
        if used is None or _same_locks(used, desired):
            return
        raise ConfigError(
            f"the locks of the clients of {self._place} are {used!r}, not {desired!r}",
            hint="leave locks= out of the URL to use these; `cassq schema change --locks URL`"
            " changes them for all clients",
        )

    # --- changing -----------------------------------------------------------------------------

    def poppers(self) -> list[str]:
        """The groups that have poppers now, by their records of presence. Cost: a read for each
        queue and each group."""
        since_ms = self._catalog.now_ms() - GONE_MS
        queues, records = self._catalog.queues, self._catalog.records
        return [
            f"{group.name} of queue {queue.name}"
            for queue in queues.listed("")
            for group in queues.groups(queue.id)
            if records.members(group.id, since_ms)
        ]

    def change_locks(self, url: str, clock: Clock, ids: Ids) -> list[str]:
        """Make `url`, or `LEASES`, the locker of all clients. Returns the groups whose poppers
        began meanwhile, perhaps with the old locker.

        Poppers with different lockers do not exclude each other, so none may be popping. Raises
        UsageError if any is, and what `open_locker` raises for a locker that does not work.
        """
        desired = shown_locks(url)
        if desired == self.locks:
            return []
        here = self.poppers()
        if here:
            raise UsageError(
                f"the locks cannot be changed while consumers are popping: {_some(here)}",
                hint="stop all clients; a killed one counts as active for"
                f" {GONE_MS // 1000} seconds",
            )
        if desired != LEASES:
            self._service(url, clock, ids).close()
        self._change(LOCKS, desired)
        clock.sleep(2 * LOOK_SECONDS)  # until poppers from before the change have left a record
        return self.poppers()

    def change_store(self, store: str) -> None:
        """Make `store` the store of all clients. Raises UsageError unless there are no queues."""
        if store == self.store:
            return
        used = self._cql.read_many([(ANY_PIPE, ()), (ANY_EXTENT, ()), (ANY_PLACEMENT, ())])
        if self._catalog.queues.listed("") or any(used):
            raise UsageError(
                f"the store of {self._place} cannot be changed while it has queues",
                hint="create a new keyspace with the other store, push there, and let consumers"
                " empty this one",
            )
        if store not in (CASSANDRA, SIDECAR):
            raise UsageError(f"a store must be {CASSANDRA} or {SIDECAR}, not {store!r}")
        self._change(STORE, store)

    def _change(self, key: str, value: str) -> None:
        old = self._noted.get(key)
        if old is None:
            changed = self._notes.note(key, value) == value
        else:
            changed = self._notes.change(key, old, value)
        if not changed:
            raise UsageError(f"another client is changing the {key}", hint="try again")
        self._noted[key] = value


def quorums_of(contact: Contact, replicas: Mapping[str, int]) -> str:
    """Which quorums a client uses: those of two clients overlap if this is the same for both. Empty
    if one data centre has all replicas: then all quorums overlap. replicas: by data centre."""
    if len(replicas) < 2:
        return ""
    levels = f"{contact.consistency}, {contact.serial}"
    return f"{levels} of {contact.data_centre}" if "local" in levels else levels


def shown_locks(url: str) -> str:
    """The URL of a locker as it is noted: without credentials."""
    return _CREDENTIALS.sub("//", url)


def _same_locks(used: str, desired: str) -> bool:
    """Whether two lockers, given without credentials, exclude each other's holders. Of their
    options only `cp` must be the same; earlier versions of cassq noted no options."""
    place, mark, query = used.partition("?")
    other, _, desired_query = desired.partition("?")
    return place == other and (not mark or _cp(query) == _cp(desired_query))


def _cp(query: str) -> str:
    return dict(parse_qsl(query)).get("cp", "yes")


def _some(names: list[str], most: int = 3) -> str:
    """The first of these names, as text, and how many more there are."""
    rest = f", and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"
