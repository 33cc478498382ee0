"""Queues whose messages are on sidecars, as `cassq.connect` puts them together: over sockets."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.embedded import CATALOG, PIPES
from cassq.client.backends.sidecar_options import TOKEN_VARIABLE
from cassq.errors import BackendError
from tests.integration.deadlines import eventually
from tests.integration.sidecars import CLUSTER, Running

pytestmark = pytest.mark.embedded_only(reason="it brings its own places")

TOKEN = "t0ken+of/all"
Start = Callable[..., list[Running]]


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    """Starts sidecars that belong to the directory's catalog, and registers them there."""
    running: list[Running] = []
    directory.mkdir()
    catalog = SqliteCatalog(directory / CATALOG, SystemClock())
    assert catalog.records.note("identity", CLUSTER) == CLUSTER

    def begin(count: int, **options: Any) -> list[Running]:
        made = [Running(f"s{number}", **options) for number in range(count)]
        running.extend(made)
        for each in made:
            catalog.sidecars.beat(each.row(lease_ms=1 << 40))
        return made

    yield begin
    catalog.close()
    for each in running:
        each.stop()


def test_what_is_pushed_is_on_the_sidecars_and_is_popped_from_there(
    directory: Path, start: Start
) -> None:
    sidecars = start(4)
    url = f"file://{directory}?store=sidecar&replicas=3"
    with cassq.connect(url) as client, client.create_queue("jobs").pusher() as pusher:
        pusher.push_many([b"%d" % number for number in range(100)])
        (pipe_id,) = client.ports.catalog.pipes.ids()
        (placement,) = client.ports.catalog.sidecars.placements()
    assert placement.pipe_id == pipe_id
    assert len({replica.sidecar for replica in placement.replicas}) == 3
    holders = {each.handshake.sidecar for each in sidecars if pipe_id in each.engine.replicas()}
    # One that took it too late for its placement may have it as well.
    assert holders >= {replica.sidecar for replica in placement.replicas}
    assert not (directory / PIPES).exists()
    with cassq.connect(url) as client, client.queue("jobs").popper() as popper:
        messages = popper.pop(100)
        assert [bytes(message.payload) for message in messages] == [
            b"%d" % number for number in range(100)
        ]
        popper.commit(messages)


def test_what_was_consumed_is_given_back_by_the_sidecars(directory: Path, start: Start) -> None:
    sidecars = start(3)
    with cassq.connect(f"file://{directory}?store=sidecar") as client:
        queue = client.create_queue("jobs")
        with queue.pusher() as pusher, queue.popper() as popper:
            pusher.push_many([b"a"] * 10)
            (placement,) = client.ports.catalog.sidecars.placements()
            pusher.close()
            popper.commit(popper.pop(10))
        client.reap()
        assert list(client.ports.catalog.sidecars.placements()) == []
        assert client.ports.catalog.pipes.ids() == set()
        # One that took it too late for its placement keeps it until it looks after itself.
        placed = {replica.sidecar for replica in placement.replicas}
        engines = [each.engine for each in sidecars if each.handshake.sidecar in placed]
        assert len(engines) >= 2
        eventually("all is dropped", lambda: not any(engine.replicas() for engine in engines))


@pytest.mark.needs("openssl")
def test_sidecars_are_spoken_to_in_secret(directory: Path, start: Start, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        f" -subj /CN=test -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    start(1, tls=tls)
    url = f"file://{directory}?store=sidecar&replicas=1"
    with cassq.connect(f"{url}&sidecar_ca={certificate}") as client:
        client.create_queue("jobs").pusher().push(b"a")
    for options in ("", "&sidecar_tls=full"):  # in the open, and trusting others
        with cassq.connect(f"{url}{options}") as client, pytest.raises(BackendError):
            client.queue("jobs").pusher().push(b"b")


def test_the_token_opens_the_sidecars_whether_the_url_or_the_environment_has_it(
    directory: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(1, tokens=(TOKEN,))
    url = f"file://{directory}?store=sidecar&replicas=1"
    with cassq.connect(f"{url}&sidecar_token=t0ken%2Bof/all") as client:
        client.create_queue("jobs").pusher().push(b"a")
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with cassq.connect(url) as client:
        client.queue("jobs").pusher().push(b"b")
    monkeypatch.setenv(TOKEN_VARIABLE, f"not-{TOKEN}")
    with cassq.connect(url) as client, pytest.raises(BackendError, match="token") as caught:
        client.queue("jobs").pusher().push(b"c")
    assert TOKEN not in str(caught.value)
    assert TOKEN_VARIABLE in caught.value.hint, "what to do"
    assert TOKEN not in repr(client.ports.store.__dict__)
