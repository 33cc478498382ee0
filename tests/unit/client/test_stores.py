"""The choice of a store: what a URL says of sidecars, and what of that cannot be right."""

from __future__ import annotations

from urllib.parse import quote

import pytest

import cassq
from cassq.client.backends.sidecar_options import TOKEN_VARIABLE
from cassq.client.backends.stores import CASSANDRA, FILES, SIDECAR, sidecars_of
from cassq.client.client import Client
from cassq.errors import ConfigError
from cassq.extents.protocol.messages import Hello
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.settings import Settings
from cassq.sidecar.sessions.handshake import Handshake

SECRET = "s3cret+token"
THEIRS = {"store": SIDECAR}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.mark.parametrize("own", [FILES, CASSANDRA])
def test_without_a_word_of_it_the_store_is_the_catalog_s_own(own: str) -> None:
    assert sidecars_of({}, own) is None
    assert sidecars_of({"store": own, "dc": "east"}, own) is None


def test_sidecars_are_asked_for_by_name_alone() -> None:
    assert sidecars_of(THEIRS, FILES) == Settings(replicas=3, zone="", token="", tls=None)


def test_a_url_says_how_many_replicas_and_where_its_client_is() -> None:
    options = {**THEIRS, "replicas": "5", "zone": "rack-7.b_2", "sidecar_token": SECRET}
    assert sidecars_of(options, CASSANDRA) == Settings(5, "rack-7.b_2", SECRET)


@pytest.mark.parametrize("replicas", ["1", "9"])
def test_from_one_to_nine_replicas_may_be_had(replicas: str) -> None:
    made = sidecars_of({**THEIRS, "replicas": replicas}, FILES)
    assert made is not None
    assert made.replicas == int(replicas)


def test_the_token_of_the_environment_is_used_where_the_url_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    assert sidecars_of(THEIRS, FILES) == Settings(token=SECRET)
    assert sidecars_of({**THEIRS, "sidecar_token": "other"}, FILES) == Settings(token="other")
    assert sidecars_of({}, FILES) is None, "it is no reason to use sidecars"
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert sidecars_of(THEIRS, FILES) == Settings()


def test_tls_is_for_sidecars_what_it_is_for_cassandra() -> None:
    made = sidecars_of({**THEIRS, "sidecar_tls": "full", "tls": "no"}, CASSANDRA)
    assert made is not None
    assert made.tls is not None
    assert made.tls.check_hostname


@pytest.mark.parametrize(
    ("options", "after", "rate"),
    [
        ({}, 600, 64 << 20),
        ({"repair_after": "0", "repair_rate": "1"}, 0, 1),
        ({"repair_after": "1.5", "repair_rate": "500K"}, 1.5, 500 << 10),
        ({"repair_after": "2592000", "repair_rate": "2G"}, 2_592_000, 2 << 30),
    ],
)
def test_how_repairs_are_made(options: dict[str, str], after: float, rate: int) -> None:
    made = sidecars_of({**THEIRS, **options}, FILES)
    assert made is not None
    assert (made.repair_after, made.repair_rate) == (after, rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "s3"}, "store must be files or sidecar, not 's3'"),
        ({"store": "cassandra"}, "store must be files or sidecar, not 'cassandra'"),
        ({"store": ""}, "store must be files or sidecar, not ''"),
        ({"replicas": "3"}, "replicas is only for sidecars.*store=sidecar"),
        ({"zone": "a"}, "zone is only for sidecars"),
        ({"store": "files", "sidecar_token": SECRET}, "sidecar_token is only for sidecars"),
        ({"sidecar_ca": "ca.pem"}, "sidecar_ca is only for sidecars"),
        ({**THEIRS, "replicas": "0"}, "from 1 to 9, not '0'"),
        ({**THEIRS, "replicas": "10"}, "from 1 to 9, not '10'"),
        ({**THEIRS, "replicas": "-1"}, "from 1 to 9, not '-1'"),
        ({**THEIRS, "replicas": "\u00b2"}, "from 1 to 9"),
        ({**THEIRS, "replicas": "three"}, "from 1 to 9, not 'three'"),
        ({**THEIRS, "replicas": ""}, "from 1 to 9, not ''"),
        ({**THEIRS, "repair_after": "-1"}, "seconds up to 2,592,000, not '-1'"),
        ({**THEIRS, "repair_after": "2592001"}, "repair_after must be a number of seconds"),
        ({**THEIRS, "repair_after": "inf"}, "repair_after must be a number of seconds"),
        ({**THEIRS, "repair_rate": "0"}, "repair_rate must be bytes per second.*not '0'"),
        ({**THEIRS, "repair_rate": "64MB"}, "such as 500K, 64M or 1G, not '64MB'"),
        ({"repair_rate": "64M"}, "repair_rate is only for sidecars"),
        ({**THEIRS, "zone": ""}, "'' is not a valid zone name.*letters"),
        ({**THEIRS, "zone": "a b"}, "'a b' is not a valid zone name"),
        ({**THEIRS, "zone": 65 * "z"}, "is not a valid zone name"),
        ({**THEIRS, "sidecar_token": ""}, "sidecar_token is not a valid token.*%2B"),
        ({**THEIRS, "sidecar_token": f"{SECRET} "}, "sidecar_token is not a valid token"),
        ({**THEIRS, "sidecar_token": f"{SECRET}\n"}, "sidecar_token is not a valid token"),
        ({**THEIRS, "sidecar_token": f"{SECRET}\u00e9"}, "sidecar_token is not a valid token"),
        ({**THEIRS, "sidecar_token": 257 * "x"}, "sidecar_token is not a valid token"),
        (
            {**THEIRS, "sidecar_tls": "maybe"},
            "sidecar_tls must be one of full, ca, no, not 'maybe'",
        ),
        ({**THEIRS, "sidecar_ca": "absent.pem"}, "sidecar_ca=absent.pem: there is no such file"),
        ({**THEIRS, "sidecar_key": "k.pem"}, "has sidecar_key=, but no sidecar_cert="),
        (
            {**THEIRS, "sidecar_tls": "no", "sidecar_ca": "c"},
            "sidecar_tls is off, but the URL has sidecar_ca=",
        ),
    ],
)
def test_an_invalid_option_is_reported_without_the_token(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        sidecars_of(options, FILES)
    assert SECRET not in str(caught.value)


def test_a_token_of_the_environment_that_cannot_be_used_is_reported_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, f"{SECRET} {SECRET}")
    with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE} is not a valid token") as caught:
        sidecars_of(THEIRS, FILES)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("bearer", "shown"),
    [
        (Settings(5, "rack", SECRET), ["5", "rack"]),
        (Access(SECRET, None, "me"), ["me", "set"]),
        (Hello(7, "this one", SECRET, "me"), ["7", "this one", "me"]),
        (Handshake("a:1", "g", "z", "this one", (SECRET,)), ["a:1", "this one", "tokens: 1"]),
    ],
)
def test_a_token_is_never_shown(bearer: object, shown: list[str]) -> None:
    assert SECRET not in repr(bearer)
    assert SECRET not in f"{[bearer]} {bearer}"
    assert all(found in repr(bearer) for found in shown)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            f"file:q?store=sidecar&sidecar_token={quote(SECRET)}&zone=a",
            "file:q?store=sidecar&sidecar_token=...&zone=a",
        ),
        (
            f"cassandra://ann:p@db/k?sidecar_token={quote(SECRET)}",
            "cassandra://ann:...@db/k?sidecar_token=...",
        ),
        (
            "cassandra://db/k?locks=zookeeper://ann:p@zk/x",
            "cassandra://db/k?locks=zookeeper://ann:...@zk/x",
        ),
    ],
)
def test_a_client_shows_no_secret_of_its_url(url: str, shown: str) -> None:
    client = Client.__new__(Client)
    client.url = url
    assert repr(client) == f"<Client {shown}>"


@pytest.mark.parametrize("scheme", ["fil", "cassandr", "", "http"])
def test_an_error_about_another_url_shows_no_token(scheme: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cassq.connect(f"{scheme}:q?store=sidecar&sidecar_token={SECRET}")
    assert SECRET not in str(caught.value)
    assert f"{scheme}:q" in str(caught.value)
