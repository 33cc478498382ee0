"""The routing file of alerts: what it may say, and how it is told what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassq.alerts.targets import AlertTarget, load_targets
from cassq.errors import ConfigError

GOOD = """
[[target]]
name = "log"
log = true

[[target]]
name = "page"
command = ["notify", "--from", "cassq"]
importance = ["high", "critical"]
timeout = 5

[[target]]
name = "hook"
webhook = "https://example.com:8443/hooks?team=a"
headers = {Authorization = "Bearer x"}
owner = "payments"
kind = ["failed", "stalled"]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    return path


def test_a_file_names_logs_commands_and_webhooks(tmp_path: Path) -> None:
    assert load_targets(written(tmp_path, GOOD)) == [
        AlertTarget("log"),
        AlertTarget(
            "page",
            command=("notify", "--from", "cassq"),
            importances=("high", "critical"),
            timeout=5.0,
        ),
        AlertTarget(
            "hook",
            webhook="https://example.com:8443/hooks?team=a",
            headers=(("Authorization", "Bearer x"),),
            owners=("payments",),
            kinds=("failed", "stalled"),
        ),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "may only contain"),
        ("target = 5", "may only contain"),
        ("target = [5]", "may only contain"),
        ("[other]\nx = 1\n[[target]]\nname = 'a'\nlog = true", "may only contain"),
        ("[[target]\n", "not TOML"),
        ("[[target]]\nlog = true", "no valid name"),
        ("[[target]]\nname = 'a b'\nlog = true", "no valid name"),
        ("[[target]]\nname = 'a'", "one of log, command and webhook, not 0"),
        (
            "[[target]]\nname = 'a'\nlog = true\nwebhook = 'http://x/'",
            "one of log, command and webhook, not 2",
        ),
        ("[[target]]\nname = 'a'\nlog = 'yes'", "log must be true"),
        ("[[target]]\nname = 'a'\nlog = true\nlevel = 1", "unknown setting 'level'"),
        ("[[target]]\nname = 'a'\ncommand = 'ls -l'", "command must be a program"),
        ("[[target]]\nname = 'a'\ncommand = ['']", "command must be a program"),
        ("[[target]]\nname = 'a'\ncommand = ['ls', 5]", "command must be a program"),
        ("[[target]]\nname = 'a'\nwebhook = 'ftp://x/'", "webhook must be an http"),
        ("[[target]]\nname = 'a'\nwebhook = 'http:///x'", "webhook must be an http"),
        ("[[target]]\nname = 'a'\nwebhook = 'http://x:y/'", "webhook must be an http"),
        ("[[target]]\nname = 'a'\nwebhook = \"http://x/\\r\\nA: b\"", "webhook must be an http"),
        ("[[target]]\nname = 'a'\nwebhook = 'http://u:p@x/'", "password"),
        ("[[target]]\nname = 'a'\nwebhook = 'http://x/'\nheaders = 5", "HTTP header"),
        ("[[target]]\nname = 'a'\nwebhook = 'http://x/'\nheaders = {A = \"b\\nc\"}", "HTTP header"),
        ("[[target]]\nname = 'a'\nlog = true\ntimeout = 0", "timeout must be 0.1 to 300"),
        ("[[target]]\nname = 'a'\nlog = true\ntimeout = true", "timeout must be 0.1 to 300"),
        ("[[target]]\nname = 'a'\nlog = true\nkind = 'burnt'", "unknown kind 'burnt'"),
        ("[[target]]\nname = 'a'\nlog = true\nowner = 5", "owner must be a string"),
        ("[[target]]\nname = 'a'\nlog = true\n" * 2, "called 'a'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=expected) as caught:
        load_targets(path)
    assert str(path) in caught.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml cannot be read: No such file"):
        load_targets(tmp_path / "no.toml")
