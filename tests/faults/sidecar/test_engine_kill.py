"""The engine killed and refused by the disk: what sync returned is there, and nothing half."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cassq.errors import BackendError, StorageFullError
from cassq.message.frames import decode, pipe_key
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.options import Tuning
from tests.contract.engines import PIPE, a_frame
from tests.faults.mounts import SmallDisk, mount, small_disk

__all__ = ["mount", "small_disk"]

pytestmark = pytest.mark.needs("module:rocksdict")
NEEDS_ROOT = pytest.mark.may_skip("a file system of its own can be mounted by root alone")

OFTEN = pytest.param(12, marks=pytest.mark.long(reason="the same, three times as often"))
# Appends to some extents in turn, syncs now and then in another thread, and tells what a sync
# that returned had covered.
WRITER = """
import random, sys, threading
from pathlib import Path
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.options import Tuning
from tests.contract.engines import a_frame
chance = random.Random(int(sys.argv[2]))
small = Tuning(memtable_bytes=1 << 20)
engine = RocksEngine(Path(sys.argv[1]), catalog="c", name="n", tuning=small)
def sync():
    while True:
        ends = {pipe_id: each.end for pipe_id, each in list(engine.replicas().items())}
        engine.sync()
        print(repr(ends), flush=True)
ids = [f"{number:024x}" for number in range(5)]
for pipe_id in ids:
    if pipe_id not in engine.replicas():
        engine.create(Replica(pipe_id, "orders", False, 1, 1))
threading.Thread(target=sync, daemon=True).start()
while True:
    pipe_id = chance.choice(ids)
    end = engine.replicas()[pipe_id].end
    size = chance.choice([10, 100, 5000])
    engine.append(pipe_id, end, 10, a_frame(end, pipe_id=pipe_id, size=size), end)
"""


@pytest.mark.parametrize("kills", [4, OFTEN])
def test_what_a_sync_covered_outlives_any_kill(tmp_path: Path, kills: int) -> None:
    chance = random.Random(3)
    data, found = tmp_path / "data", {}
    for kill in range(kills):
        command = [sys.executable, "-c", WRITER, str(data), str(kill)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(chance.randint(1, 60)):
            line = child.stdout.readline()
            assert line, "the writer ended by itself"
        child.kill()
        rest = child.communicate()[0].splitlines(keepends=True)
        whole = [each for each in [line, *rest] if each.endswith("\n")]
        found = eval(whole[-1])
        engine = RocksEngine(data, catalog="c", name="n", tuning=Tuning(memtable_bytes=1 << 20))
        for pipe_id, end in found.items():
            replica = engine.replicas()[pipe_id]
            assert replica.damage == ""
            assert replica.end >= end
            assert run_of(engine, pipe_id) == replica.end
        engine.close()
    assert len(found) == 5


def run_of(engine: RocksEngine, pipe_id: str) -> int:
    """Where a gapless run of good frames ends."""
    seq, key = 0, pipe_key(pipe_id)
    while frames := engine.read(pipe_id, seq, 1 << 60, 1 << 20, 100):
        for raw in frames:
            frame = decode(raw, pipe_key=key)
            assert frame.base_seq == seq
            seq = frame.end_seq
    return seq


# A limit on the size of files refuses the log's next write.
LIMITED = """
import resource, signal, sys
from pathlib import Path
from cassq.errors import BackendError, StorageFullError
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.options import Tuning
from tests.contract.engines import PIPE, a_frame
engine = RocksEngine(Path(sys.argv[1]), catalog="c", name="n")
engine.create(Replica(PIPE, "orders", False, 1, 1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
end = 0
try:
    while True:
        engine.append(PIPE, end, 10, a_frame(end, size=3000), 0)
        end += 10
        engine.sync()
        print(end, flush=True)
except StorageFullError as exc:
    assert exc.outcome_unknown, exc
assert engine.replicas()[PIPE].end == end
assert not engine.has_room()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert engine.has_room()
assert "File too large" in engine.starved and not engine.failure, (engine.starved, engine.failure)
assert engine.read_only
for change in (
    lambda: engine.append(PIPE, end, 10, a_frame(end, size=3000), 0),
    lambda: engine.note(PIPE, fenced=True),
    lambda: engine.cut(PIPE, 0),
    lambda: engine.drop([PIPE]),
    lambda: engine.create(Replica("other", "orders", False, 1, 1)),
    engine.sync,
):
    try:
        change()
    except BackendError as exc:
        assert "a write failed" in exc.message, exc
    else:
        raise AssertionError("a change was taken after a failed write")
assert len(engine.read(PIPE, 0, end, 1 << 30, 1000)) == end // 10
engine.close()
print("over", flush=True)
"""


def test_after_a_failed_write_nothing_is_taken_until_the_engine_is_reopened(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    *ends, last = done.stdout.split()
    assert last == "over", done.stderr
    engine = RocksEngine(tmp_path / "data", catalog="c", name="n")
    replica = engine.replicas()[PIPE]
    assert replica.damage == ""
    assert replica.end >= int(ends[-1]) > 0
    assert run_of(engine, PIPE) == replica.end
    engine.append(PIPE, replica.end, 10, a_frame(replica.end, size=3000), 0)
    engine.sync()
    engine.close()


def appends_until(engine: RocksEngine, refused: type[BackendError], end: int) -> int:
    """Append and sync until that is refused; where the last synced frame ends."""
    with pytest.raises(refused):
        while True:
            engine.append(PIPE, end, 10, a_frame(end, size=3000), 0)
            engine.sync()
            end += 10
    return end


def on_small_disk(disk: SmallDisk, free_min: int = 0) -> RocksEngine:
    return RocksEngine(
        disk.place / "data",
        catalog="c",
        name="n",
        free_min=free_min,
        tuning=Tuning(memtable_bytes=256 << 10),
    )


@NEEDS_ROOT
def test_a_disk_that_fills_up_is_left_with_some_room(small_disk: SmallDisk) -> None:
    engine = on_small_disk(small_disk, free_min=3 << 19)
    engine.create(Replica(PIPE, "orders", False, 1, 1))
    end = appends_until(engine, StorageFullError, 0)
    assert end
    assert engine.space().free > 1 << 19
    engine.note(PIPE, fenced=True)
    engine.sync()
    engine.close()
    engine = on_small_disk(small_disk, free_min=3 << 19)
    assert run_of(engine, PIPE) == end
    engine.drop([PIPE])
    engine.reclaim()
    assert not engine.read_only
    engine.close()


@pytest.mark.waits(reason="a disk is filled to the last byte")
@NEEDS_ROOT
def test_what_was_synced_is_there_after_the_disk_was_full_to_the_last_byte(
    small_disk: SmallDisk,
) -> None:
    stuff = small_disk.place / "stuff"
    stuff.write_bytes(bytes(2 << 20))
    engine = on_small_disk(small_disk)
    engine.create(Replica(PIPE, "orders", False, 1, 1))
    end = appends_until(engine, BackendError, 0)
    assert end
    with pytest.raises(BackendError, match="a write failed"):
        engine.sync()
    assert run_of(engine, PIPE) >= end
    assert engine.starved
    assert not engine.has_room()
    stuff.unlink()
    assert engine.has_room()
    engine.close()
    engine = on_small_disk(small_disk)
    assert engine.replicas()[PIPE].damage == ""
    assert run_of(engine, PIPE) >= end
    appends_until(engine, BackendError, engine.replicas()[PIPE].end)
    engine.close()


@pytest.mark.long(reason="an engine that is killed again and again")
@pytest.mark.waits(reason="a disk is filled to the last byte")
@NEEDS_ROOT
def test_a_disk_that_fills_up_at_any_moment_starves_the_engine_and_loses_nothing(
    small_disk: SmallDisk,
) -> None:
    """Beside appends, syncs and flushes, each of which meets it in its own way."""
    chance = random.Random(5)
    ids = [f"{number:024x}" for number in range(3)]
    synced: dict[str, int] = {}
    engine = on_small_disk(small_disk, free_min=1 << 18)
    for _ in range(10):
        for pipe_id in ids:
            if pipe_id in engine.replicas():
                engine.drop([pipe_id])
            engine.create(Replica(pipe_id, "orders", False, 1, 1))
        engine.reclaim()
        synced = dict.fromkeys(ids, 0)
        moment = chance.randint(1, 150)
        filling = threading.Thread(target=small_disk.fill)
        syncing = threading.Thread(target=syncs_until_refused, args=(engine, synced))
        syncing.start()
        with pytest.raises(BackendError):
            for count in range(100_000):
                if count == moment:
                    filling.start()
                elif count == moment + 200:
                    filling.join()  # else what fills the disk may be frames, which stay
                pipe_id = chance.choice(ids)
                end = engine.replicas()[pipe_id].end
                frame = a_frame(end, pipe_id=pipe_id, size=chance.choice([10, 300]))
                try:
                    engine.append(pipe_id, end, 10, frame, 0)
                except StorageFullError as error:
                    if error.outcome_unknown:
                        raise
                    engine.note(pipe_id, epoch=count)  # which no limit of space keeps out
        filling.join()
        syncing.join()
        assert engine.starved
        assert engine.failure == ""
        small_disk.free()
        assert engine.has_room()
        engine.close()
        engine = on_small_disk(small_disk, free_min=1 << 18)
        for pipe_id, end in synced.items():
            replica = engine.replicas()[pipe_id]
            assert replica.damage == ""
            assert run_of(engine, pipe_id) == replica.end >= end
    engine.close()


def syncs_until_refused(engine: RocksEngine, synced: dict[str, int]) -> None:
    """Sync again and again; takes note of what that covered."""
    try:
        while True:
            ends = {pipe_id: each.end for pipe_id, each in list(engine.replicas().items())}
            engine.sync()
            synced.update(ends)
    except BackendError:
        return
