"""Journals: what one client did and was told, a JSON line each, written before it goes on.

A line has the nanosecond of the machine's even-running clock, which all processes share, a word,
and what the word is about:

    role ROLE NAME QUEUE GROUP          the first line
    opened                              another pusher is used from here on
    push OP KEYS                        a push of messages begins
    pushed OP IDS                       it was acknowledged
    failed OP HOW COUNT ERROR           it was not; HOW is "refused" or "unknown"; so many of the
                                        first were pushed all the same
    got BATCH CALLED [[KEY PIPE SEQ ATTEMPTS ID PRIORITY] ...]
                                        a pop, called at CALLED, returned these
    settle BATCH HOW KEYS               they are about to be committed, rolled back, ...
    settled BATCH HOW KEYS RESULT       that returned "ok", or failed: "lost" or "unknown"
    trouble WHERE ERROR                 an error that is to be expected while servers are down
    jumped SECONDS                      the wall clock of this process was set
    dead QUEUE GROUP KEYS               at the end: the dead letters of a group
    audit QUEUE GROUPS PUSHED FINDINGS  at the end: the ledger; of each group its parts
    schedule NAME QUEUE CREATED EVERY NEXT NOW PUSHING
                                        at the end, at NOW: the ticks since CREATED, each EVERY
                                        after the one before, and all before NEXT, were pushed;
                                        PUSHING: a push was begun and not finished. These are wall
                                        milliseconds
    end                                 the client ended as it should

Nothing is synced: the machine of the clients does not fail. A last line that was cut off by a
kill is as if it had not been written.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cassq.model.schedules import SCHEDULE_HEADER, TICK_HEADER

POISON_EVERY = 149
ORDER_KEYS = 5
PRIORITIES = (0, 0, 3, 0, 9)  # of messages of an ap queue, by their order key
TICK = "tick-"  # how the names of schedules begin, and of no client


class Journal:
    """One client's file. Thread-safe: a line is one write."""

    def __init__(self, path: Path, role: str, queue: str = "", group: str = "") -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.name = path.stem
        self.write("role", role, self.name, queue, group)

    def write(self, word: str, *about: Any) -> None:
        line = json.dumps([now_ns(), word, *about], separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


def now_ns() -> int:
    """The clock that all journals of a machine have in common; no nemesis sets it."""
    return time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class Line:
    at_ns: int
    word: str
    about: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """A journal, read. role: "pusher", "popper", "reaper" or "drainer"."""

    role: str
    name: str
    queue: str
    group: str
    lines: tuple[Line, ...]

    def of(self, *words: str) -> Iterator[Line]:
        return (line for line in self.lines if line.word in words)


def story_of(text: bytes) -> Story:
    """A journal's content; ValueError when anything but its last line is damaged."""
    whole = text[: text.rfind(b"\n") + 1].splitlines()
    lines = [Line(at, word, tuple(about)) for at, word, *about in map(json.loads, whole)]
    if not lines or lines[0].word != "role":
        raise ValueError("a journal begins with a role")
    return Story(*lines[0].about, lines=tuple(lines[1:]))


def read_all(directory: Path) -> list[Story]:
    """The journals of a directory; one that was killed before its first line has no story."""
    texts = [path.read_bytes() for path in sorted(directory.glob("*.jsonl"))]
    return [story_of(text) for text in texts if b"\n" in text]


# --- payloads ---------------------------------------------------------------------------------


def payload_of(key: str) -> bytes:
    """A message that tells which it is, and whether it was altered; up to 1 KB."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return f"{key} {digest * (1 + int(digest[:2], 16) // 9)}".encode()


def tick_key(schedule: str, at_ms: int) -> str:
    """Which message that of a tick is. at_ms: wall time of the tick."""
    return f"{schedule}:{at_ms}"


def key_of(payload: bytes, headers: Mapping[str, str]) -> str:
    """Which message it is; what nobody can have pushed is told as such. That of a tick is empty,
    and its headers tell which it is."""
    if SCHEDULE_HEADER in headers and not payload:
        when = datetime.fromisoformat(headers[TICK_HEADER])
        return tick_key(headers[SCHEDULE_HEADER], round(when.timestamp() * 1000))
    key = payload.partition(b" ")[0].decode(errors="replace")
    return key if payload_of(key) == payload else f"damaged:{payload[:60]!r}"


def order_key_of(key: str) -> str:
    """By what a group orders a message, if it has an order of keys. Each of the key lanes of the
    queue that has several gets one of these at least. Ticks have none: each is as one of its own.
    """
    if key.startswith(TICK):
        return key
    return f"key {_number(key) % ORDER_KEYS}"


def priority_of(key: str, *, strict: bool) -> int:
    """With which priority it is pushed. strict: to a queue that keeps one order."""
    return 0 if strict or key.startswith(TICK) else PRIORITIES[_number(key) % ORDER_KEYS]


def is_poison(key: str) -> bool:
    """Whether no consumer can work on it."""
    return _number(key) % POISON_EVERY == POISON_EVERY - 1


def _number(key: str) -> int:
    return int(key.rpartition(":")[2])
