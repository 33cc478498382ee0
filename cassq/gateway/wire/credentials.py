"""Credentials: the access keys that are accepted, and what each of them may do.

A TOML file. `queues` and `actions` are patterns as in a shell; without them, a key may use all::

    [keys.AKIDWORKER]
    secret = "wJalrXUtnFEMI"
    queues = ["orders-*"]
    actions = ["ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"]

Permission for an action includes its batches, as in policies of SQS.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import translate
from pathlib import Path
from typing import Any

from cassq.errors import ConfigError
from cassq.gateway.request import Caller
from cassq.gateway.wire.sqs import ACTIONS

logger: logging.Logger = logging.getLogger("cassq")

KEYS_MAX = 10_000
ANSWERS_MAX = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_HINT = 'write [keys.NAME], secret = "..."; and maybe queues = ["..."] and actions = ["..."]'


class Key:
    """An access key: its secret, and its caller."""

    def __init__(
        self, name: str, secret: str, queues: Sequence[str], actions: Sequence[str]
    ) -> None:
        self.secret: bytes = b"AWS4" + secret.encode()
        self.caller: Caller = Caller(name, self._may)
        self._queues = _any_of(queues)
        self._actions = _any_of(actions)
        self._answers: dict[tuple[str, str], bool] = {}

    def _may(self, action: str, queue: str) -> bool:
        asked = (action, queue)
        answer = self._answers.get(asked)
        if answer is None:
            names = {action, action.removesuffix("Batch")}
            answer = any(map(self._actions.fullmatch, names)) and (
                not queue or self._queues.fullmatch(queue) is not None
            )
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[asked] = answer
        return answer


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) if patterns else r"(?!)")


class Credentials:
    """The keys of a file, as it is now. Raises ConfigError, which never shows a secret."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = _state(path)
        self.keys: Mapping[str, Key] = read_keys(path)
        self.version: int = 0
        if _others_can_read(path):
            logger.warning("any user of this machine can read the secrets in %s", path)

    def refresh(self, *, anyway: bool = False) -> None:
        """Read the file again if it has changed. anyway: even if not. If it cannot be used, the
        former keys stay. Cost: one `stat` of the file."""
        state = _state(self._path)
        if state == self._state and not anyway:
            return
        self._state = state
        try:
            self.keys = read_keys(self._path)
        except ConfigError as exc:
            logger.error("the former credentials stay in use: %s", exc)
            return
        self.version += 1
        logger.warning("%s was read again: it has %d keys", self._path, len(self.keys))


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _others_can_read(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o004)


def read_keys(path: Path) -> dict[str, Key]:
    """The keys in a file. Raises ConfigError, which never shows a secret."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror or exc}", hint=_HINT) from exc
    except (tomllib.TOMLDecodeError, UnicodeError) as exc:
        # The error's text may quote the line, and so a secret.
        where = re.search(r"\(at (.*)\)$", str(exc))
        at = f", at {where[1]}" if where else ""
        raise ConfigError(f"{path} is not valid TOML{at}", hint=_HINT) from None
    keys = content.pop("keys", None)
    if content or not isinstance(keys, dict) or not 1 <= len(keys) <= KEYS_MAX:
        raise ConfigError(f"{path} must have 1 to {KEYS_MAX} tables [keys.NAME], and nothing else")
    return {name: _key(path, name, its) for name, its in keys.items()}


def _key(path: Path, name: str, its: Any) -> Key:
    where = f"{path}: [keys.{name}]"
    if not _NAME.fullmatch(name) or not isinstance(its, dict):
        raise ConfigError(
            f"{path}: {name!r:.200} is not a valid access key",
            hint="it has 1 to 128 letters, digits, and characters of _-",
        )
    its = dict(its)
    secret = its.pop("secret", None)
    if not isinstance(secret, str) or not secret:
        raise ConfigError(f"{where} has no secret", hint=_HINT)
    queues, actions = its.pop("queues", ["*"]), its.pop("actions", ["*"])
    if its:
        raise ConfigError(f"{where} has the unknown entry {min(its)!r:.200}", hint=_HINT)
    for entry, patterns in (("queues", queues), ("actions", actions)):
        if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
            raise ConfigError(f"{where}: {entry} must be a list of patterns", hint=_HINT)
    for pattern in actions:
        if not any(map(re.compile(translate(pattern)).fullmatch, ACTIONS)):
            raise ConfigError(
                f"{where}: no action matches {pattern!r:.200}",
                hint="write names of actions, as in SendMessage or Receive*",
            )
    return Key(name, secret, queues, actions)
