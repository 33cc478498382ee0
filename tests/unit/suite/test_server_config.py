"""What the real servers are configured with, where they listen, and what their command takes."""

from __future__ import annotations

import fcntl
import os
import random
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.servers.__main__ import KINDS, make_parser, parsed_option
from tests.servers.cluster import sweep
from tests.servers.kinds import cassandra, cassandra_config, hazelcast, zookeeper
from tests.servers.kinds.cassandra_config import CassandraSettings
from tests.servers.parts.addresses import claim_subnet, joined, random_prefixes
from tests.servers.parts.errors import MissingServerError

HOME = Path("/data/node1")
SEEDS = ["127.9.9.1", "127.9.9.2"]


def cassandra_yaml(**settings: Any) -> dict[str, Any]:
    made = CassandraSettings(**settings)
    return cassandra_config.yaml(made, HOME, SEEDS[0], SEEDS, token=7)


# --- Cassandra ------------------------------------------------------------------------------------


def test_a_cassandra_node_stays_on_its_own_address_and_in_its_own_directory() -> None:
    content = cassandra_yaml()
    assert {content["listen_address"], content["rpc_address"]} == {SEEDS[0]}
    assert content["seed_provider"][0]["parameters"] == [{"seeds": ",".join(SEEDS)}]
    assert content["data_file_directories"] == [str(HOME / "data")]
    places = [value for key, value in content.items() if key.endswith("_directory")]
    assert len(places) >= 4
    assert all(Path(place).is_relative_to(HOME) for place in places)


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        ("periodic", {"commitlog_sync_period"}),
        ("batch", set()),
        ("group", {"commitlog_sync_group_window"}),
    ],
)
def test_each_commit_log_sync_has_its_own_line_alone(sync: str, expected: set[str]) -> None:
    content = cassandra_yaml(commitlog_sync=sync)
    assert content["commitlog_sync"] == sync
    assert {key for key in content if key.startswith("commitlog_sync_")} == expected


def test_authentication_is_off_unless_asked_for() -> None:
    assert "authenticator" not in cassandra_yaml()
    content = cassandra_yaml(authentication=True)
    assert content["authenticator"] == "PasswordAuthenticator"
    assert content["authorizer"] == "CassandraAuthorizer"


def test_an_option_overrules_a_line() -> None:
    assert cassandra_yaml()["concurrent_reads"] != 3
    assert cassandra_yaml(options={"concurrent_reads": 3})["concurrent_reads"] == 3


@pytest.mark.parametrize(("nodes", "centres"), [(1, ()), (3, ()), (3, (2, 1)), (4, (2, 2))])
def test_tokens_differ_and_are_even_in_each_data_centre(
    nodes: int, centres: tuple[int, ...]
) -> None:
    places = cassandra_config.places(nodes, centres)
    assert len(places) == len({token for _, token in places}) == nodes
    assert all(-(2**63) <= token < 2**63 for _, token in places)
    for number, count in enumerate(centres or (nodes,), 1):
        tokens = [token for centre, token in places if centre == f"dc{number}"]
        assert len(tokens) == count
        gaps = [after - before for before, after in pairwise(tokens)]
        assert all(abs(gap - 2**64 // count) <= 1 for gap in gaps)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"commitlog_sync": "never"}, "commitlog_sync is one of"),
        ({"data_centers": (2, 2)}, "data centres of 2,2 nodes are not 3 nodes"),
        ({"data_centers": (3, 0)}, "data centres of 3,0 nodes are not 3 nodes"),
        ({"heap_mib": 64}, "too small"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cassandra.cluster(nodes=3, **settings)


def test_the_full_compiler_is_used_only_when_asked_for() -> None:
    quick = "-XX:TieredStopAtLevel=1"
    assert quick in cassandra_config.java_options(CassandraSettings(), HOME, 1)
    assert quick not in cassandra_config.java_options(CassandraSettings(full_jit=True), HOME, 1)


# --- ZooKeeper and Hazelcast ----------------------------------------------------------------------


def test_a_lone_zookeeper_has_no_peers_and_one_of_three_has_all() -> None:
    alone = zookeeper.configuration(HOME, "127.9.9.1", ["127.9.9.1"])
    assert "server." not in alone
    assert "clientPortAddress=127.9.9.1\n" in alone
    three = [f"127.9.9.{number}" for number in (1, 2, 3)]
    found = zookeeper.configuration(HOME, three[1], three)
    assert re.findall(r"server\.(\d)=([\d.]+):", found) == list(zip("123", three, strict=True))


@pytest.mark.parametrize(("members", "group"), [(1, None), (2, None), (3, 3), (4, 3), (5, 5)])
def test_hazelcast_has_consensus_from_three_members_on(members: int, group: int | None) -> None:
    addresses = [f"127.9.9.{number}" for number in range(1, members + 1)]
    content = hazelcast.configuration(addresses[0], addresses, 5)["hazelcast"]
    assert content["cp-subsystem"].get("group-size") == group
    assert content["network"]["join"]["tcp-ip"]["member-list"] == addresses
    assert not content["network"]["join"]["multicast"]["enabled"]


def test_a_session_shorter_than_its_heartbeat_is_refused() -> None:
    with pytest.raises(ValueError, match="2 seconds at least"):
        hazelcast.cluster(nodes=3, session_seconds=1)


# --- addresses ------------------------------------------------------------------------------------


def test_a_subnet_has_one_holder_until_it_is_released() -> None:
    held = claim_subnet()
    assert held.addresses(2) == [f"{held.prefix}.1", f"{held.prefix}.2"]
    with pytest.raises(MissingServerError, match="taken"):
        claim_subnet(held.prefix)
    held.release()
    claim_subnet(held.prefix).release()


def test_random_subnets_are_loopback_s_and_not_its_first() -> None:
    prefixes = list(random_prefixes(random.Random(1)))
    assert len(set(prefixes)) > 10
    for prefix in prefixes:
        first, second, third = map(int, prefix.split("."))
        assert first == 127
        assert 1 <= second <= 254
        assert 1 <= third <= 254


@pytest.mark.parametrize("prefix", ["10.0.0", "127.1", "127.1.256", "127.1.2.3", "127.x.1", ""])
def test_a_subnet_elsewhere_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"looks like 127\.20\.7"):
        claim_subnet(prefix)


def test_addresses_are_joined_as_clients_take_them() -> None:
    assert joined(["127.1.2.1", "127.1.2.2"], 2181) == "127.1.2.1:2181,127.1.2.2:2181"


# --- directories ----------------------------------------------------------------------------------


def test_a_dead_owner_s_directory_is_swept_and_a_living_one_s_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, living, young = (tmp_path / f"cassq-servers.{name}" for name in ("d", "l", "y"))
    for place in (dead, living, young):
        place.mkdir()
        (place / "owner").touch()
    for place in (dead, living):
        os.utime(place, (0, 0))
    with (living / "owner").open("ab") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        sweep()
    assert [place.name[-1] for place in sorted(tmp_path.iterdir())] == ["l", "y"]


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a=3", ("a", 3)),
        ("a=true", ("a", True)),
        ("a=32MiB", ("a", "32MiB")),
        ('a={"b": 1}', ("a", {"b": 1})),
        ("a=b=c", ("a", "b=c")),
        ("a=", ("a", "")),
    ],
)
def test_an_option_s_value_is_json_or_a_word(message: str, expected: tuple[str, Any]) -> None:
    assert parsed_option(message) == expected


@pytest.mark.parametrize("message", ["a", "=3", ""])
def test_an_option_without_key_or_value_is_refused(message: str) -> None:
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parsed_option(message)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [0, 6, -1])
def test_too_few_and_too_many_nodes_are_refused(kind: str, nodes: int) -> None:
    asked = make_parser().parse_args(["up", kind, f"--nodes={nodes}"])
    with pytest.raises(ValueError, match=f"{kind} has 1 to 5 nodes"):
        asked.make(asked)


def test_what_is_asked_for_reaches_the_cluster() -> None:
    words = "up cassandra --nodes 3 --data-centers 2,1 --commitlog-sync batch --authentication"
    asked = make_parser().parse_args([*words.split(), "--option", "concurrent_reads=3"])
    settings = asked.make(asked).settings
    assert settings == CassandraSettings(
        commitlog_sync="batch",
        authentication=True,
        data_centers=(2, 1),
        options={"concurrent_reads": 3},
    )


def test_a_subnet_and_partitions_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="subnet"):
        zookeeper.cluster(nodes=3, subnet="127.9.9", partitions=True)
