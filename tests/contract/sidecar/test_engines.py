"""The Engine port: what was synced is there after any crash, gapless, and nothing else is."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest

from cassq.errors import BackendError, BrokenInvariantError, StorageFullError
from cassq.message.frames import FrameError
from cassq.sidecar.engine.port import Engine, Replica
from cassq.sidecar.engine.scrub import scrub
from tests.contract.engines import ODD, OTHER, PIPE, TOTAL, MemoryPlace, Place, RocksPlace, a_frame

PIPES = (PIPE, OTHER, ODD)

State = tuple[Replica, list[bytes]] | None


@pytest.fixture(params=["memory", "rocksdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield MemoryPlace()
        return
    needs = request.getfixturevalue("needs")
    needs("module:rocksdict")
    place = RocksPlace(tmp_path)
    yield place
    place.engine.close()


@pytest.fixture
def engine(place: Place) -> Engine:
    """With an extent of three frames of ten."""
    begin(place)
    return place.engine


def begin(place: Place, pipe_id: str = PIPE, frames: int = 3) -> None:
    place.engine.create(Replica(pipe_id, "orders", False, 1_700, 1))
    for base_seq in range(0, 10 * frames, 10):
        place.add(base_seq, pipe_id)


def read(engine: Engine, pipe_id: str = PIPE, seq: int = 0, end_seq: int = 10**9) -> list[bytes]:
    return engine.read(pipe_id, seq, end_seq, 1 << 30, 10**6)


@pytest.mark.parametrize("bad", [0, 10, 20])
def test_every_frame_of_a_read_is_verified_and_not_the_first_alone(place: Place, bad: int) -> None:
    """The engine keeps what it is given: here is a frame that is not whole among others."""
    engine = place.engine
    engine.create(Replica(PIPE, "orders", False, 1_700, 1))
    for base_seq in (0, 10, 20, 30):
        frame = bytearray(a_frame(base_seq))
        frame[-1] ^= base_seq == bad
        engine.append(PIPE, base_seq, 10, bytes(frame), 0)
    place.sync()
    good = [a_frame(base_seq) for base_seq in range(0, bad, 10)]
    if good:
        assert read(engine) == good, "what lies before the damage"
    with pytest.raises(FrameError):
        read(engine, seq=bad)
    assert read(engine, seq=bad + 10) == [a_frame(seq) for seq in range(bad + 10, 40, 10)]
    found = scrub(engine, PIPE, 0, 40, 1 << 30)
    assert found.seq == bad
    assert found.damage


# --- one after another ------------------------------------------------------------------------


def test_replicas_tell_what_there_is(place: Place) -> None:
    engine, size = place.engine, len(a_frame(0))
    live = engine.replicas()
    engine.create(Replica(PIPE, "orders", True, 1_700, 1))
    assert live[PIPE] == Replica(PIPE, "orders", True, 1_700, 1)
    place.add(0)
    place.add(10, acked=10)
    assert live[PIPE] == Replica(PIPE, "orders", True, 1_700, 1, 20, 10, 2 * size, 2)
    engine.note(PIPE, acked=20)
    engine.note(PIPE, epoch=2, fenced=True, final=10, damage="bad", behind=True, copying=True)
    engine.cut(PIPE, 10)
    expected = Replica(PIPE, "orders", True, 1_700, 2, 10, 20, size, 1, True, 10, "bad", True, True)
    assert live[PIPE] == expected
    engine.note(PIPE, final=None, copying=False, fenced=False)
    place.reopen()
    expected = replace(expected, fenced=False, final=None, copying=False)
    assert place.engine.replicas() == {PIPE: expected}
    place.engine.note(PIPE, damage="", behind=False)
    place.reopen()
    expected = replace(expected, damage="", behind=False)
    assert place.engine.replicas() == {PIPE: expected}
    place.engine.drop([PIPE, OTHER, PIPE])
    assert place.engine.replicas() == {}
    place.reopen()
    assert place.engine.replicas() == {}


def test_frames_come_back_whole_from_the_one_that_holds_the_seq(
    place: Place, engine: Engine
) -> None:
    frames = [a_frame(0), a_frame(10), a_frame(20)]
    size = len(frames[0])
    for _ in range(2):
        engine = place.engine
        assert read(engine) == frames
        assert read(engine, seq=9) == frames
        assert read(engine, seq=10) == frames[1:]
        assert read(engine, seq=29) == frames[2:]
        assert read(engine, end_seq=20) == frames[:2]
        assert read(engine, end_seq=21) == frames
        assert read(engine, seq=30) == []
        assert read(engine, seq=5, end_seq=5) == []
        assert engine.read(PIPE, 0, 30, 0, 9) == frames[:1]
        assert engine.read(PIPE, 0, 30, 2 * size, 9) == frames[:2]
        assert engine.read(PIPE, 0, 30, 3 * size - 1, 9) == frames[:2]
        assert engine.read(PIPE, 5, 30, 3 * size, 2) == frames[:2]
        assert read(engine, OTHER) == []
        assert engine.frame_at(PIPE, 10) == frames[1]
        assert engine.frame_at(PIPE, 11) is None
        assert engine.frame_at(PIPE, 30) is None
        assert engine.frame_at(OTHER, 0) is None
        place.reopen()


def test_extents_do_not_mix(place: Place) -> None:
    near = [PIPE, f"{int(PIPE, 16) + 1:024x}", f"{int(PIPE, 16) - 1:024x}", "p", "pp", ODD]
    for number, pipe_id in enumerate(near):
        begin(place, pipe_id, number)
    for _ in range(2):
        for number, pipe_id in enumerate(near):
            expected = [a_frame(seq, pipe_id=pipe_id) for seq in range(0, 10 * number, 10)]
            assert read(place.engine, pipe_id) == expected
        place.reopen()
    place.engine.drop([PIPE, "p"])
    place.engine.cut(ODD, 10)
    for number, pipe_id in enumerate(near):
        left = 0 if pipe_id in (PIPE, "p") else 1 if pipe_id == ODD else number
        assert len(read(place.engine, pipe_id)) == left


def test_a_cut_extent_goes_on_from_there(place: Place, engine: Engine) -> None:
    engine.cut(PIPE, 30)
    engine.cut(PIPE, 10)
    assert read(engine) == [a_frame(0)]
    again = a_frame(10, 5)
    engine.append(PIPE, 10, 5, again, 0)
    for _ in range(2):
        assert read(place.engine) == [a_frame(0), again]
        assert place.engine.replicas()[PIPE].frames == 2
        place.reopen()
    place.engine.cut(PIPE, 0)
    replica = place.engine.replicas()[PIPE]
    assert (replica.end, replica.frames, replica.size_bytes) == (0, 0, 0)
    assert read(place.engine) == []


def test_an_extent_dropped_and_made_again_is_empty(place: Place, engine: Engine) -> None:
    place.sync()
    engine.drop([PIPE])
    begin(place, frames=1)
    for _ in range(2):
        assert read(place.engine) == [a_frame(0)]
        assert place.engine.replicas()[PIPE].damage == ""
        place.reopen()


def test_what_makes_no_sense_is_refused(engine: Engine) -> None:
    with pytest.raises(BrokenInvariantError):
        engine.append(PIPE, 20, 10, a_frame(20), 0)
    with pytest.raises(BrokenInvariantError):
        engine.append(PIPE, 40, 10, a_frame(40), 0)
    with pytest.raises(BrokenInvariantError):
        engine.create(Replica(PIPE, "orders", False, 1_700, 1))
    with pytest.raises(BrokenInvariantError):
        engine.cut(PIPE, 11)
    with pytest.raises(BrokenInvariantError):
        engine.cut(PIPE, 40)
    assert len(read(engine)) == 3


# --- crashes ----------------------------------------------------------------------------------


def test_after_a_crash_each_extent_is_as_it_was_at_some_moment_since_the_sync(
    place: Place,
) -> None:
    """All of a frame's row, cut or note is there, or nothing of it and of what came later."""
    for seed in range(25):
        rng = random.Random(seed)
        since: dict[str, list[State]] = defaultdict(lambda: [None])
        for pipe_id, replica in place.engine.replicas().items():
            since[pipe_id] = [(replace(replica), read(place.engine, pipe_id))]
        for _ in range(rng.randint(1, 60)):
            if rng.random() < 0.1:
                place.sync()
                for states in since.values():
                    del states[:-1]
                continue
            pipe_id = rng.choice(PIPES)
            act(place, rng, pipe_id)
            now = place.engine.replicas().get(pipe_id)
            frames = [] if now is None else read(place.engine, pipe_id)
            since[pipe_id].append(None if now is None else (replace(now), frames))
        place.crash(rng)
        for pipe_id, states in since.items():
            now = place.engine.replicas().get(pipe_id)
            state = None if now is None else (now, read(place.engine, pipe_id))
            assert state in states, f"seed {seed}: {pipe_id}"


def act(place: Place, rng: random.Random, pipe_id: str) -> None:
    """Change something, durably with the next sync."""
    engine = place.engine
    replica = engine.replicas().get(pipe_id)
    if replica is None:
        engine.create(Replica(pipe_id, "orders", rng.random() < 0.5, 1_700, 1))
        return
    match rng.choice(["append"] * 6 + ["note", "cut", "drop"]):
        case "append":
            place.add(replica.end, pipe_id, acked=replica.end)
        case "note":
            engine.note(pipe_id, epoch=replica.epoch + 1, fenced=rng.random() < 0.5)
        case "cut":
            engine.cut(pipe_id, rng.randrange(0, replica.end + 1, 10))
        case "drop":
            engine.drop([pipe_id])


def test_one_sync_serves_all_that_was_changed_before(place: Place) -> None:
    for pipe_id in PIPES:
        begin(place, pipe_id)
    place.engine.note(OTHER, fenced=True)
    place.sync()
    place.crash(random.Random(1))
    for pipe_id in PIPES:
        assert read(place.engine, pipe_id) == [a_frame(s, pipe_id=pipe_id) for s in (0, 10, 20)]
    assert place.engine.replicas()[OTHER].fenced


def test_what_is_acknowledged_is_written_with_what_comes_next(place: Place) -> None:
    begin(place, frames=1)
    place.engine.note(PIPE, acked=10)
    place.engine.note(PIPE, fenced=True)
    place.sync()
    place.crash(random.Random(1))
    assert place.engine.replicas()[PIPE].acked == 10


def test_syncs_of_several_threads_beside_changes_lose_nothing(place: Place) -> None:
    begin(place, frames=0)
    over = threading.Event()
    failures: list[BaseException] = []

    def sync() -> None:
        try:
            while not over.is_set():
                place.engine.sync()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    for base_seq in range(0, 1000, 10):
        place.add(base_seq)
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    place.sync()
    place.crash(random.Random(1))
    assert read(place.engine) == [a_frame(base_seq) for base_seq in range(0, 1000, 10)]


# --- trouble ----------------------------------------------------------------------------------


def test_a_flipped_bit_is_seen_and_good_frames_before_it_are_given(place: Place) -> None:
    begin(place, frames=0)
    frames = [a_frame(base_seq, size=3000) for base_seq in range(0, 200, 10)]
    for base_seq, frame in zip(range(0, 200, 10), frames, strict=True):
        place.engine.append(PIPE, base_seq, 10, frame, 0)
    place.flip(PIPE, 100)
    assert read(place.engine) == frames[:10]
    assert read(place.engine, seq=110) == frames[11:]
    with pytest.raises(FrameError):
        read(place.engine, seq=100)
    with pytest.raises(FrameError):
        place.engine.read(PIPE, 105, 106, 1, 1)
    assert place.engine.replicas()[PIPE].end == 200


def test_below_the_limit_nothing_is_taken_until_there_is_a_quarter_more(
    place: Place, engine: Engine
) -> None:
    place.free = place.free_min
    assert not engine.read_only
    place.free = place.free_min - 1
    assert engine.read_only
    with pytest.raises(StorageFullError) as caught:
        place.add(30)
    assert not caught.value.outcome_unknown
    assert engine.replicas()[PIPE].end == 30
    engine.note(PIPE, fenced=True)
    engine.cut(PIPE, 20)
    engine.sync()
    assert len(read(engine)) == 2
    place.free = place.free_min + place.free_min // 4 - 1
    assert engine.read_only
    place.free += 1
    assert not engine.read_only
    place.add(20)
    assert engine.space() == (place.free, TOTAL)


def test_a_closed_engine_takes_nothing(place: Place, engine: Engine) -> None:
    engine.close()
    if isinstance(place, RocksPlace):
        engine.close()
        with pytest.raises(BackendError):
            place.add(30)
        place.open()
    else:
        place.reopen()
    assert len(read(place.engine)) == 3


# --- scrubbing --------------------------------------------------------------------------------


def test_a_scrub_runs_in_steps_and_reports_what_it_read(place: Place) -> None:
    begin(place, frames=30)
    begin(place, OTHER, frames=30)
    whole = scrub(place.engine, PIPE, 0, 300, 1 << 30)
    frames = [a_frame(base_seq) for base_seq in range(0, 300, 10)]
    assert whole == (300, xxh3_128_hexdigest(b"".join(frames)), "", 30 * len(frames[0]))
    assert scrub(place.engine, OTHER, 0, 300, 1 << 30).digest != whole.digest
    seq, steps = 0, 0
    while seq < 300:
        step = scrub(place.engine, PIPE, seq, 300, 3 * len(frames[0]))
        assert step.digest == xxh3_128_hexdigest(b"".join(frames[seq // 10 : step.seq // 10]))
        assert step.seq - seq <= 30
        seq, steps = step.seq, steps + 1
    assert steps == 10
    assert scrub(place.engine, PIPE, 100, 110, 1).seq == 110
    assert scrub(place.engine, PIPE, 300, 310, 1) == (300, xxh3_128_hexdigest(b""), "", 0)
    assert "begins at 100" in scrub(place.engine, PIPE, 105, 110, 1).damage


def test_a_scrub_finds_a_flipped_bit_and_where_it_is(place: Place) -> None:
    begin(place, frames=0)
    for base_seq in range(0, 200, 10):
        place.engine.append(PIPE, base_seq, 10, a_frame(base_seq, size=3000), 0)
    place.flip(PIPE, 100)
    found = scrub(place.engine, PIPE, 0, 200, 1 << 30)
    assert found.seq == 100
    assert found.damage
    assert scrub(place.engine, PIPE, 100, 200, 1 << 30).seq == 100
    assert scrub(place.engine, PIPE, 110, 200, 1 << 30) == (
        *(200, xxh3_128_hexdigest(b"".join(a_frame(s, size=3000) for s in range(110, 200, 10)))),
        *("", 9 * len(a_frame(0, size=3000))),
    )
