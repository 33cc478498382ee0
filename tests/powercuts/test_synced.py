"""The real disk at the system's calls: what was acknowledged was synced before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.powercuts.platter import Platter
from tests.powercuts.record import Event, compiled, mark_of, recorded

pytestmark = pytest.mark.needs("cc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def by_client(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What a client did."""
    return _run(library, tmp_path_factory.mktemp("client"), "client")


@pytest.fixture(scope="module")
def by_store(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What a files store did."""
    return _run(library, tmp_path_factory.mktemp("store"), "store")


def _run(library: Path, directory: Path, script: str) -> list[Event]:
    root = directory / "root"
    root.mkdir()
    return recorded(library, root, ["-m", "tests.powercuts.scripts", script])


def at_marks(events: Sequence[Event], what: str) -> Iterator[tuple[Platter, list[Event]]]:
    """The platter at each mark of that kind, and what was done since the mark before."""
    platter, since = Platter(), list[Event]()
    for event in events:
        platter.add(event)
        since.append(event)
        mark = mark_of(event)
        if mark is not None:
            if mark["what"] == what:
                yield platter, since
            since = []


def pipes(platter: Platter) -> list[str]:
    return [path for path in platter.names if path.endswith(".pipe")]


def test_every_acknowledged_push_was_synced_after_it_was_written(by_client: list[Event]) -> None:
    pushes = 0
    for platter, since in at_marks(by_client, "pushed"):
        written = [n for n, e in enumerate(since) if e.kind == "W" and "/pipes/" in e.path]
        assert written, "it was written"
        for at in written:
            synced = [e for e in since[at:] if e.kind in "SD" and e.file == since[at].file]
            assert synced, f"{since[at].path} was written at {since[at].offset} and not synced"
        for path in pipes(platter):
            file = platter.file(path)
            assert file is not None
            assert not file.pending, f"{path} is not durable"
        pushes += 1
    assert pushes == 7


def test_a_pipe_has_its_name_for_certain_before_a_push_is_acknowledged(
    by_client: list[Event],
) -> None:
    for platter, _ in at_marks(by_client, "pushed"):
        assert pipes(platter)
        assert "new/data/catalog.sqlite" in platter.names
        assert not [e for e, _ in platter.pending if e.path.endswith((".pipe", ".page", ".draft"))]


def test_the_directories_of_a_new_queue_have_their_names_for_certain(
    by_client: list[Event],
) -> None:
    platter, _ = next(at_marks(by_client, "pushed"))
    assert platter.names["new"] is platter.names["new/data"] is None
    assert platter.names["new/data/pipes"] is None
    lasting = [e.path for e, _ in platter.pending if e.kind == "M"]
    assert lasting in ([], ["new/data/bells"])


def test_a_commit_is_synced_before_it_returns(by_client: list[Event]) -> None:
    commits = 0
    for _, since in at_marks(by_client, "committed"):
        written = [n for n, e in enumerate(since) if e.kind == "W" and e.path.endswith("-wal")]
        assert written
        assert any(e.kind in "SD" and e.path.endswith("-wal") for e in since[written[0] :])
        commits += 1
    assert commits == 1


def test_a_created_pipe_is_durable_with_both_of_its_files(by_store: list[Event]) -> None:
    count = 0
    for platter, since in at_marks(by_store, "created"):
        count += 1
        assert len(pipes(platter)) == count
        assert [e.kind for e in since if e.path == "pipes"][-1] == "Y", "after the last name"
        assert not platter.pending
        for path, file in platter.names.items():
            if path.endswith((".pipe", ".page")):
                assert file is not None
                assert len(file.durable) >= 4096
                assert not file.pending, path
    assert count == 2


def test_a_drop_is_durable_before_it_returns(by_store: list[Event]) -> None:
    ((platter, since),) = at_marks(by_store, "dropped")
    assert sum(event.kind == "U" for event in since) == 4
    assert list(platter.names) == ["pipes"]
    assert not platter.pending


@pytest.mark.needs("module:rocksdict")
def test_an_engine_that_has_synced_has_its_log_on_the_disk(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events = _run(library, tmp_path_factory.mktemp("engine"), "engine")
    syncs = 0
    for platter, _ in at_marks(events, "synced"):
        logs = {p: f for p, f in platter.names.items() if p.endswith(".log") and f is not None}
        assert logs
        assert not [path for path, file in logs.items() if file.pending]
        assert any(file.durable for file in logs.values())
        syncs += 1
    assert syncs == 3
