"""The file of credentials: what it may have, and what becomes of it when it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cassq.errors import ConfigError
from cassq.gateway.serving import check_exposure
from cassq.gateway.wire.credentials import Credentials, read_keys


def written(path: Path, text: str, seconds: int = 1) -> Path:
    """A file with a text; each has another time, however coarse the file system's are."""
    path.write_text(text)
    path.chmod(0o600)
    os.utime(path, (seconds, seconds))
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys = 1",
        "[keys]",
        "[keys.A]",
        "[keys.A]\nsecret = 1",
        "[keys.A]\nsecret = ''",
        "[keys.'a b']\nsecret = 'SECRET'",
        "[keys.A]\nsecret = 'SECRET'\nqueue = ['a']",
        "[keys.A]\nsecret = 'SECRET'\nqueues = 'a'",
        "[keys.A]\nsecret = 'SECRET'\nqueues = [1]",
        "[keys.A]\nsecret = 'SECRET'\nactions = ['Sendmessage']",
        "[keys.A]\nsecret = 'SECRET\n",
        "[keys.A]\nsecret = SECRET\n",
        "other = 1\n[keys.A]\nsecret = 'SECRET'",
    ],
)
def test_a_bad_file_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_keys(written(tmp_path / "keys", text))
    assert str(tmp_path) in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_a_changed_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "keys", "[keys.A]\nsecret = 'SECRET'")
    credentials = Credentials(path)
    written(path, "[keys.B]\nsecret = 'SECRET'", 2)
    credentials.refresh()
    assert (list(credentials.keys), credentials.version) == (["B"], 1)
    written(path, "[keys.C", 3)
    credentials.refresh()
    assert (list(credentials.keys), credentials.version) == (["B"], 1)
    assert "the former credentials stay in use" in caplog.text
    path.unlink()
    credentials.refresh()
    assert list(credentials.keys) == ["B"]
    assert "SECRET" not in caplog.text


def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "keys", "[keys.A]\nsecret = 'SECRET'")
    path.chmod(0o644)
    Credentials(path)
    assert "can read the secrets" in caplog.text


def test_without_credentials_only_this_machine_can_connect() -> None:
    assert check_exposure("127.0.0.1:1", credentials=False, insecure=False) == ("127.0.0.1", 1)
    assert check_exposure("[::1]:1", credentials=False, insecure=False) == ("::1", 1)
    for listen in ("0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:1"):
        with pytest.raises(ConfigError, match="loopback") as caught:
            check_exposure(listen, credentials=False, insecure=False)
        assert "--insecure" in caught.value.hint
        check_exposure(listen, credentials=True, insecure=False)
        check_exposure(listen, credentials=False, insecure=True)
