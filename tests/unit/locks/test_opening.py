"""URLs of locks, and what stands between them and a locker; no server is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock, SystemClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import ConfigError, MissingExtraError
from cassq.locks.address import LockAddress, parse
from cassq.locks.opening import open_locker
from cassq.locks.owner import OwnerThread
from cassq.locks.tokens import lease_tokens


def test_a_url_has_hosts_with_ports_and_a_path() -> None:
    assert parse(
        "zookeeper://h1:2182,h2,[::1]:7/a/b/?session=3", port=2181, options=["session"]
    ) == LockAddress(
        "zookeeper", ("h1:2182", "h2:2181", "[::1]:7"), "a/b", "", "", {"session": "3"}
    )


def test_a_url_may_have_a_user_whose_password_is_never_shown() -> None:
    address = parse("zookeeper://me:s%40c:ret@h:1/cassq", port=2181, options=[])
    assert (address.user, address.password) == ("me", "s@c:ret")
    assert address.shown() == "zookeeper://me:...@h:1/cassq"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zookeeper://", "''"),
        ("zookeeper://h1,,h2/cassq", "''"),
        ("zookeeper://h:0/cassq", "'h:0'"),
        ("zookeeper://h:65536/cassq", "'h:65536'"),
        ("zookeeper://h:port/cassq", "'h:port'"),
        ("zookeeper://h:1:2/cassq", "'h:1:2'"),
        ("zookeeper://h/cassq?sessions=3", "'sessions'"),
        ("zookeeper://h/cassq?session=soon", "session=soon"),
        ("zookeeper://h/cassq?session=0", "session=0"),
        ("zookeeper://h/cassq?session=nan", "session=nan"),
        ("zookeeper://secret@h/cassq", "user and password"),
        ("zookeeper://me:@h/cassq", "user and password"),
        ("zookeeper://:secret@h/cassq", "user and password"),
        ("hazelcast://h/dev?cp=maybe", "cp must be yes or no"),
        ("hazelcast://me:secret@h:x/dev", "'h:x'"),
        ("hazelcast://h?cp=no", "tokens"),
        ("redis://me:secret@h/0", "'redis'"),
        ("zookeeper:h", "'zookeeper:h'"),
        ("", "''"),
    ],
)
def test_a_wrong_url_is_refused_by_what_is_wrong(url: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_locker(url, SystemClock())
    assert expected in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "module", "package"),
    [
        ("zookeeper", "kazoo", "kazoo"),
        ("hazelcast", "hazelcast", "hazelcast-python-client"),
    ],
)
def test_a_missing_driver_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, module: str, package: str
) -> None:
    monkeypatch.delitem(sys.modules, f"cassq.locks.{scheme}", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=package) as caught:
        open_locker(f"{scheme}://localhost:1/cassq", SystemClock())
    assert caught.value.hint == f"pip install 'cassq[{scheme}]'"


def test_a_name_is_a_node_whatever_it_is() -> None:
    escaped = pytest.importorskip("cassq.locks.zookeeper").escaped
    names = ["pop:1:2", "/a/b", "a/b", ".", "..", "...", ".a", "a%2Fb", "ä", "a b", "A"]
    assert len({escaped(name) for name in names}) == len(names)
    assert not any("/" in escaped(name) for name in names)
    assert {".", ".."}.isdisjoint(map(escaped, names))


def test_a_line_is_in_order_when_its_numbers_begin_again() -> None:
    in_line = pytest.importorskip("cassq.locks.zookeeper").in_line
    line = ["x.2147483646", "b.2147483647", "c.-2147483648", "a.-2147483647"]
    assert in_line(sorted(line)) == line
    assert in_line(["notes", "a.0000000010", "b.0000000009", "x.y"]) == [
        "b.0000000009",
        "a.0000000010",
    ]
    assert in_line(["notes"]) == []


def test_tokens_from_the_catalog_grow_and_are_not_had_by_two_at_once(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite", ManualClock(), durable=False)
    mine, yours = lease_tokens(catalog, "me"), lease_tokens(catalog, "you")
    tokens = [mine("l"), yours("l"), yours("l"), mine("l")]
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)
    assert catalog.leases.take("token:l", "between", 1000) is not None
    assert mine("l") is None
    assert mine("other") is not None
    catalog.close()


def test_an_owner_gives_answers_and_errors_and_waits_no_longer_than_asked() -> None:
    owner = OwnerThread("test owner")
    assert owner.ask(lambda: 5, 30) == 5
    with pytest.raises(ZeroDivisionError):
        owner.ask(lambda: 1 / 0, 30)

    class Never:
        def add_done_callback(self, callback: object) -> None:
            """No answer comes."""

    with pytest.raises(TimeoutError):
        owner.ask(Never, 0.01)
    assert owner.ask(lambda: 6, 30) == 6, "it does not wait itself"
    owner.stop()
