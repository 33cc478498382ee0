"""What is recorded for the tests of single calls: `python -m tests.powercuts.scripts NAME ROOT`."""

from __future__ import annotations

import sys
from pathlib import Path

import cassq
from cassq.base.clock import SystemClock
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import FilesStore
from cassq.message.frames import Extras, encode, pipe_key
from cassq.sidecar.engine.port import Replica
from tests.powercuts.record import Marks

_PIPES = ("0" * 23 + "1", "0" * 23 + "2")


def client(root: Path, marks: Marks) -> None:
    """Pushes of every kind, a commit, and what removes pipes."""
    with cassq.connect(f"file://{root}/new/data") as client:
        client.create_queue("jobs")
        queue = client.queue("jobs")
        pusher, popper = queue.pusher(), queue.popper()
        pusher.push(b"first")
        marks.tell("pushed")
        for number in range(3):
            pusher.push(b"%d" % number)
            marks.tell("pushed")
        pusher.push_many([b"many"] * 20_000)
        marks.tell("pushed")
        futures = [pusher.push_soon(b"soon") for _ in range(5)]
        for future in futures:
            future.result()
        marks.tell("pushed")
        pusher.push(b"later", delay=3600.0)
        marks.tell("pushed")
        messages = popper.pop(100_000)
        assert messages
        marks.tell("committing")
        popper.commit(messages)
        marks.tell("committed")


def store(root: Path, marks: Marks) -> None:
    """The verbs of the files store."""
    pipes = root / "pipes"
    Disk().make_directory(pipes)
    store = FilesStore(pipes, SystemClock(), durability="disk", disk=Disk())
    writers = []
    for pipe_id in _PIPES:
        writers.append(store.create(pipe_id, "jobs"))
        marks.tell("created")
        writers[-1].append([encode(0, [b"x"], Extras(0), pipe_key=pipe_key(pipe_id))], 1)
        marks.tell("pushed")
    for writer, pipe_id in zip(writers, _PIPES, strict=True):
        writer.close()
        store.seal(pipe_id)
    store.drop(_PIPES)
    marks.tell("dropped")


def engine(root: Path, marks: Marks) -> None:
    """Syncs of a sidecar's engine."""
    from cassq.sidecar.engine.rocksdb.engine import RocksEngine

    engine = RocksEngine(root / "data", catalog="catalog", name="sidecar")
    pipe_id = _PIPES[0]
    engine.create(Replica(pipe_id, "jobs", False, 0, 1))
    for seq in range(3):
        frame = b"".join(encode(seq, [b"x"], Extras(0), pipe_key=pipe_key(pipe_id)))
        engine.append(pipe_id, seq, 1, frame, 0)
        marks.tell("appended")
        engine.sync()
        marks.tell("synced")
    engine.close()


def main(name: str, root: str) -> None:
    path = Path(root).resolve()
    {"client": client, "store": store, "engine": engine}[name](path, Marks(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
