"""The store of a directory: chosen by its first client, and the same for all that come later."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import cassq
from cassq.client.backends.embedded import BELLS, CATALOG, PIPES
from cassq.errors import BackendError, ConfigError, MissingExtraError
from tests.contract.catalog.test_catalog import at_once

pytestmark = pytest.mark.embedded_only(reason="it is about the directory")

SIDECAR = "?store=sidecar"
FILES = "?store=files"


def connect(directory: Path, options: str = "") -> cassq.Client:
    return cassq.connect(f"file://{directory}{options}")


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_directory_whose_messages_are_on_sidecars_holds_the_rest(directory: Path) -> None:
    connect(directory, SIDECAR).close()
    assert {CATALOG, BELLS} <= names_in(directory)
    assert PIPES not in names_in(directory)


@pytest.mark.parametrize("options", ["", FILES])
def test_a_directory_used_with_sidecars_is_not_opened_without_them(
    directory: Path, options: str
) -> None:
    connect(directory, SIDECAR).close()
    with pytest.raises(
        ConfigError, match="keeps its messages with store=sidecar, not store=files"
    ) as caught:
        connect(directory, options)
    assert str(directory) in str(caught.value)
    assert "write store=sidecar in the URLs" in caught.value.hint
    assert PIPES not in names_in(directory), "and it is left as it was"
    connect(directory, SIDECAR).close()


@pytest.mark.parametrize("options", ["", FILES])
def test_a_directory_used_without_sidecars_is_not_opened_with_them(
    directory: Path, options: str
) -> None:
    connect(directory, options).close()
    with pytest.raises(ConfigError, match="with store=files, not store=sidecar"):
        connect(directory, SIDECAR)
    connect(directory).close()


def test_pipe_files_of_a_lost_catalog_are_not_forgotten_for_sidecars(directory: Path) -> None:
    with connect(directory) as client, client.create_queue("jobs").pusher() as pusher:
        pusher.push(b"kept")
    for path in directory.glob(f"{CATALOG}*"):
        path.unlink()
    with pytest.raises(ConfigError, match="with store=files, not store=sidecar"):
        connect(directory, SIDECAR)
    with connect(directory) as client, client.queue("jobs").popper() as popper:
        assert [bytes(message.payload) for message in popper.pop(1)] == [b"kept"]


def test_of_clients_that_come_first_together_all_use_one_store(directory: Path) -> None:
    opened: list[str] = []
    refused: list[str] = []

    def come(options: str) -> None:
        try:
            connect(directory, options).close()
            opened.append(options)
        except ConfigError:
            refused.append(options)

    at_once([partial(come, options) for options in ["", SIDECAR] * 4])
    assert len(set(opened)) == 1
    assert sorted(refused) == sorted({"", SIDECAR} - set(opened)) * 4


def test_options_that_cannot_be_right_leave_nothing_behind(directory: Path) -> None:
    for options in ("?store=s3", "?replicas=2", f"{SIDECAR}&replicas=0", f"{SIDECAR}&speed=1"):
        with pytest.raises(ConfigError):
            connect(directory, options)
    assert not directory.exists()


def test_a_push_without_sidecars_is_reported_and_nothing_is_lost_by_it(directory: Path) -> None:
    with connect(directory, f"{SIDECAR}&replicas=1") as client:
        queue = client.create_queue("jobs")
        with pytest.raises(BackendError, match="sidecar"), queue.pusher() as pusher:
            pusher.push(b"a")
        with queue.popper() as popper:
            assert not popper.pop(1)


def test_durability_is_checked_with_sidecars_too(directory: Path) -> None:
    with pytest.raises(ConfigError, match="durability 'disc'"):
        connect(directory, f"{SIDECAR}&durability=disc")


def test_what_sidecars_need_is_named_where_it_is_missing(directory: Path) -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None; import cassq\n"
        "cassq.connect(sys.argv[1]).close()\n"
        "try: cassq.connect(sys.argv[1] + '-2?store=sidecar')\n"
        f"except cassq.errors.{MissingExtraError.__name__} as exc: print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"file://{directory}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "store=sidecar needs the package msgspec (pip install 'cassq[sidecar]')" in done.stdout
