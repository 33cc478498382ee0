"""Targets: which alerts go where; read from a TOML file.

::

    [[target]]
    name = "on-call"
    webhook = "https://example.com/hooks/cassq"
    importance = ["high", "critical"]
    timeout = 5

A target is the log, a command or a webhook. It gets only findings of its owners, importances and
kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cassq.alerts.rules import KINDS, Finding
from cassq.errors import ConfigError

TIMEOUT_SECONDS = 10.0
TIMEOUT_SECONDS_MAX = 300.0
TARGETS_MAX = 100
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_KNOWN = ("name", "log", "command", "webhook", "headers", "timeout", "owner", "importance", "kind")


@dataclass(frozen=True, slots=True)
class AlertTarget:
    """Where alerts go: the log, unless `command` or `webhook` is given.

    command: a program and its arguments; it gets the event as standard input. webhook: a URL; the
    event is posted there with `headers`. timeout: seconds. owners, importances, kinds: the findings
    it gets; empty means all.
    """

    name: str
    command: tuple[str, ...] = ()
    webhook: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = TIMEOUT_SECONDS
    owners: tuple[str, ...] = ()
    importances: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def wants(self, finding: Finding) -> bool:
        """Whether it gets this finding."""
        return all(
            not wanted or value in wanted
            for wanted, value in (
                (self.owners, finding.owner),
                (self.importances, finding.importance),
                (self.kinds, finding.kind),
            )
        )


def load_targets(path: Path) -> list[AlertTarget]:
    """Read the targets from a routing file. Raises ConfigError."""
    import tomllib

    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not TOML: {exc}") from exc
    try:
        return targets_of(found)
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc.message}", hint=exc.hint) from exc


def targets_of(document: Mapping[str, Any]) -> list[AlertTarget]:
    """The targets in the content of a routing file. Raises ConfigError."""
    entries = document.get("target")
    if set(document) - {"target"} or not isinstance(entries, list) or not entries:
        raise ConfigError("an alerts file may only contain [[target]] tables")
    if len(entries) > TARGETS_MAX:
        raise ConfigError(f"there are {len(entries)} targets; at most {TARGETS_MAX} are allowed")
    targets = [_target(number, entry) for number, entry in enumerate(entries, 1)]
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two targets are called {name!r}")
    return targets


def _target(number: int, entry: Any) -> AlertTarget:
    if not isinstance(entry, dict):
        raise ConfigError("an alerts file may only contain [[target]] tables")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"target {number} has no valid name: {name!r}",
            hint="use letters, digits, '.', '_' and '-'",
        )
    for key in entry:
        if key not in _KNOWN:
            raise ConfigError(
                f"target {name!r} has an unknown setting {key!r}",
                hint=f"the settings are {', '.join(_KNOWN)}",
            )
    ways = [way for way in ("log", "command", "webhook") if entry.get(way)]
    if len(ways) != 1:
        raise ConfigError(
            f"target {name!r} must have exactly one of log, command and webhook, not {len(ways)}",
            hint='give one: log = true, command = ["program", "argument"] or webhook = "URL"',
        )
    if entry.get("log", True) is not True:
        raise ConfigError(f"target {name!r}: log must be true, or left out")
    kinds = _words(name, "kind", entry)
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"target {name!r} has an unknown kind {kind!r}",
                hint=f"the kinds are {', '.join(KINDS)}",
            )
    return AlertTarget(
        name,
        command=_command(name, entry.get("command")),
        webhook=_webhook(name, entry.get("webhook")),
        headers=_headers(name, entry.get("headers")),
        timeout=_timeout(name, entry.get("timeout", TIMEOUT_SECONDS)),
        owners=_words(name, "owner", entry),
        importances=_words(name, "importance", entry),
        kinds=kinds,
    )


def _command(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if not words or not value[0] or any("\0" in word for word in value):
        raise ConfigError(
            f"target {name!r}: command must be a program and its arguments, not {value!r}",
            hint='for a shell: ["sh", "-c", "..."]',
        )
    return tuple(value)


def _webhook(name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not _is_url(value):
        raise ConfigError(f"target {name!r}: webhook must be an http or https URL, not {value!r}")
    if "@" in urlsplit(value).netloc:
        raise ConfigError(
            f"target {name!r}: the URL must not contain a password",
            hint='use headers = {Authorization = "..."}',
        )
    return value


def _is_url(text: str) -> bool:
    if not text.isascii() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False


def _headers(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    pairs = value.items() if isinstance(value, dict) else [("", None)]
    for header, text in pairs:
        if not _HEADER_NAME.fullmatch(header) or not isinstance(text, str) or not _sendable(text):
            raise ConfigError(f"target {name!r}: {header!r} = {text!r} is not an HTTP header")
    return tuple(value.items())


def _sendable(text: str) -> bool:
    return text.isprintable() and all(ord(char) < 256 for char in text)


def _timeout(name: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0.1 <= value <= TIMEOUT_SECONDS_MAX:
        raise ConfigError(
            f"target {name!r}: timeout must be 0.1 to {TIMEOUT_SECONDS_MAX:g} s, not {value!r}"
        )
    return float(value)


def _words(name: str, key: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    value = entry.get(key, [])
    words: Iterable[Any] = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"target {name!r}: {key} must be a string or a list of strings, not {value!r}"
        )
    return tuple(words)
