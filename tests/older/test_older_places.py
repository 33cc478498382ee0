"""Places that an earlier version made are opened, a keyspace after its upgrade; nothing of them is
missing."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import ConfigError
from tests.older.content import check
from tests.older.make import session_of
from tests.servers.fixtures import running
from tests.servers.kinds import sidecar
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.sidecar import SidecarCluster

HERE = Path(__file__).parent


def unpacked(name: str, home: Path) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(home, filter="data")


def test_a_directory_made_before_is_opened(tmp_path: Path) -> None:
    unpacked("directory", tmp_path)
    with cassq.connect(f"file:{tmp_path}/directory") as client:
        check(client)


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[SidecarCluster]:
    """Three, on the data that was kept."""
    unpacked("sidecars", tmp_path)
    yield from running(sidecar.cluster(nodes=3, home=tmp_path / "sidecars"))


@pytest.mark.servers
def test_sidecars_made_before_are_started(sidecars: SidecarCluster) -> None:
    with cassq.connect(sidecars.url()) as client:
        check(client)


def test_a_keyspace_made_before_is_upgraded_and_opened(cassandra1: CassandraCluster) -> None:
    with lzma.open(HERE / "keyspace.xz", "rt") as file:
        lines = [json.loads(line) for line in file]
    with session_of(cassandra1.url("")) as session:
        session.execute(
            "CREATE KEYSPACE older WITH replication ="
            " {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
        )
        for statement in lines[0]:
            session.execute(statement)
        for table, row in lines[1:]:
            there = {name: value for name, value in json.loads(row).items() if value is not None}
            session.execute(f"INSERT INTO older.{table} JSON %s DEFAULT UNSET", [json.dumps(there)])
    url = cassandra1.url("older")
    with pytest.raises(ConfigError, match="schema version 2") as refused:
        cassq.connect(url)
    assert "cassq schema apply" in str(refused.value)
    applied = CliRunner().invoke(main, ["schema", "apply", "--url", url])
    assert applied.exit_code == 0, applied.output
    with cassq.connect(url) as client:
        check(client)
