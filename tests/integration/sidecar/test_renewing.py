"""Tokens, certificates and authorities that change while sidecars run: one sidecar at a time."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

import cassq
from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.extents.protocol.messages import Code, Done, Info, Open, RefusedError
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from cassq.sidecar.exposure import SidecarCredentials, client_tls, read_credentials, server_tls
from tests.integration.deadlines import eventually, joined
from tests.integration.served import Served, catalog
from tests.integration.sidecar.certificates import authority, signed
from tests.integration.sidecars import Running

__all__ = ["catalog"]

NAMES = ("a", "b")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for ca in ("old", "new"):
        authority(directory, ca)
        signed(directory, f"{ca}-node", by=ca)
    both = b"".join((directory / f"{ca}.pem").read_bytes() for ca in ("old", "new"))
    (directory / "both.pem").write_bytes(both)
    return directory


def tls_files(files: Path, node: str, ca: str) -> dict[str, Path]:
    kinds = {"cert": f"{node}-node.pem", "key": f"{node}-node.key", "ca": f"{ca}.pem"}
    return {which: files / name for which, name in kinds.items()}


# --- one sidecar ----------------------------------------------------------------------------------


def test_existing_connections_go_on_and_new_ones_need_what_is_new() -> None:
    running = Running(tokens=("old",))
    try:
        with SidecarConnection(running.address, Access("old")) as there:
            assert there(Info())
            renewed = SidecarCredentials(("new",), None, Access("new"))
            running.run(lambda: running.sidecar.renew(renewed))
            assert there(Open("p", 1, "q", False)) == Done()
            with pytest.raises(RefusedError) as caught:
                ask(running.address, Info(), Access("old"))
            assert caught.value.code is Code.TOKEN
            assert ask(running.address, Info(), Access("new"))
    finally:
        running.stop()


@pytest.mark.needs("openssl")
def test_certificates_of_two_authorities_are_valid_at_once(files: Path) -> None:
    running = Running(tls=server_tls(tls_files(files, "old", "both")))
    try:
        for node in ("old", "new"):
            for ca in ("old", "both"):
                access = Access("", client_tls(tls_files(files, node, ca)))
                assert ask(running.address, Info(), access), (node, ca)
        with pytest.raises(BackendUnavailableError, match="not trusted"):
            ask(running.address, Info(), Access("", client_tls(tls_files(files, "new", "new"))))
        only = server_tls(tls_files(files, "new", "new"))
        running.run(lambda: running.sidecar.renew(SidecarCredentials((), only, Access())))
        assert ask(running.address, Info(), Access("", client_tls(tls_files(files, "new", "both"))))
        with pytest.raises(BackendUnavailableError, match="certificate"):
            ask(running.address, Info(), Access("", client_tls(tls_files(files, "old", "both"))))
    finally:
        running.stop()


@pytest.mark.needs("openssl")
def test_what_was_read_is_described_without_the_tokens(files: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\nother\n")
    found = read_credentials(tmp_path / "token", tls_files(files, "old", "both"))
    assert str(found) == "2 tokens, TLS, 2 CAs for clients' certificates"
    assert found.access.token == "s3cret"
    assert str(SidecarCredentials(("s3cret",), None, Access())) == "1 token, no TLS"


@pytest.mark.needs("openssl")
def test_a_key_with_a_pass_phrase_is_refused_without_asking_for_it(
    files: Path, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    command = f"openssl rsa -in old-node.key -aes128 -passout pass:x -out {locked}"
    subprocess.run(command.split(), cwd=files, check=True, capture_output=True)
    with pytest.raises(ConfigError, match="cannot be used: its key has a pass phrase"):
        server_tls(tls_files(files, "old", "old") | {"key": locked})


# --- processes ------------------------------------------------------------------------------------


class Fleet:
    """Sidecars that each have files of their own. files: with all certificates."""

    def __init__(self, place: Path, files: Path) -> None:
        self.place = place
        self.files = files
        self.sidecars: dict[str, Served] = {}

    def write(self, name: str, token: str, node: str, ca: str) -> None:
        """Replace what a sidecar reads."""
        own = self.place / f"{name}-files"
        own.mkdir(exist_ok=True)
        (own / "token").write_text(token)
        for which, path in tls_files(self.files, node, ca).items():
            (own / which).write_bytes(path.read_bytes())

    def start(self, name: str) -> None:
        own = self.place / f"{name}-files"
        options = [
            part for which in ("cert", "key", "ca") for part in (f"--{which}", str(own / which))
        ]
        self.sidecars[name] = Served(
            *(self.place / name, f"file:{self.place / 'queues'}"),
            *("--token-file", str(own / "token"), *options),
            name=name,
        )

    def reread(self, name: str, line: str) -> None:
        """Have a sidecar read its files again, and wait until it logs a line about it."""
        served = self.sidecars[name]
        before = served.logged().count(line)
        served.signal(signal.SIGHUP)
        eventually("it has read them", lambda: served.logged().count(line) > before)

    def url(self, token: str, node: str, ca: str) -> str:
        options = {f"sidecar_{k}": str(v) for k, v in tls_files(self.files, node, ca).items()}
        more = {"store": "sidecar", "replicas": "2", "sidecar_token": token}
        return f"file:{self.place / 'queues'}?{urlencode(more | options)}"


@pytest.fixture
def fleet(tmp_path: Path, files: Path, catalog: SqliteCatalog) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, files)
    yield fleet
    for served in fleet.sidecars.values():
        served.kill()


class Pushing:
    """Pushes to a queue until the end of a `with`, over one client."""

    def __init__(self, url: str) -> None:
        self.pushed: int = 0
        self._url = url
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def goes_on(self) -> None:
        """Wait for more pushes."""
        enough = self.pushed + 3
        eventually("it pushes", lambda: self._failed or self.pushed >= enough)
        assert not self._failed

    def _run(self) -> None:
        try:
            with cassq.connect(self._url) as client, client.queue("q").pusher() as pusher:
                while not self._over.is_set():
                    pusher.push(b"one")
                    self.pushed += 1
        except BaseException as exc:
            self._failed.append(exc)

    def __enter__(self) -> Pushing:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        joined("the pusher", self._thread)
        assert not self._failed


def pushed_anew(url: str) -> int:
    """Push one message over new connections; how many replicas it has."""
    with cassq.connect(url) as client, client.queue("q").pusher() as pusher:
        pusher.push(b"one")
        placed = [each for each in client.ports.catalog.sidecars.placements() if each.end is None]
        return max(len(each.replicas) for each in placed)


@pytest.mark.needs("openssl", "module:rocksdict", "module:uvloop")
@pytest.mark.waits(reason="two sidecars are started as processes")
def test_a_token_and_an_authority_are_changed_one_sidecar_at_a_time(fleet: Fleet) -> None:
    """The steps of the page on running a sidecar."""
    for name in NAMES:
        fleet.write(name, "old", "old", "old")
        fleet.start(name)
    began = fleet.url("old", "old", "old")
    with cassq.connect(began) as client:
        client.create_queue("q").popper().close()
    pushed = 0
    # what sidecars read; and what clients may have meanwhile, and get after this step
    for token, node, ca, client_before, client_after in (
        ("old\nnew", "old", "both", ("old", "old", "old"), ("new", "old", "both")),
        ("new\nold", "new", "both", ("new", "old", "both"), ("new", "new", "new")),
        ("new", "new", "new", ("new", "new", "new"), ("new", "new", "new")),
    ):
        # It may have to connect again at any moment, so it has what the step allows.
        with Pushing(fleet.url(*client_before)) as pushing:
            for name in NAMES:
                fleet.write(name, token, node, ca)
                fleet.reread(name, "new connections use what was read again")
                pushing.goes_on()
                assert pushed_anew(fleet.url(*client_before)) == 2
                pushed += 1
        assert pushed_anew(fleet.url(*client_after)) == 2
        pushed += 1 + pushing.pushed
    with pytest.raises((RefusedError, BackendUnavailableError)):
        pushed_anew(began)
    with (
        cassq.connect(fleet.url("new", "new", "new")) as client,
        client.queue("q").popper() as popper,
    ):
        got = 0
        while messages := popper.pop(1000):
            got += len(messages)
            popper.commit(messages)
    assert got == pushed


@pytest.mark.needs("openssl", "module:rocksdict", "module:uvloop")
@pytest.mark.waits(reason="a sidecar is started as a process")
def test_bad_files_are_refused_and_the_former_ones_stay_in_use(fleet: Fleet) -> None:
    fleet.write("a", "old", "old", "old")
    fleet.start("a")
    served, own = fleet.sidecars["a"], fleet.place / "a-files"
    tls = client_tls(tls_files(fleet.files, "old", "old"))

    def bad(name: str, content: bytes | None, message: str) -> None:
        former = (own / name).read_bytes()
        if content is None:
            (own / name).unlink()
        else:
            (own / name).write_bytes(content)
        fleet.reread("a", "the former token and certificates stay in use")
        assert message in served.logged().splitlines()[-1]
        assert ask(served.address, Info(), Access("old", tls))
        (own / name).write_bytes(former)

    bad("token", b"s3cret with spaces", "is not a valid token")
    bad("token", None, "cannot be read")
    bad("cert", b"no certificate", "cannot be used")
    bad("cert", None, "there is no such file")
    bad("key", (fleet.files / "new-node.key").read_bytes(), "cannot be used")
    bad("ca", b"", "cannot be used")
    assert "s3cret" not in served.logged()
    (own / "token").write_text("new")
    fleet.reread("a", "new connections use what was read again: 1 token, TLS, 1 CA")
    assert ask(served.address, Info(), Access("new", tls))
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0
