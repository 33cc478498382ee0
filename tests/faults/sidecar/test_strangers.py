"""Strangers at a sidecar that may open few files: silent, half-open, stalled, and with garbage, at
every step of a connection, with TLS and without. Others push meanwhile.

CASSQ_STRANGERS_SECONDS says how long the long test lasts, with TLS and without; 420 by default,
since no test may last ten minutes.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import ssl
import statistics
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import cassq
from cassq.base.clock import Stopwatch
from cassq.base.tls import tls_of
from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import BackendError, BackendUnavailableError
from cassq.extents.protocol.messages import VERSION, Hello, Info, Open, Read, RefusedError
from cassq.extents.protocol.wire import request_parts
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from tests.faults.actors import Act
from tests.integration.deadlines import eventually, joined
from tests.integration.served import Served, catalog
from tests.integration.sidecar.certificates import authority, signed
from tests.integration.sidecars import append

__all__ = ["catalog"]

pytestmark = pytest.mark.needs("openssl", "module:rocksdict", "module:uvloop")

LONG_SECONDS = float(os.environ.get("CASSQ_STRANGERS_SECONDS", "420"))
SHORT_SECONDS = 4.0
PATIENCE = 120.0
FILES_MAX = 1024
TOKEN = "s3cret"
AT_ONCE = 40  # connections of one thread
THREADS = 3
MEMORY_BYTES_MAX = 50_000_000  # more than before
FILES_MORE_MAX = 20  # tables and logs that RocksDB has opened meanwhile, and idle connections

_HELLO = b"".join(request_parts(Hello(VERSION, "", TOKEN, "stranger\nwith a line break"), 1))
_OPEN = b"".join(request_parts(Open("stranger", 1, "q", False), 2))
_INFOS = b"".join(b"".join(request_parts(Info(), number)) for number in range(2, 20))
_CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


class Kind(NamedTuple):
    """What one does. secured: after its TLS handshake, where there is TLS; else instead of it.
    ends: that it sends no more."""

    said: bytes
    secured: bool = True
    ends: bool = False


KINDS = (
    Kind(b"", secured=False),
    Kind(_CLIENT_HELLO, secured=False),
    Kind(_HELLO, secured=False),
    Kind(os.urandom(300), secured=False),
    Kind(b"", secured=False, ends=True),
    Kind(b""),
    Kind(_HELLO[: len(_HELLO) // 2]),
    Kind(b"\xff\xff\xff\x7f"),
    Kind(os.urandom(3000)),
    Kind(_OPEN),
    Kind(_HELLO.replace(TOKEN.encode(), b"s3cre!")),
    Kind(_HELLO, ends=True),
    Kind(_HELLO + _OPEN[: len(_OPEN) // 2]),
    Kind(_HELLO + struct.pack("<I", 60_000_000) + bytes(100_000)),
    Kind(_HELLO + os.urandom(3000)),
    Kind(_HELLO + _INFOS),
)


def stranger(address: str, tls: ssl.SSLContext | None, kind: Kind) -> socket.socket | None:
    """One that has done what its kind does; None if it was closed before."""
    host, _, port = address.rpartition(":")
    opened = None
    try:
        opened = socket.create_connection((host, int(port)), timeout=5)
        opened.settimeout(5)
        if tls is not None and kind.secured:
            opened = tls.wrap_socket(opened, server_hostname=host)
        opened.sendall(kind.said)
        if kind.ends:
            opened.shutdown(socket.SHUT_WR)
    except OSError:
        if opened is not None:
            opened.close()
        return None
    return opened


def ended(opened: socket.socket) -> bool:
    """Whether the sidecar has closed a connection; what it said before is read."""
    opened.settimeout(0.01)
    try:
        while opened.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


class Strangers:
    """Many, in threads, until the end of a `with`. count: of connections so far."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        self.count: int = 0
        self._address = address
        self._tls = tls
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(THREADS)]

    def _run(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._over.is_set():
            there = [
                opened
                for kind in rng.choices(KINDS, k=AT_ONCE)
                if not self._over.is_set()
                and (opened := stranger(self._address, self._tls, kind)) is not None
            ]
            self.count += len(there)
            self._over.wait(rng.uniform(0, 3))
            for opened in there:
                if rng.random() < 0.5:  # a reset
                    with suppress(OSError):
                        linger = struct.pack("ii", 1, 0)
                        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                opened.close()

    def __enter__(self) -> Strangers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        for thread in self._threads:
            joined("the strangers", thread)


class Taken(NamedTuple):
    """What a process has. memory: bytes of it that are in memory."""

    memory: int
    files: int


def taken(pid: int) -> Taken:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Taken(pages * resource.getpagesize(), len(os.listdir(f"/proc/{pid}/fd")))


class Place:
    """One sidecar with a queue on it. encrypted: with TLS."""

    def __init__(self, tmp_path: Path, *, encrypted: bool) -> None:
        self.tls: ssl.SSLContext | None = None
        (tmp_path / "token").write_text(TOKEN)
        options = ["--token-file", str(tmp_path / "token")]
        self.url = f"file:{tmp_path / 'queues'}?store=sidecar&replicas=1&sidecar_token={TOKEN}"
        if encrypted:
            ca = authority(tmp_path)
            signed(tmp_path, "node")
            options += ["--cert", str(tmp_path / "node.pem"), "--key", str(tmp_path / "node.key")]
            self.url += f"&sidecar_ca={ca}"
            self.tls = tls_of({"ca": str(ca)})
        self.served = Served(
            tmp_path / "data", f"file:{tmp_path / 'queues'}", *options, files_max=FILES_MAX
        )
        self.access = Access(TOKEN, self.tls)
        with cassq.connect(self.url) as client:
            client.create_queue("jobs")


def answers(place: Place) -> bool:
    """Whether the sidecar answers a new client in time, among all that come at once."""
    try:
        return bool(ask(place.served.address, Info(), place.access, seconds=PATIENCE))
    except BackendUnavailableError:
        return False


@pytest.fixture
def make(tmp_path: Path, catalog: SqliteCatalog) -> Iterator[Callable[[bool], Place]]:
    made: list[Place] = []

    def make(encrypted: bool) -> Place:
        made.append(Place(tmp_path, encrypted=encrypted))
        return made[-1]

    yield make
    for place in made:
        place.served.kill()


def beset(place: Place, act: Act, seconds: float, *, stalled: bool) -> None:
    """Have strangers come for so long; see that pushes go on and that all of it is returned.
    stalled: also wait for the sidecar to end those that stand still."""
    served = place.served
    actor = act("tests.faults.sidecar.parts:push", place.url, "jobs", "p", 100, 0.01)
    actor.expect("ready", seconds=PATIENCE)
    eventually("it pushes", lambda: len(actor.reports("ok")) > 50, seconds=PATIENCE)
    before = most = taken(served.pid)
    watch = Stopwatch()
    with Strangers(served.address, place.tls) as strangers:
        still = [stranger(served.address, place.tls, kind) for kind in KINDS[6:8] + KINDS[12:14]]
        while watch.seconds() < seconds:
            now = taken(served.pid)
            most = Taken(max(most.memory, now.memory), max(most.files, now.files))
            served.logged()  # it would stand still if nobody read its log
            actor.listen(0.5)
        eventually("strangers came", lambda: strangers.count > 2 * AT_ONCE, seconds=PATIENCE)
        if stalled:
            left = [each for each in still if each is not None]
            assert left
            eventually("they are ended", lambda: all(map(ended, left)), seconds=PATIENCE)
        assert ask(served.address, Info(), place.access, seconds=PATIENCE)
        assert served.health()[0] == 200
    for each in still:
        if each is not None:
            each.close()
    more = len(actor.reports("ok")) + 50
    eventually("it pushes on", lambda: len(actor.reports("ok")) > more, seconds=PATIENCE)
    eventually(
        "files are returned",
        lambda: taken(served.pid).files <= before.files + FILES_MORE_MAX,
        seconds=PATIENCE,
    )
    eventually(
        "memory is returned",
        lambda: taken(served.pid).memory <= before.memory + MEMORY_BYTES_MAX,
        seconds=PATIENCE,
    )
    after = taken(served.pid)
    actor.say("enough")
    actor.join(seconds=PATIENCE)
    actor.listen()
    took = sorted(report[1] for report in actor.reports("took"))
    p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
    print(
        f"\n{strangers.count:,} strangers, {len(took):,} pushes: p50 {p50 * 1000:.1f} ms,"
        f" p99 {p99 * 1000:.1f} ms, at most {took[-1] * 1000:.0f} ms; memory {before.memory:,},"
        f" {most.memory:,} at most, {after.memory:,} after; files {before.files}, {most.files},"
        f" {after.files}"
    )
    assert not actor.reports("trouble"), "no push failed"
    assert most.files < FILES_MAX
    with cassq.connect(place.url) as client:
        pushed = client.queue("jobs").stats().pushed
    assert pushed == len(actor.reports("ok"))
    lines = served.logged().splitlines()
    assert all(len(line) < 3000 for line in lines)
    messages = [json.loads(line)["message"] for line in lines]
    assert not any("\n" in message for message in messages), "a name broke its line"


@pytest.mark.waits(reason="strangers come for some seconds, and stalled ones are swept")
@pytest.mark.parametrize("encrypted", [False, True])
def test_strangers_take_nothing_for_good(
    make: Callable[[bool], Place], act: Act, encrypted: bool
) -> None:
    beset(make(encrypted), act, SHORT_SECONDS, stalled=False)


@pytest.mark.long(reason="strangers come for minutes, with TLS and without")
@pytest.mark.parametrize("encrypted", [False, True])
def test_strangers_take_nothing_for_good_in_many_minutes(
    make: Callable[[bool], Place], act: Act, encrypted: bool
) -> None:
    beset(make(encrypted), act, LONG_SECONDS, stalled=True)


@pytest.mark.waits(reason="a sidecar waits before it opens its directory again")
def test_a_sidecar_without_open_files_takes_frames_again_once_it_has_some(
    make: Callable[[bool], Place],
) -> None:
    served = make(False).served
    frame = [bytes(1_000_000)]
    with SidecarConnection(served.address, Access(TOKEN)) as connection:
        connection(Open("p", 1, "q", False))
        end = connection(append("p", 0, frame)).end
        files = taken(served.pid).files
        resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (files - 2, FILES_MAX))
        with pytest.raises((RefusedError, BackendError)) as caught:
            for _ in range(300):
                end = connection(append("p", end, frame)).end
        assert "Too many open files" in str(caught.value)
        facts = connection(Info()).facts
        assert "Too many open files" in facts["starved"]
        assert (facts["failure"], facts["read_only"]) == ("", True)
        assert connection(Read("p", 0, 1, 1 << 21, 1, 0)).frames, "it is still read"
    resource.prlimit(served.pid, resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    eventually("it goes on", lambda: served.health()[1]["reopened"] == 1, seconds=PATIENCE)

    def listens() -> bool:
        with suppress(BackendError):
            return bool(ask(served.address, Info(), Access(TOKEN)))
        return False

    eventually("it listens", listens, seconds=PATIENCE)
    with SidecarConnection(served.address, Access(TOKEN)) as connection:
        again = connection(Read("p", 0, end, 1 << 20, 1, 0)).end
        assert again >= end, "nothing acknowledged is lost"
        assert connection(append("p", again, [b"more"])).end == again + 1
