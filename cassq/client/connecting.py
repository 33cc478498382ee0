"""Connecting: `connect(url)` picks the backends by the URL's scheme and assembles them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from cassq.base.clock import Clock, SystemClock
from cassq.client.backends.embedded import directory_of, open_directory
from cassq.client.backends.opening import keyspace_of, not_a_queue_url, open_local, parts
from cassq.client.client import Client
from cassq.client.runtime import Offline
from cassq.client.spool import Spool
from cassq.errors import ConfigError, is_outage
from cassq.lifecycle.ports import TimedLife
from cassq.settings import Durability

DEFAULT_URL = "file:cassq-data"
# More than a few copies of the largest frame.
KEPT_BYTES = 16 << 20


def connect(
    url: str | None = None,
    *,
    durability: Durability | None = None,
    spill: str | None = None,
    create: bool = True,
) -> Client:
    """Open a client for the queues at `url`. None means `CASSQ_URL` if set, else `file:cassq-data`.

    file:DIR and file:///DIR name a local directory, created if missing; any number of threads and
    processes of one machine may use it at once.
    durability: "disk" (the default) syncs to disk before anything is acknowledged; "os" leaves
    syncing to the operating system: a crash of the process loses nothing, but a crash of the
    machine may lose the last seconds. Also as `?durability=os` in the URL.
    create: if False, a missing directory is a ConfigError.

    cassandra://HOST1,HOST2/KEYSPACE names a keyspace of a Cassandra cluster; `cassq schema apply`
    creates its tables. USER:PASSWORD@ may precede the hosts, and :PORT may follow the last one.
    Options: dc (this client's data centre, required if the cluster has several), consistency
    (local_quorum or quorum), serial (local_serial or serial), locks (the URL of ZooKeeper or
    Hazelcast, or "leases", the default; later clients read it from the keyspace), timeout (how many
    seconds a request waits for its answer; default 5), patience (how many seconds failing
    servers may delay a call; default 10, or 3 with spill), speculate (after how many seconds
    without an answer a second server is asked too; default 0.15; 0: never), tls, ca, cert and key
    (see `cassq.base.tls.tls_of`), and spill, also an argument: a local directory that keeps pushes
    to ap queues while no quorum answers; the client forwards them when one does.

    store=sidecar, with either scheme, keeps messages on storage sidecars instead. The first client
    chooses the store of a directory or keyspace permanently. Options: replicas (1 to 9, of each new
    pipe; default 3), zone (of this client, which reads from sidecars in its zone first),
    sidecar_token (default: `CASSQ_SIDECAR_TOKEN`), sidecar_tls, sidecar_ca, sidecar_cert and
    sidecar_key (see `cassq.base.tls.tls_of`), repair_after (how many seconds a sidecar may be
    silent before its data is copied elsewhere; default 600) and repair_rate (how many bytes are
    copied per second; default 64M).

    Raises ConfigError for a URL, directory or keyspace that cannot be used, MissingExtraError
    if a package is missing, and BackendUnavailableError if no server answers and nothing was
    ever spilled to the directory. Sidecars are not contacted before a message is pushed or popped.
    """
    url = url or os.environ.get("CASSQ_URL") or DEFAULT_URL
    if not isinstance(url, str):
        raise ConfigError(f"a URL must be a str, not {type(url).__name__}")
    scheme, rest, options = parts(url)
    if durability is not None:
        options["durability"] = durability
    if spill is not None:
        options["spill"] = spill
    clock = SystemClock()
    _keep_freed_memory()
    match scheme:
        case "file":
            embedded = open_local(rest, options, clock, create=create)
        case "cassandra":
            return _open_cluster(url, rest, options, clock)
        case _:
            raise not_a_queue_url(url)
    return Client(url, embedded, clock)


def _keep_freed_memory() -> None:
    """Make the C library keep the memory of frames for the next ones. Otherwise each page of each
    is taken from the system and cleared again, which is most of the processor time of a large push.

    The GNU library maps large blocks one by one, and returns freed memory to the system, until a
    larger block was freed (mallopt(3), M_MMAP_THRESHOLD). This one is never touched, so it costs
    two system calls. Twice its size, 32 MiB, may stay unused then.
    """
    bytearray(KEPT_BYTES)


def _open_cluster(url: str, rest: str, options: dict[str, str], clock: Clock) -> Client:
    contact, opened = keyspace_of(rest, options)
    spool = _open_spool(options, contact.keyspace, clock)
    try:
        embedded = opened(clock)
    except BaseException as exc:
        if spool is None:
            raise
        if not is_outage(exc) or not spool.contents():
            spool.close()
            raise
        life = TimedLife(clock)
        place = Offline(partial(opened, clock, life), str(exc), life)
        return Client(url, place, clock, spool)
    return Client(url, embedded, clock, spool)


def _open_spool(options: dict[str, str], keyspace: str, clock: Clock) -> Spool | None:
    """The spool of a URL; None without the option `spill`."""
    if "spill" not in options:
        return None
    if not options["spill"]:
        raise ConfigError("spill names no directory", hint="write ?spill=/var/lib/cassq-spool")
    return _spool_in(options["spill"], keyspace, clock, create=True)


def _spool_in(place: str, keyspace: str, clock: Clock, *, create: bool) -> Spool:
    """The spool below `place`: one directory for each keyspace."""
    directory = Path(place).expanduser().absolute() / keyspace
    embedded = open_directory(directory, clock, "disk", create=create)
    client = Client(f"file://{directory}", embedded, clock)
    return Spool(client.runtime, client.close)


def local_directory(url: str | None) -> Path | None:
    """The directory that a URL names, as `connect` reads it; None for other URLs."""
    scheme, rest, _ = parts(url or os.environ.get("CASSQ_URL") or DEFAULT_URL)
    return directory_of(rest) if scheme == "file" else None


def open_spool(url: str | None) -> Spool:
    """Only the spool of a URL, to be inspected while no server answers.

    Raises ConfigError for a URL without a spool.
    """
    scheme, rest, options = parts(url or os.environ.get("CASSQ_URL") or DEFAULT_URL)
    if scheme != "cassandra" or not options.get("spill"):
        raise ConfigError(
            "the URL names no spool", hint="write cassandra://HOST/KEYSPACE?spill=DIRECTORY"
        )
    return _spool_in(options["spill"], rest.rpartition("/")[2], SystemClock(), create=False)
