"""The embedded backends: opens, checks and recovers one local directory.

DIR/catalog.sqlite    queues, groups, pipes, claims
DIR/pipes/ID.pipe     a pipe's frames, unless they are on sidecars
DIR/bells/            doorbells of waiting poppers
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cassq.base.clock import Clock, Stopwatch
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.base.os_errors import translated
from cassq.catalog.port import Catalog
from cassq.catalog.schema_files import latest_version
from cassq.catalog.sqlite import SqliteCatalog
from cassq.catalog.sqlite.database import LOCK_WAIT_SECONDS, stored_version
from cassq.client.backends.rebuilt import note_rebuild
from cassq.client.backends.stores import FILES, SIDECAR, agree_on_store
from cassq.doorbell import Doorbell, FifoDoorbell
from cassq.errors import BackendError, BackendTimeoutError, ConfigError, CorruptionError
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import SUFFIX, FilesStore, check_durability
from cassq.extents.port import ExtentMissingError, ExtentStore
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.message.frames import Place
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import GroupRow, PipeRow, PipeState, QueueRow

if TYPE_CHECKING:
    from cassq.extents.sidecar.settings import Settings

NAME_IT = "name it with --url or CASSQ_URL, or make it: `cassq queue create NAME`"

logger: logging.Logger = logging.getLogger("cassq")

CATALOG, PIPES, BELLS = "catalog.sqlite", "pipes", "bells"
_SQLITE_BESIDE = ("-wal", "-shm", "-journal")
_OWN = {CATALOG, *(CATALOG + suffix for suffix in _SQLITE_BESIDE), PIPES, BELLS}
_LOOK_SECONDS = 0.005
_QUEUES_LISTED_MAX = 20
# Shared memory and file locks do not work between the machines that share one of these.
_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "9p",
    "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "beegfs", "gpfs",
}  # fmt: skip


class Embedded(NamedTuple):
    """The opened backends of a client.

    doorbell: the doorbell of a queue, by its id. abandon: returns what a forked child must keep
    but not touch.
    """

    ports: Ports
    doorbell: Callable[[str], Doorbell]
    abandon: Callable[[], object]

    @property
    def life(self) -> Lifecycle:
        return self.ports.life

    @property
    def requests(self) -> Requests | None:
        return self.ports.requests

    def close(self) -> None:
        """Close the backends."""
        if self.ports.sharing is not None and self.ports.sharing.background is not None:
            self.ports.sharing.background.close()
        self.ports.locker.close()
        self.ports.store.close()
        self.ports.life.closed = True
        self.ports.catalog.close()


def open_directory(
    directory: Path,
    clock: Clock,
    durability: str,
    *,
    create: bool = True,
    sidecars: Settings | None = None,
) -> Embedded:
    """Open a directory, creating it if missing, and recover from a crash. Any number of processes
    may do so at once. sidecars: their settings, if they hold the frames.

    If there are pipe files but no catalog, creates a new catalog, and logs which messages are
    delivered again. create: False refuses only a directory that has neither.

    Raises ConfigError for a directory that belongs to another program or a newer cassq, is on a
    network file system, or is used with another store, and BackendUnavailableError for one that
    cannot be written.
    """
    with ExitStack() as making:
        return _open(directory, clock, durability, create, sidecars, making)


def _open(
    directory: Path,
    clock: Clock,
    durability: str,
    create: bool,
    sidecars: Settings | None,
    making: ExitStack,
) -> Embedded:
    """making: while it is open, other processes that open the directory wait."""
    check_durability(durability)
    disk = Disk()
    opening = f"opening {directory}"
    with translated(opening):
        check_file_system(directory, mounts())
        check_contents(directory)
        if not create and not os.path.lexists(directory / CATALOG) and not _has_files(directory):
            raise ConfigError(
                f"there is no queue directory at {directory}",
                hint=NAME_IT,
            )
        disk.make_directory(directory)
        (directory / BELLS).mkdir(exist_ok=True)  # not durable: it holds nothing that lasts
        catalog, lost = _open_catalog(directory, clock, making, durable=durability == "disk")
    ids, requests, upkeep = Ids(), None, None
    try:
        agree_on_directory(catalog, FILES if sidecars is None else SIDECAR, directory)
        if sidecars is None:
            with translated(opening):
                disk.make_directory(directory / PIPES)
            store: ExtentStore = FilesStore(
                directory / PIPES, clock, durability=durability, disk=disk
            )
            if lost:
                note_rebuild(catalog)
            found = adopt(catalog, store, ids)
            if lost or found.messages:
                logger.warning("%s", _adoption_warning(directory, found, lost=lost))
        else:
            requests = Requests()
            from cassq.extents.sidecar import open_sidecar_store

            replicated = open_sidecar_store(catalog, clock, ids, sidecars, requests=requests)
            store, upkeep = replicated, replicated.upkeep
    except BaseException:
        catalog.close()
        raise
    locker = LeaseLocker(catalog, ids.client)
    return Embedded(
        Ports(
            *(catalog, store, locker, clock, ids, Lifecycle(catalog.entered)),
            requests=requests,
            upkeep=upkeep,
        ),
        lambda queue_id: FifoDoorbell(directory / BELLS, queue_id, clock),
        lambda: (catalog.abandon(), store),
    )


def _open_catalog(
    directory: Path, clock: Clock, making: ExitStack, *, durable: bool
) -> tuple[SqliteCatalog, bool]:
    """Open the catalog of a directory, created if missing. Returns also whether it was lost:
    missing although there are pipe files. Until `making` ends, other processes that open the
    directory wait, as a new catalog does not have the queues of those pipe files yet.

    SQLite would take the log that a lost catalog left behind for the log of the new one, and
    restore parts of the old catalog from it. So that log is removed first. Only one process at a
    time does so: another one might take the new catalog's log for the old one's.
    """
    path = directory / CATALOG
    if _is_made(path):
        with _locked(directory, clock, fcntl.LOCK_SH):
            return SqliteCatalog(path, clock, durable=durable), False
    making.enter_context(_locked(directory, clock, fcntl.LOCK_EX))
    if _is_made(path):
        return SqliteCatalog(path, clock, durable=durable), False
    lost = _has_files(directory)
    for suffix in _SQLITE_BESIDE:
        left = path.with_name(CATALOG + suffix)
        if left.exists():
            left.unlink()
            logger.warning("removed %s, which belonged to a catalog that no longer exists", left)
    return SqliteCatalog(path, clock, durable=durable), lost


def _is_made(catalog: Path) -> bool:
    """Whether there is a catalog. An empty file does not count: it is about to be filled, or what
    it held is lost."""
    try:
        return catalog.stat().st_size > 0
    except FileNotFoundError:
        return False


@contextmanager
def _locked(directory: Path, clock: Clock, how: int) -> Iterator[None]:
    """Hold the kernel's lock on a directory, exclusive or shared. Raises BackendTimeoutError if
    another process does not release it in time."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        waited = Stopwatch()
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                if waited.seconds() > LOCK_WAIT_SECONDS:
                    message = f"another process takes too long to create the catalog of {directory}"
                    raise BackendTimeoutError(message) from exc
            clock.sleep(_LOOK_SECONDS)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked meanwhile shares the descriptor
        os.close(fd)


def agree_on_directory(catalog: Catalog, store: str, directory: Path) -> None:
    """`agree_on_store` for a directory."""
    place = f"directory {directory}"
    agree_on_store(catalog, store, FILES, place, lambda: _has_files(directory))


def _has_files(directory: Path) -> bool:
    """Whether there are pipe files."""
    pipes = directory / PIPES
    with translated(f"listing {pipes}"):
        return any(pipes.glob(f"*{SUFFIX}"))


def check_contents(directory: Path) -> None:
    """Raise ConfigError unless the directory is cassq's, empty or missing. One with pipe files is
    cassq's whatever else it holds: a user may have put the remains of a lost catalog there."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ConfigError(f"{directory} is a file", hint="give cassq a directory of its own")
    names = {entry.name for entry in directory.iterdir() if not entry.name.startswith(".")}
    if names and CATALOG not in names and not names <= _OWN and not _has_files(directory):
        other = min(names - _OWN)
        raise ConfigError(
            f"{directory} is not a cassq directory: it holds {other!r}",
            hint="give cassq a directory of its own",
        )


def check_file_system(directory: Path, mounted: dict[str, str]) -> None:
    """Raise ConfigError if the directory is on a network file system.

    mounted: mount point → type of file system.
    """
    path = directory.resolve()
    for parent in (path, *path.parents):
        kind = mounted.get(str(parent))
        if kind is not None:
            if kind in _NETWORK:
                raise ConfigError(
                    f"{directory} is on a network file system ({kind})",
                    hint="an embedded queue needs a local disk: its processes share memory",
                )
            return


def mounts() -> dict[str, str]:
    """Mount point → type of file system; empty where the system does not list them."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split(" ") for line in lines)
    return {f[1].replace("\\040", " "): f[2] for f in fields if len(f) > 2}


class AdoptedPipes(NamedTuple):
    """Pipe files that had no row in the catalog. messages: queue → how many are in pipes that now
    have a row. in_use: how many files were left out because they are being written."""

    messages: dict[str, int]
    in_use: int


def adopt(catalog: SqliteCatalog, store: ExtentStore, ids: Ids) -> AdoptedPipes:
    """Add a row to the catalog for every pipe file that has none, so that nothing durable is lost.

    A file without a row is either about to get one (its writer lives), or holds nothing (its
    writer died before the row was written), or belongs to a catalog that was lost. Empty files are
    removed, after making sure that a writer killed during its commit has not left a row for them.
    """
    messages: dict[str, int] = {}
    empty: list[str] = []
    in_use = 0
    known = catalog.pipes.ids()
    for info in store.extents(known):
        if not info.abandoned:
            in_use += 1
            continue
        if catalog.pipes.by_id(info.pipe_id) is not None:
            continue  # the row was added between the two reads
        try:
            end = store.seal(info.pipe_id) if info.queue_name else None
        except ExtentMissingError:
            continue  # another process that opened the directory has removed it
        except BackendError as exc:
            logger.warning("pipe %s cannot be adopted: %s", info.pipe_id, exc)
            continue
        if end is None or end.seq == 0:
            empty.append(info.pipe_id)
            continue
        queue = _queue_for(catalog, info.queue_name, ids)
        row = PipeRow(
            id=info.pipe_id,
            queue_id=queue.id,
            state=PipeState.SEALED,
            owner="",
            created_ms=int(info.pipe_id[:12], 16),
            lease_ms=0,
            end=end,
            predecessor=queue.tail,
            timer_ms=_timer_ms(store, info.pipe_id),
        )
        if catalog.pipes.add(row):
            messages[queue.name] = messages.get(queue.name, 0) + end.seq
    if empty:
        catalog.settle()
        store.drop([pipe_id for pipe_id in empty if catalog.pipes.by_id(pipe_id) is None])
    return AdoptedPipes(messages, in_use)


def _adoption_warning(directory: Path, found: AdoptedPipes, *, lost: bool) -> str:
    """The warning about messages in pipes that had no row."""
    counts = [f"{count:,} of queue {name!r}" for name, count in sorted(found.messages.items())]
    listed = ", ".join(counts[:_QUEUES_LISTED_MAX])
    if len(counts) > _QUEUES_LISTED_MAX:
        listed += f", and those of {len(counts) - _QUEUES_LISTED_MAX} more queues"
    if not lost:
        return f"pipe files of {directory} had no row in the catalog; found messages: {listed}"
    message = (
        f"the catalog of {directory} was gone, and was rebuilt from the pipe files. All messages in"
        f" them go to the group 'default', also if they were delivered before:"
        f" {listed or 'no messages'}. "
        "Set policies, and create other groups and schedules, again"
    )
    if found.in_use:
        message += (
            f". Pipe files left out, as they are being written: {found.in_use}. End the processes "
            "that still use the old catalog, then open the directory again"
        )
    return message


def _timer_ms(store: ExtentStore, pipe_id: str) -> int | None:
    """The `timer_ms` of a pipe's row: 0 if its frames say when their messages are due, else
    None."""
    reader = store.reader(pipe_id)
    try:
        ((frame, first, _),) = reader.read(Place(0, 0), 1, 1, 0)
    except CorruptionError:
        return None  # the popper that reads it reports it
    finally:
        reader.close()
    return None if frame.due_ms(first) is None else 0


def _queue_for(catalog: Catalog, name: str, ids: Ids) -> QueueRow:
    queue = catalog.queues.named(name)
    if queue is None:
        now_ms = catalog.now_ms()
        row = QueueRow(ids.new(now_ms), name, QueuePolicy(), 1, 1)
        catalog.queues.create(row, default_group(row.id, ids, now_ms))
        queue = catalog.queues.named(name)
        if queue is None:
            raise ConfigError(f"queue {name!r} was deleted while its pipes were adopted")
    return queue


def default_group(
    queue_id: str, ids: Ids, now_ms: int, policy: GroupPolicy | None = None
) -> GroupRow:
    """The group `default`, which every queue is created with."""
    return GroupRow(ids.new(now_ms), queue_id, "default", policy or GroupPolicy(), now_ms)


def schema_of_directory(directory: Path) -> tuple[int, int]:
    """The schema version of a directory's catalog, and the version to which this cassq would
    migrate it when it opens it. Changes nothing.

    Raises ConfigError if there is no catalog, or it belongs to another program.
    """
    path = directory / CATALOG
    if not path.exists():
        if _has_files(directory):
            raise ConfigError(
                f"the catalog of {directory} is missing",
                hint="other commands, such as `cassq stats`, rebuild it from the pipe files",
            )
        raise ConfigError(f"there is no queue directory at {directory}", hint=NAME_IT)
    return stored_version(path), latest_version("sqlite")


def directory_of(rest: str) -> Path:
    """The directory of a `file:` URL. rest: what follows `file:`, a relative path or
    `///absolute/path`."""
    path = rest.removeprefix("//") if rest.startswith(("///", "//~")) else rest
    if path.startswith("//") or not path:
        raise ConfigError(
            f"'file:{rest}' names no directory",
            hint="write file:cassq-data or file:///var/lib/cassq",
        )
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        user = path.partition("/")[0]
        raise ConfigError(
            f"{user} is not a directory: there is no user {user.removeprefix('~')!r}",
            hint=f"write file:./{path} for a directory of that name",
        )
    return Path(expanded)
