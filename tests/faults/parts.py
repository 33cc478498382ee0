"""The parts that actors play: pushers, poppers, openers and reapers, each a process of its own.

Whoever risks something tells it first: a pusher what it is about to push, then what it was
acknowledged; a popper what it was handed and what it is about to commit, then what it committed.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cassq
from cassq import doorbell
from cassq import popper as popper_module
from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends import embedded
from cassq.errors import BackendError, ClaimLostError, StorageFullError
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import FilesStore
from cassq.message.batches import Batch
from cassq.model.rows import PipeRow, PipeState
from cassq.producer import staging
from tests.integration.stage import client_on, reap


class Stage:
    """What a part speaks and hears through."""

    def __init__(self, tell: Callable[..., None], hears: Connection) -> None:
        self.tell = tell
        self._hears = hears

    def word(self) -> Any:
        """Wait for the test's next word."""
        return self._hears.recv()

    def over(self) -> bool:
        """Whether the test said that it is enough."""
        return self._hears.poll(0)


# --- opening ----------------------------------------------------------------------------------


def create(stage: Stage, url: str) -> None:
    """Open a directory that is not there, make its queue, push one message."""
    stage.tell("waiting")
    stage.word()
    with cassq.connect(url) as client:
        with client.create_queue("jobs").pusher() as pusher:
            pusher.push(b"%d" % os.getpid())
    stage.tell("done")


def keep_open(stage: Stage, path: str) -> None:
    """Keep the catalog's file open, so that nobody reads its log anew."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("SELECT count(*) FROM queues").fetchall()
    stage.tell("open")
    stage.word()


def make_unseen_pipe(stage: Stage, directory: str) -> None:
    """Make a pipe, and leave the commit of its row as a kill just before the end would: in the log,
    but not in the log's index, whose two headers take 96 bytes."""
    catalog, store = _opened(directory)
    index = Path(directory) / "catalog.sqlite-shm"
    queue = catalog.queues.named("jobs")
    assert queue is not None
    now_ms = catalog.now_ms()
    pipe_id = Ids().new(now_ms)
    writer = store.create(pipe_id, "jobs")
    before = index.read_bytes()[:96]
    assert catalog.pipes.add(PipeRow(pipe_id, queue.id, PipeState.OPEN, "maker", now_ms, 60_000))
    with index.open("r+b") as file:
        file.write(before)
    stage.tell("unseen", catalog.pipes.by_id(pipe_id) is None)
    stage.word()
    writer.close()


def adopt(stage: Stage, directory: str) -> None:
    """Adopt what has no row."""
    embedded.adopt(*_opened(directory), Ids())
    stage.tell("adopted")
    stage.word()


def _opened(directory: str) -> tuple[SqliteCatalog, FilesStore]:
    clock = SystemClock()
    pipes = Path(directory) / "pipes"
    return (
        SqliteCatalog(Path(directory) / "catalog.sqlite", clock),
        FilesStore(pipes, clock, durability="disk", disk=Disk()),
    )


def reopen(stage: Stage, url: str, times: int) -> None:
    """Open and close the directory again and again."""
    for _ in range(times):
        cassq.connect(url).close()
    stage.tell("done")


def catalog_keeper(stage: Stage, path: str) -> None:
    """Begin a transaction of the catalog and stay in it until told to go on."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    database.execute("UPDATE queues SET version = version")
    stage.tell("inside")
    stage.word()
    database.execute("ROLLBACK")
    stage.tell("done")


# --- pushing ----------------------------------------------------------------------------------


def push_each(stage: Stage, url: str, name: str, first: int, last: int) -> None:
    """Push `name:n` for each n, one by one."""
    with cassq.connect(url) as client, client.queue("jobs").pusher() as pusher:
        for n in range(first, last):
            stage.tell("pushed", n, pusher.push(b"%s:%d" % (name.encode(), n)))
    stage.tell("done")


def push_on_word(stage: Stage, url: str) -> None:
    """Push each word of the test's."""
    with cassq.connect(url) as client, client.queue("jobs").pusher() as pusher:
        stage.tell("ready")
        while (word := stage.word()) is not None:
            stage.tell("pushed", pusher.push(word))
    stage.tell("done")


def work_until_told(stage: Stage, url: str) -> None:
    """A worker as its user writes it: SIGTERM stops the popper, and the loop ends."""
    with cassq.connect(url) as client, client.queue("jobs").popper() as popper:
        signal.signal(signal.SIGTERM, lambda *_: popper.stop())
        stage.tell("ready")
        for message in popper:
            stage.tell("done", message.payload)
            message.ack()
    stage.tell("ended")


def push_wildly(stage: Stage, url: str, name: str, seed: int) -> None:
    """Push by all three verbs until told to stop; `try` and `ok` name ranges of numbers."""
    chance = random.Random(seed)
    n = 0
    with cassq.connect(url) as client, client.queue("jobs").pusher() as pusher:
        while not stage.over():
            count = chance.choice([1, 1, 1, 5, 200])
            mine = [b"%s:%d" % (name.encode(), i) for i in range(n, n + count)]
            stage.tell("try", name, n, n + count)
            if count == 1:
                pusher.push(mine[0])
            elif count == 5:
                for future in [pusher.push_soon(payload) for payload in mine]:
                    future.result()
            else:
                pusher.push_many(mine)
            stage.tell("ok", name, n, n + count)
            n += count
    stage.tell("done")


# --- popping ----------------------------------------------------------------------------------


def pop_and_hold(stage: Stage, url: str, group: str, count: int) -> None:
    """Take messages, tell of them, and commit on the test's word."""
    with cassq.connect(url) as client, client.queue("jobs").popper(group) as popper:
        messages = popper.pop(count, wait=30)
        stage.tell("got", [(m.payload, m.attempts) for m in messages])
        stage.word()
        try:
            popper.commit(messages)
            stage.tell("committed")
        except ClaimLostError:
            stage.tell("lost")


def pop_orderly(stage: Stage, url: str, group: str, batch: int) -> None:
    """Pop, tell, commit, until told to stop."""
    with cassq.connect(url) as client, client.queue("jobs").popper(group) as popper:
        stage.tell("ready")
        while not stage.over():
            messages = popper.pop(batch, wait=0.1)
            if messages:
                stage.tell("got", group, [m.payload for m in messages])
                commit_telling(stage, popper, group, messages)
    stage.tell("done")


def commit_telling(
    stage: Stage, popper: cassq.Popper, group: str, messages: Sequence[cassq.Message]
) -> None:
    """Commit, telling of it before and after. Raises ClaimLostError, which is told as well."""
    found = [m.payload for m in messages]
    stage.tell("commit", group, found)
    try:
        popper.commit(messages)
    except ClaimLostError:
        stage.tell("lost", group, found)
        raise
    stage.tell("committed", group, found)


def pop_wildly(stage: Stage, url: str, group: str, seed: int) -> None:
    """Pop, tell, and do any of the things that can be done with messages, until told to stop."""
    chance = random.Random(seed)
    with cassq.connect(url) as client, client.queue("jobs").popper(group) as popper:
        while not stage.over():
            messages = popper.pop(chance.choice([1, 10, 1000]), wait=0.05)
            if not messages:
                continue
            stage.tell("got", group, [m.payload for m in messages])
            with contextlib.suppress(ClaimLostError):  # it was stopped: others have them
                _settle(stage, chance, popper, group, messages)
    stage.tell("done")


def _settle(
    stage: Stage,
    chance: random.Random,
    popper: cassq.Popper,
    group: str,
    messages: Sequence[cassq.Message],
) -> None:
    draw = chance.random()
    half = len(messages) // 2
    if draw < 0.70:
        commit_telling(stage, popper, group, messages)
    elif draw < 0.80:
        commit_telling(stage, popper, group, messages[:half])
        popper.rollback(messages[half:])
    elif draw < 0.90:
        stage.tell("commit", group, [m.payload for m in messages[:half]])
        for message in messages[:half]:
            message.ack()  # durable at some time, which nobody is told
        for message in messages[half:]:
            message.release()
    else:
        popper.rollback(messages, delay=0.05)


def die_of_poison(stage: Stage, url: str, batch: int) -> None:
    """Commit what is popped; die at once, without a trace, when the poison is among it."""
    with cassq.connect(url) as client, client.queue("jobs").popper() as popper:
        while not stage.over():
            for message in popper.pop(batch, wait=0.05):
                if message.payload == b"poison":
                    stage.tell("dying", message.attempts)
                    os.kill(os.getpid(), signal.SIGKILL)
                with contextlib.suppress(ClaimLostError):  # it stood still: others have it
                    message.ack()
            popper.commit([])


def die_of_anything(stage: Stage, url: str, group: str, batch: int) -> None:
    """Tell what is popped, with its attempts, and die at once: a consumer that cannot work."""
    with cassq.connect(url) as client, client.queue("jobs").popper(group) as popper:
        while not stage.over():
            if messages := popper.pop(batch, wait=0.1):
                stage.tell("dying", [(m.payload, m.attempts) for m in messages])
                os.kill(os.getpid(), signal.SIGKILL)


def wake_and_tell(stage: Stage, url: str, look_again: float) -> None:
    """Wait for messages one by one, and tell each. look_again: after so many seconds a popper looks
    without a ring."""
    doorbell.LOOK_AGAIN_SECONDS = popper_module.LOOK_AGAIN_SECONDS = look_again
    with cassq.connect(url) as client, client.queue("jobs").popper() as popper:
        stage.tell("ready")
        while not stage.over():
            for message in popper.pop(1, wait=look_again):
                stage.tell("got", message.payload)
                popper.commit([message])
                if message.payload == b"last":
                    return


# --- passes -----------------------------------------------------------------------------------


def reap_always(stage: Stage, url: str) -> None:
    """Open the directory, run every pass over every queue, close it; until told to stop."""
    rounds = 0
    while not stage.over():
        with cassq.connect(url) as client:
            for _ in range(3):
                with contextlib.suppress(BackendError):
                    reap(client)
        rounds += 1
        stage.tell("reaped", rounds)
    stage.tell("done")


def threads_inside(stage: Stage, url: str) -> None:
    """Several threads of one client push and pop until told to stop."""
    over = threading.Event()
    with cassq.connect(url) as client:
        queue = client.queue("jobs")
        pusher, popper = queue.pusher(), queue.popper()

        def push() -> None:
            while not over.is_set():
                pusher.push(b"x")

        def pop() -> None:
            while not over.is_set():
                popper.commit(popper.pop(100, wait=0.05))

        threads = [threading.Thread(target=work) for work in (push, push, pop)]
        for thread in threads:
            thread.start()
        stage.tell("ready")
        stage.word()
        over.set()
        for thread in threads:
            thread.join()
    stage.tell("done")


def push_to_the_limit(stage: Stage, url: str, limit: int, size: int) -> None:
    """Push while no file may grow beyond `limit` bytes; once more when it may again."""
    ids: list[str] = []
    with cassq.connect(url) as client, client.queue("jobs").pusher() as pusher:
        ids.append(pusher.push(b"first"))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            while True:
                ids.append(pusher.push(bytes(size)))
        except StorageFullError:
            stage.tell("full", ids)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        stage.tell("again", pusher.push(b"again"))


def run_out_of_files(stage: Stage, url: str) -> None:
    """Push and pop with no file descriptor left, then with some again."""
    with cassq.connect(url) as client:
        queue = client.queue("jobs")
        pusher, popper = queue.pusher(), queue.popper()
        waiting = threading.Thread(target=lambda: popper.pop(1, wait=60), daemon=True)
        pusher.push_soon(b"first").result(30)
        popper.commit(popper.pop())
        waiting.start()
        taken: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        stage.tell("taken", len(taken))
        for n in range(10):  # rings the bell of one who waits, without a descriptor for it
            stage.tell("pushed", pusher.push_soon(b"%d" % n).result(30))
        try:
            queue.pusher().push(b"needs a file")
        except BackendError as exc:
            stage.tell("refused", str(exc))
        for descriptor in taken:
            os.close(descriptor)
        queue.pusher().push(b"has a file")
        waiting.join(30)
    stage.tell("done")


# --- dead letters -----------------------------------------------------------------------------


def merge_and_die(stage: Stage, directory: str, step: int, where: dict[str, Any]) -> None:
    """Merge the dead letters of `jobs`, and be killed right after the `step`th thing that was
    written: a commit of the catalog, or a write or sync of a pipe."""
    deaths = Deaths()
    disk = DeadlyDisk(deaths)
    with client_on(Path(directory), disk, committed=deaths.step) as client:
        letters = client.queue("jobs").dead_letters()
        deaths.await_step(step)
        letters.merge(**where)
        deaths.await_step(0)
    stage.tell("survived")


# --- staged writes ----------------------------------------------------------------------------


def write_and_die(stage: Stage, directory: str, step: int, driver: str) -> None:
    """Fill pipes for a write to `jobs` and publish them, and be killed right after the `step`th
    thing that was written, as by `merge_and_die`; 0: not at all."""
    deaths = Deaths()
    disk = DeadlyDisk(deaths)
    with client_on(Path(directory), disk, committed=deaths.step) as client:
        row = client.queue("jobs").row
        deaths.await_step(step)
        write = staging.begin(client.ports, row, "w", 0, driver)
        stage.tell("over", staging.is_over(write, 0))
        pipes = []
        for task in range(2 if not staging.is_over(write, 0) else 0):
            part = staging.Stage(client.ports, row, write)
            for n in range(2):
                part.append(Batch([b"%d:%d" % (task, n)], client.ports.clock.wall_ms()))
            pipes += part.finish()
        if pipes:
            staging.publish(client.ports, row, write, pipes)
        deaths.await_step(0)
    stage.tell("survived")


class Deaths:
    """Kills its process at a step."""

    def __init__(self) -> None:
        self._left = 0

    def await_step(self, step: int) -> None:
        """Die at the `step`th from now on; 0: not at all."""
        self._left = step

    def step(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyDisk(Disk):
    """A disk after whose writes its process may die."""

    def __init__(self, deaths: Deaths) -> None:
        self._deaths = deaths

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        written = super().pwritev(fd, buffers, pos)
        self._deaths.step()
        return written

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self._deaths.step()
