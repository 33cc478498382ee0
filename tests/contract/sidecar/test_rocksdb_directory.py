"""A sidecar's directory: whose it is, one process at a time, and the names within."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cassq.errors import CassqError, ConfigError, CorruptionError
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.rows import kept_of, name_of, pipe_id_of
from tests.contract.engines import ODD, OTHER, PIPE, RocksPlace, fill, look

pytestmark = pytest.mark.needs("module:rocksdict")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RocksPlace]:
    place = RocksPlace(tmp_path)
    yield place
    place.engine.close()


# --- whose it is ------------------------------------------------------------------------------


def test_a_directory_is_of_one_catalog_and_one_sidecar(place: RocksPlace) -> None:
    generation = place.engine.generation
    place.reopen()
    assert place.engine.generation == generation
    place.engine.close()
    with pytest.raises(ConfigError, match="another catalog"):
        RocksEngine(place.place, catalog="catalog-2", name="sidecar-1")
    with pytest.raises(ConfigError, match="--name sidecar-1"):
        RocksEngine(place.place, catalog="catalog-1", name="sidecar-2")
    place.open()


def test_two_engines_never_share_a_directory(place: RocksPlace) -> None:
    with pytest.raises(ConfigError, match="in use by another sidecar"):
        RocksEngine(place.place, catalog="catalog-1", name="sidecar-1")
    child = subprocess.run(
        [sys.executable, "-c", SECOND, str(place.place)], capture_output=True, text=True, timeout=60
    )
    assert "in use by another sidecar" in child.stdout, child.stderr
    fill(place, PIPE)


SECOND = """
import sys
from pathlib import Path
from cassq.errors import ConfigError
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
try:
    RocksEngine(Path(sys.argv[1]), catalog="catalog-1", name="sidecar-1")
except ConfigError as exc:
    print(exc)
"""


def test_two_directories_have_two_generations(place: RocksPlace, tmp_path: Path) -> None:
    other = RocksEngine(tmp_path / "other", catalog="catalog-1", name="sidecar-1")
    assert other.generation != place.engine.generation
    other.close()


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match="letters.txt"):
        RocksEngine(tmp_path, catalog="c", name="n")
    assert (tmp_path / "letters.txt").read_text() == "dear"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}'])
def test_an_identity_that_cannot_be_read_is_refused(place: RocksPlace, text: str) -> None:
    place.engine.close()
    path = place.place / "identity.json"
    kept = path.read_text()
    path.write_text(text)
    with pytest.raises(CorruptionError, match="identity"):
        place.open()
    path.write_text(json.dumps({**json.loads(kept), "format": 2}))
    with pytest.raises(ConfigError, match="format 2"):
        place.open()
    path.write_text(kept)
    place.open()


def test_a_directory_whose_making_was_broken_off_is_made_again(place: RocksPlace) -> None:
    place.engine.close()
    path = place.place / "identity.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "new": True}))
    place.open()
    fill(place, PIPE)
    place.reopen()
    assert look(place.engine, PIPE) == {PIPE: False}


# --- names and rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("pipe_id", [PIPE, ODD, "p", "f" * 24, "F" * 24, "é" * 100, "\udc80", "0"])
def test_a_name_contains_its_id_and_is_not_a_prefix_of_another(pipe_id: str) -> None:
    assert pipe_id_of(name_of(pipe_id)) == pipe_id
    for other in ("p", "pp", PIPE, OTHER, ODD, "f" * 24, "é" * 99):
        if other != pipe_id:
            assert not name_of(pipe_id).startswith(name_of(other))


@pytest.mark.parametrize("raw", [b"", b"\0", b"\2" + bytes(12), b"\1\0\5abc", bytes(14)])
def test_anything_but_a_name_or_row_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptionError):
        pipe_id_of(raw)
    with pytest.raises(CassqError):
        kept_of(name_of(PIPE), raw)
