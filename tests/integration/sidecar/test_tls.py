"""Sidecars and TLS: who trusts whom, what is told to who does not, and that frames get through."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from cassq.base.tls import tls_of
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.extents.protocol.messages import (
    Frames,
    Info,
    Mark,
    Open,
    Read,
    RefusedError,
    Replicate,
    Replicated,
)
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.sidecar_connection import ask
from cassq.sidecar.exposure import (
    check_exposure,
    client_tls,
    distrust,
    read_credentials,
    server_tls,
)
from cassq.sidecar.sessions import acceptor
from tests.integration.deadlines import eventually, in_threads
from tests.integration.sidecar.certificates import authority, signed
from tests.integration.sidecars import Running, append, call, links_to, reply

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    authority(directory)
    authority(directory, "other")
    signed(directory, "node")
    signed(directory, "client")
    signed(directory, "elsewhere", "127.0.0.9")
    signed(directory, "stranger", by="other")
    return directory


def server(files: Path, name: str = "node", *, ca: bool = False) -> ssl.SSLContext:
    given = {"cert": files / f"{name}.pem", "key": files / f"{name}.key"}
    context = server_tls(given | ({"ca": files / "ca.pem"} if ca else {}))
    assert context is not None
    return context


def client(files: Path, name: str = "", ca: str = "ca") -> Access:
    options = {"sidecar_ca": str(files / f"{ca}.pem")}
    if name:
        options["sidecar_cert"] = str(files / f"{name}.pem")
        options["sidecar_key"] = str(files / f"{name}.key")
    return Access("", tls_of(options, "sidecar_"), "a test")


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]


@pytest.fixture
def guarded(files: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Running]:
    running = Running(tls=server(files, ca=True), new_loop=new_loop)
    try:
        yield running
        access = client(files, "client")
        assert ask(running.address, Info(), access).facts["sidecar"] == "a", "others go on"
    finally:
        running.stop()


def test_frames_large_and_small_go_both_ways(guarded: Running, files: Path) -> None:
    with closing(links_to(guarded, access=client(files, "client"))) as links:
        reply(links, "a", Open("p", 1, "q", False))
        payloads = [b"%d" % seq * (1 + seq * seq * 7) for seq in range(200)]
        frames = [append("p", seq, [payload]) for seq, payload in enumerate(payloads)]
        answer = call(links, "a", *frames)
        assert answer.error is None
        whole = b"".join(part for frame in frames for part in frame.frame)  # type: ignore[misc]
        seq, got = 0, b""
        while seq < 200:
            read = reply(links, "a", Read("p", seq, 200, 8 << 20, 5, 0))
            got += read.frames
            seq += 5
        assert got == whole
        links.tell("a", "", [Mark("p", 1, 200, False)])
        in_threads(8, lambda n: reply(links, "a", Read("p", n * 20, 200, 8 << 20, 5, 0)))
        eventually("it is told", lambda: guarded.engine.replicas()["p"].acked == 200)


def test_a_client_without_a_certificate_gets_an_error_that_says_so(
    guarded: Running, files: Path
) -> None:
    for access in (client(files), client(files, "stranger")):
        with pytest.raises(BackendUnavailableError, match="certificate"):
            ask(guarded.address, Info(), access)


def test_a_client_that_trusts_another_authority_does_not_speak(
    guarded: Running, files: Path
) -> None:
    with pytest.raises(BackendUnavailableError, match="not trusted.*sidecar_ca="):
        ask(guarded.address, Info(), client(files, "client", ca="other"))


def test_a_certificate_for_another_address_is_not_enough(files: Path) -> None:
    running = Running(tls=server(files, "elsewhere"))
    try:
        with pytest.raises(BackendUnavailableError, match="not trusted.*mismatch"):
            ask(running.address, Info(), client(files))
        found = {"sidecar_tls": "ca", "sidecar_ca": str(files / "ca.pem")}
        assert ask(running.address, Info(), Access("", tls_of(found, "sidecar_")))
    finally:
        running.stop()


def test_plain_and_encrypted_do_not_understand_one_another(guarded: Running, files: Path) -> None:
    with pytest.raises((BackendUnavailableError, RefusedError), match="TLS"):
        ask(guarded.address, Info())
    plain = Running("b")
    try:
        with pytest.raises(BackendUnavailableError) as caught:
            ask(plain.address, Info(), client(files, "client"))
        assert "expect TLS" not in str(caught.value)
        assert "does it use TLS" in str(caught.value)
        assert ask(plain.address, Info())
    finally:
        plain.stop()


def test_a_client_silent_in_the_handshake_costs_little(guarded: Running, files: Path) -> None:
    host, _, port = guarded.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    assert ask(guarded.address, Info(), client(files, "client"))
    for each in silent:
        each.close()


def test_connections_are_counted_before_tls_and_failed_handshakes_are_logged(
    guarded: Running,
    files: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    monkeypatch.setattr(acceptor, "UNIDENTIFIED_MAX", 5)
    monkeypatch.setattr(acceptor, "UNIDENTIFIED_SECONDS", 0.0)
    host, _, port = guarded.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(30)]
    assert ask(guarded.address, Info(), client(files, "client"))
    assert all(each.recv(1) == b"" for each in silent[:25])
    assert len(guarded.sidecar.server.acceptor.connections.open) <= 5
    with socket.create_connection((host, int(port)), timeout=20) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
        name = ":".join(map(str, garbage.getsockname()))
        while garbage.recv(100):
            pass
    eventually(
        "it is logged",
        lambda: [line for line in caplog.messages if f"handshake with {name} failed" in line],
    )
    for each in silent:
        each.close()
    eventually("all are gone", lambda: not guarded.sidecar.server.acceptor.connections.open)


def test_a_wrong_token_is_reported_over_tls(files: Path) -> None:
    running = Running(tls=server(files), tokens=("secret",))
    try:
        with pytest.raises(RefusedError, match="token"):
            ask(running.address, Info(), client(files)._replace(token="wrong"))
        assert ask(running.address, Info(), client(files)._replace(token="secret"))
    finally:
        running.stop()


def test_more_answers_than_are_kept_are_held_up_over_tls(guarded: Running, files: Path) -> None:
    with closing(links_to(guarded, access=client(files, "client"))) as links:
        reply(links, "a", Open("p", 1, "q", False))
        reply(links, "a", append("p", 0, [b"x" * 2_000_000]))
        read = Read("p", 0, 1, 1, 1, 0)
        answer = call(links, "a", *[read] * 50)
        assert answer.error is None
        assert all(isinstance(each, Frames) for each in answer.replies)
        assert {each.frames[-2_000_000:] for each in answer.replies} == {b"x" * 2_000_000}


def trouble_with(given: Mapping[str, Path]) -> str:
    """Why a sidecar could not copy from one with the same files."""
    encrypted, others = server_tls(given), client_tls(given)
    assert encrypted is not None
    assert others is not None
    found = distrust(encrypted, others)
    assert others.check_hostname, "it is as it was"
    return found


@pytest.mark.parametrize("certified", [True, False], ids=["ca", "peer-ca"])
def test_sidecars_copy_from_one_another_over_tls(files: Path, certified: bool) -> None:
    given = {name: files / f"node.{kind}" for name, kind in (("cert", "pem"), ("key", "key"))}
    given["ca" if certified else "peer-ca"] = files / "ca.pem"
    assert not trouble_with(given)
    access = Access("", client_tls(given), "a sidecar")
    a = Running("a", tls=server_tls(given), access=access)
    b = Running("b", tls=server_tls(given), access=access)
    try:
        with closing(links_to(a, b, access=client(files, "client"))) as links:
            reply(links, "a", Open("p", 1, "q", False))
            reply(links, "a", append("p", 0, [b"x" * 3_000_000]))
            copied = reply(links, "b", Replicate("p", "q", False, a.address, 1, 1 << 30))
        assert copied == Replicated(1)
    finally:
        a.stop()
        b.stop()


def test_a_sidecar_that_would_not_copy_from_one_like_itself_says_so(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    own = {"cert": files / "node.pem", "key": files / "node.key"}
    assert "local issuer" in trouble_with(own)
    assert trouble_with(own | {"peer-ca": files / "other.pem"})
    assert trouble_with(own | {"peer-ca": files / "ca.pem", "ca": files / "other.pem"})
    read_credentials(None, own | {"peer-ca": files / "ca.pem"})
    assert not caplog.text
    read_credentials(None, own)
    assert "give --peer-ca" in caplog.text


# --- what may listen where ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "token", "tls", "ca", "insecure", "refused"),
    [
        ("127.0.0.1:1", False, False, False, False, ""),
        ("127.9.9.9:1", False, False, False, False, ""),
        ("localhost:1", False, False, False, False, ""),
        ("[::1]:1", False, False, False, False, ""),
        ("0.0.0.0:1", False, False, False, False, "anyone could connect"),
        ("[::]:1", False, False, False, False, "anyone could connect"),
        ("10.0.0.1:1", True, False, False, False, "readable on the network"),
        ("10.0.0.1:1", True, False, False, True, ""),
        ("db.example:1", False, False, False, False, "anyone"),
        ("10.0.0.1:1", False, True, False, False, "TLS alone does not authenticate clients"),
        ("10.0.0.1:1", True, True, False, False, ""),
        ("10.0.0.1:1", False, True, True, False, ""),
        ("nonsense", False, False, False, False, "is not the address"),
        ("host:99999", False, False, False, False, "is not the address"),
    ],
)
def test_what_may_listen_where(
    listen: str, token: bool, tls: bool, ca: bool, insecure: bool, refused: str
) -> None:
    def check() -> None:
        check_exposure(listen, token=token, tls=tls, ca=ca, insecure=insecure)

    if not refused:
        check()
        return
    with pytest.raises(ConfigError, match=refused):
        check()


def test_files_that_cannot_be_used_are_named(files: Path, tmp_path: Path) -> None:
    assert server_tls({}) is None
    with pytest.raises(ConfigError, match="--key"):
        server_tls({"cert": files / "node.pem"})
    with pytest.raises(ConfigError, match=r"missing\.pem: there is no such file"):
        server_tls({"cert": tmp_path / "missing.pem", "key": files / "node.key"})
    with pytest.raises(ConfigError, match=r"cannot be used.*PEM"):
        server_tls({"cert": files / "node.key", "key": files / "node.pem"})
