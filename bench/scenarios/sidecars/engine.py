"""Engine: what a sidecar's engine writes, beside RocksDB written plainly, and with much open."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter

from rocksdict import Rdict, WriteBatch, WriteOptions

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.options import Tuning, options, takes_direct_io

SECONDS_MAX = 900.0
GROUP = 4  # frames a sync
FRAMES_OF = (100_000, 1_000_000)
OPEN = "engine/open"
OPEN_FRAME_BYTES = 10_000
OPEN_GROUP = 50
FEW = 10
EXTENTS_OF_WRITERS = 8  # open at once while frames of one size are written
MESSAGES = 100  # a frame says it holds; nobody looks into it

Write = Callable[[int], None]


def opened(path: Path) -> RocksEngine:
    return RocksEngine(path, catalog="bench", name="bench")


def pipe_id(number: int) -> str:
    return f"{number:024x}"


def into_engine(engine: RocksEngine, extents: int, frame_bytes: int, group: int) -> Write:
    """A function that appends so many frames to extents in turn, and syncs after each group."""
    for number in range(extents):
        engine.create(Replica(pipe_id(number), "bench", False, 0, 1))
    engine.sync()
    ids, replicas = cycle(map(pipe_id, range(extents))), engine.replicas()
    frames = bodies(frame_bytes)

    def write(count: int) -> None:
        for number in range(1, count + 1):
            name = next(ids)
            end = replicas[name].end
            engine.append(name, end, MESSAGES, next(frames), end)
            if number % group == 0:
                engine.sync()
        engine.sync()

    return write


def into_rocksdb(db: Rdict, extents: int, frame_bytes: int, group: int) -> Write:
    """The same by hand: frames under keys of the same kind, a batch a group, each synced."""
    synced = WriteOptions()
    synced.sync = True
    ends = [0] * extents
    numbers = cycle(range(extents))
    frames = bodies(frame_bytes)

    def write(count: int) -> None:
        for _ in range(0, count, group):
            batch = WriteBatch(raw_mode=True)
            for _ in range(group):
                number = next(numbers)
                key = number.to_bytes(13, "big") + ends[number].to_bytes(8, "big")
                batch.put(key, next(frames))
                ends[number] += MESSAGES
            db.write(batch, synced)

    return write


def bodies(frame_bytes: int) -> Iterator[bytes]:
    """Frames that nobody can compress, over and over."""
    return cycle([os.urandom(frame_bytes) for _ in range(16)])


def in_turn(writes: dict[str, Write], count: int, windows: int) -> dict[str, list[float]]:
    """Frames a second of each, by windows in which they take turns; the first one warms up."""
    rates: dict[str, list[float]] = {name: [] for name in writes}
    for window in range(windows + 1):
        names = list(writes) if window % 2 else list(reversed(writes))
        for name in names:
            started = perf_counter()
            writes[name](count)
            if window:
                rates[name].append(rate(count, perf_counter() - started))
    return rates


def write_frames(
    _gate: Gate, seat: Seat, frame_bytes: int, window_bytes: int, windows: int
) -> Figures:
    home = seat.place.directory
    engine = opened(home / "engine")
    plain = Rdict(str(home / "plain"), options(Tuning(), create=True, direct=takes_direct_io(home)))
    writes = {
        "engine": into_engine(engine, EXTENTS_OF_WRITERS, frame_bytes, GROUP),
        "plain": into_rocksdb(plain, EXTENTS_OF_WRITERS, frame_bytes, GROUP),
    }
    rates = in_turn(writes, window_bytes // frame_bytes // GROUP * GROUP or GROUP, windows)
    engine.close()
    plain.close()
    pairs = zip(rates["engine"], rates["plain"], strict=True)
    return {
        "engine": median(rates["engine"]) * frame_bytes,
        "plain": median(rates["plain"]) * frame_bytes,
        "over_plain": median(ours / theirs for ours, theirs in pairs),
    }


def write_to_many(_gate: Gate, seat: Seat, many: int, windows: int) -> Figures:
    """Appends to few and to many extents in turn."""
    home = seat.place.directory
    engines = {"few": opened(home / "few"), "many": opened(home / "many")}
    writes = {
        "few": into_engine(engines["few"], FEW, OPEN_FRAME_BYTES, OPEN_GROUP),
        "many": into_engine(engines["many"], many, OPEN_FRAME_BYTES, OPEN_GROUP),
    }
    rates = in_turn(writes, max(many // 2, OPEN_GROUP), windows)
    for engine in engines.values():
        engine.close()
    pairs = zip(rates["many"], rates["few"], strict=True)
    return {
        "few": median(rates["few"]),
        "many": median(rates["many"]),
        "kept": median(more / less for more, less in pairs),
    }


def hold_many(_gate: Gate, seat: Seat, many: int) -> Figures:
    """The memory of a process that has many extents open and has appended to each, and read."""
    engine = opened(seat.place.directory / "held")
    write = into_engine(engine, many, OPEN_FRAME_BYTES, OPEN_GROUP)
    write(3 * many)
    started = perf_counter()
    engine.close()
    engine = opened(seat.place.directory / "held")
    opening = perf_counter() - started
    engine.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rss_mib": peak, "rss_bytes": peak * 2**20, "opening_s": opening}


class EngineAlone(Scenario):
    name = "engine"
    title = "Engine: appends and syncs below a sidecar, by themselves"
    headline = "over_plain"
    alone = True

    def rounds(self, plan: Plan) -> int:
        return 1  # they take turns within

    def cases(self, plan: Plan) -> list[Case]:
        return [
            *(
                Case(
                    f"engine/{size // 1000}k",
                    f"frames of {size // 1000:,} KB, {GROUP} a sync, beside plain RocksDB",
                    size,
                )
                for size in FRAMES_OF
            ),
            Case(
                OPEN,
                f"{FEW} and {plan.engine_extents:,} open extents, frames of"
                f" {OPEN_FRAME_BYTES // 1000} KB, {OPEN_GROUP} a sync",
                OPEN_FRAME_BYTES,
            ),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("engine", "engine, MB/s", "MB"),
            Column("plain", "plain RocksDB, MB/s", "MB"),
            Column("over_plain", "engine over plain", "ratio"),
            Column("few", f"frames/s to {FEW}", "rate"),
            Column("many", f"frames/s to {plan.engine_extents:,}", "rate"),
            Column("kept", "many over few", "ratio"),
            Column("rss_bytes", "peak memory with many, MB", "MB"),
            Column("opening_s", "closed and opened in, s", "s"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        if case.key != OPEN:
            arguments = (seat, case.size, plan.engine_window_bytes, plan.engine_windows)
            return run([Job(write_frames, arguments)], SECONDS_MAX)[0]
        many = plan.engine_extents
        [rates] = run([Job(write_to_many, (seat, many, plan.engine_windows))], SECONDS_MAX)
        [held] = run([Job(hold_many, (seat, many))], SECONDS_MAX)
        return {**rates, **held}
