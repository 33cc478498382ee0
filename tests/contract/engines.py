"""The engines under contract, each with what can befall it: restarts, crashes, flipped bytes."""

from __future__ import annotations

import abc
import random
import shutil
from contextlib import suppress
from pathlib import Path

from cassq.message.frames import Extras, FrameError, encode, pipe_key
from cassq.sidecar.engine.port import Engine, Replica, Space
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.options import Tuning
from tests.simulation.worlds.memory_engine import MemoryEngine

PIPE = "0123456789abcdef01234567"
OTHER = "89abcdef0123456701234567"
ODD = "an id of another kind, ♜"
TOTAL = 1 << 40
FRAMES = 12
SIZE = 3000  # of a message: each frame in a block of its own, as frames are


def a_frame(base_seq: int, count: int = 10, *, pipe_id: str = PIPE, size: int = 8) -> bytes:
    payloads = [bytes([base_seq % 251]) * size] * count
    return b"".join(encode(base_seq, payloads, Extras(1_700), pipe_key=pipe_key(pipe_id)))


class Place(abc.ABC):
    """Where an engine lives. free_min: of the engine; free: of its disk."""

    engine: Engine
    free_min = 1000
    free = TOTAL

    @abc.abstractmethod
    def reopen(self) -> None:
        """Close it, and open it anew."""

    @abc.abstractmethod
    def crash(self, rng: random.Random) -> None:
        """Lose some of what no sync covered, and open it anew."""

    @abc.abstractmethod
    def flip(self, pipe_id: str, base_seq: int) -> None:
        """Turn a bit of a frame, and open it anew."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Sync, and take note of what was."""

    def add(self, base_seq: int, pipe_id: str = PIPE, acked: int = 0) -> None:
        """Append a frame of ten."""
        self.engine.append(pipe_id, base_seq, 10, a_frame(base_seq, pipe_id=pipe_id), acked)


class MemoryPlace(Place):
    def __init__(self) -> None:
        self.engine: MemoryEngine = MemoryEngine(free_min=self.free_min)

    def reopen(self) -> None:
        self.engine.close()
        self.engine.crash(random.Random(0))

    def crash(self, rng: random.Random) -> None:
        self.engine.crash(rng)

    def flip(self, pipe_id: str, base_seq: int) -> None:
        self.engine.flip(pipe_id, base_seq)

    def sync(self) -> None:
        self.engine.sync()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name == "free":
            self.engine.free = self.free


class RocksPlace(Place):
    """A crash is a copy of the directory as it is, of which the log is cut somewhere behind what
    was synced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._synced: dict[str, int] = {}
        self.open()

    @property
    def place(self) -> Path:
        return self.path / f"data-{self._number}"

    def open(self) -> None:
        self.engine: RocksEngine = RocksEngine(
            self.place,
            catalog="catalog-1",
            name="sidecar-1",
            free_min=self.free_min,
            probe=lambda: Space(self.free, TOTAL),
            tuning=Tuning(cache_bytes=1 << 20, memtable_bytes=2 << 20, statistics=True),
        )

    def reopen(self) -> None:
        self.engine.close()
        self.open()

    def logs(self) -> dict[Path, int]:
        """The log files with anything in them, in their order, and their sizes."""
        found = {}
        for each in sorted(self.place.glob("rocksdb/*.log")):
            with suppress(FileNotFoundError):  # RocksDB's thread removes what is in a table now
                found[each] = each.stat().st_size
        return {log: size for log, size in found.items() if size}

    def sync(self) -> None:
        self.engine.sync()
        self._synced = {log.name: size for log, size in self.logs().items()}

    def halt(self) -> None:
        """End as by a kill: go on in a copy of what is there, which is not open yet."""
        before = self.place
        self._number += 1
        # Nothing may change while the copy is made; a close would fail to flush, then.
        self.engine._reclaim.stop()
        self.engine._db.cancel_all_background(True)
        shutil.copytree(before, self.place)
        with suppress(Exception):
            self.engine.close()
        shutil.rmtree(before)
        self.keep()

    def keep(self) -> None:
        """Remember the directory as it is, for `again`."""
        shutil.rmtree(self.path / "kept", ignore_errors=True)
        shutil.copytree(self.place, self.path / "kept")

    def again(self) -> None:
        """Have the directory that was kept once more."""
        shutil.rmtree(self.place)
        self._number += 1
        shutil.copytree(self.path / "kept", self.place)

    def crash(self, rng: random.Random) -> None:
        self.halt()
        for log, size in list(self.logs().items())[-1:]:
            with log.open("r+b") as file:
                file.truncate(rng.randint(self._synced.get(log.name, 0), size))
        self.open()

    def flip(self, pipe_id: str, base_seq: int) -> None:
        frame = self.engine.frame_at(pipe_id, base_seq)
        assert frame is not None
        self.engine._db.flush(True)
        self.engine.close()
        found = 0
        for table in self.place.glob("rocksdb/*.sst"):
            raw = bytearray(table.read_bytes())
            at = raw.find(frame[8:32])
            if at >= 0:
                raw[at + 26] ^= 1  # behind the header, in its body
                table.write_bytes(raw)
                found += 1
        assert found == 1
        self.open()


def fill(place: RocksPlace, *pipe_ids: str) -> None:
    """Extents of frames that are written in turn, all synced."""
    for pipe_id in pipe_ids:
        place.engine.create(Replica(pipe_id, "orders", False, 1_700, 1))
    for number in range(FRAMES):
        for pipe_id in pipe_ids:
            append(place, pipe_id, 10 * number)
    place.sync()


def append(place: RocksPlace, pipe_id: str, base_seq: int) -> None:
    frame = a_frame(base_seq, pipe_id=pipe_id, size=SIZE)
    place.engine.append(pipe_id, base_seq, 10, frame, base_seq)


def look(engine: RocksEngine, *pipe_ids: str) -> dict[str, bool]:
    """Whether each is damaged; what can be read is right, and an undamaged one is whole, or says
    where it is not."""
    found = {}
    for pipe_id in pipe_ids:
        replica = engine.replicas().get(pipe_id)
        assert replica is not None, f"{pipe_id} is gone, and nobody says so"
        assert replica.damage or replica.end == 10 * FRAMES, "merely shorter"
        bad = bool(replica.damage)
        for base_seq in range(0, replica.end, 10):
            expected = a_frame(base_seq, pipe_id=pipe_id, size=SIZE)
            try:
                assert engine.read(pipe_id, base_seq, replica.end, 1, 1) == [expected]
            except FrameError:
                bad = True
        found[pipe_id] = bad
    return found
