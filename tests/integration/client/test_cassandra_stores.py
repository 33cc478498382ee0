"""The store of a keyspace: chosen by its first client, and the same for all that come later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import cassq
from cassq.base.clock import SystemClock
from cassq.cassandra.contact import Contact
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import schema
from cassq.cli.main import main
from cassq.client.backends.embedded import CATALOG, PIPES
from cassq.client.connecting import open_spool
from cassq.errors import ConfigError
from cassq.extents.cassandra import CassandraStore
from cassq.extents.sidecar import SidecarStore
from tests.contract.keyspaces import remove_all, tables_of
from tests.servers.kinds.cassandra import CassandraCluster

KEYSPACE = "stores"
SIDECAR = "?store=sidecar"


@pytest.fixture(scope="module")
def tables(cassandra1_for_the_session: CassandraCluster) -> Iterator[Cql]:
    """A session with a keyspace that has its tables."""
    servers = cassandra1_for_the_session
    contact = Contact(tuple(servers.contact_points), KEYSPACE, servers.port)
    cql = Cql(contact, SystemClock())
    schema.apply(cql, SystemClock(), {"": 1})
    cql.use(KEYSPACE)
    yield cql
    cql.close()


@pytest.fixture
def url(cassandra1: CassandraCluster, tables: Cql) -> str:
    """A keyspace that nobody has connected to yet."""
    forget(tables)
    for (pipe_id,) in tables.read("SELECT pipe_id FROM extents"):
        tables.apply("DELETE FROM extents WHERE pipe_id = ? IF EXISTS", (pipe_id,))
    return cassandra1.url(KEYSPACE)


@pytest.fixture
def fresh(url: str, tables: Cql) -> str:
    """A keyspace with a schema, and nothing else."""
    remove_all(tables, tables_of(tables).keys() - {"meta"})
    return url


def forget(tables: Cql) -> None:
    tables.apply("DELETE FROM meta WHERE key = 'store' IF EXISTS")


def test_a_keyspace_has_the_store_that_its_first_client_chose(url: str) -> None:
    cassq.connect(f"{url}{SIDECAR}&zone=a").close()
    with pytest.raises(
        ConfigError, match="'stores' keeps its messages with store=sidecar, not store=cassandra"
    ):
        cassq.connect(f"{url}?store=cassandra")
    for options in (SIDECAR, ""):
        with cassq.connect(f"{url}{options}") as client:
            assert isinstance(client.ports.store, SidecarStore), "it is read from the keyspace"


@pytest.mark.parametrize("options", ["", "?store=cassandra"])
def test_a_keyspace_used_without_sidecars_is_not_opened_with_them(url: str, options: str) -> None:
    cassq.connect(f"{url}{options}").close()
    with pytest.raises(ConfigError, match="with store=cassandra, not store=sidecar"):
        cassq.connect(f"{url}{SIDECAR}")
    cassq.connect(url).close()


def test_messages_of_a_keyspace_that_names_no_store_are_not_forgotten(
    url: str, tables: Cql
) -> None:
    with cassq.connect(url) as client, client.create_queue("kept").pusher() as pusher:
        pusher.push(b"a")
    forget(tables)
    with pytest.raises(ConfigError, match="with store=cassandra, not store=sidecar"):
        cassq.connect(f"{url}{SIDECAR}")


def test_options_that_cannot_be_right_make_no_spool(url: str, tmp_path: Path) -> None:
    for options in ("store=files", "zone=a", "store=sidecar&replicas=x"):
        with pytest.raises(ConfigError):
            cassq.connect(f"{url}?{options}&spill={tmp_path}/spool")
    assert list(tmp_path.iterdir()) == []


def test_a_spool_is_a_directory_of_files_whatever_the_store_is(url: str, tmp_path: Path) -> None:
    spilling = f"{url}{SIDECAR}&spill={tmp_path}"
    with cassq.connect(spilling) as client:
        queue = client.create_queue("spilled")
        with queue.pusher() as pusher:
            assert pusher.push(b"a").spilled, "there is no sidecar to take it"
    assert {CATALOG, PIPES} <= {path.name for path in (tmp_path / KEYSPACE).iterdir()}
    spool = open_spool(spilling)
    assert [(each.queue, each.waiting) for each in spool.contents()] == [("spilled", 1)]
    spool.close(quietly=True)


def test_the_command_chooses_the_store_of_a_fresh_keyspace(fresh: str) -> None:
    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["schema", *words, "--url", fresh])
        assert result.exit_code == code, result.output
        return result

    assert json.loads(run("status", "--json").stdout)["store"] is None
    assert "not 'elsewhere'" in run("change", "--store", "elsewhere", code=2).stderr
    changed = run("change", "--store", "sidecar").stdout
    assert changed == "all clients keep messages with store=sidecar\n"
    assert json.loads(run("status", "--json").stdout)["store"] == "sidecar"
    with pytest.raises(ConfigError, match="with store=sidecar, not store=cassandra"):
        cassq.connect(f"{fresh}?store=cassandra")
    with cassq.connect(fresh) as client:
        assert isinstance(client.ports.store, SidecarStore)
    run("change", "--store", "cassandra")
    with cassq.connect(f"{fresh}?store=cassandra") as client:
        assert isinstance(client.ports.store, CassandraStore)
