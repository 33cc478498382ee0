"""Judging what a power cut left: a client of a later boot drains it, and compares."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cassq
from cassq.base.clock import SystemClock
from cassq.client.backends.embedded import open_directory
from tests.powercuts.platter import Platter
from tests.powercuts.record import Event, mark_of

_DAY_MS = 86_400_000
_TOLD_MAX = 5


class LaterClock(SystemClock):
    """The machine's clock a day, and one start of the machine, later: every lease, claim and delay
    of before is over."""

    def boot_id(self) -> str:
        return "a later boot"

    def boot_ms(self) -> int:
        return super().boot_ms() + _DAY_MS

    def wall_ms(self) -> int:
        return super().wall_ms() + _DAY_MS


@dataclass(slots=True)
class Promises:
    """What was said until a moment. Each payload is pushed once.

    begun: pushes that were begun. owed: acknowledged, and not begun to be committed. settled:
    whose commit returned. pages: what was in mapped files, by path.
    """

    begun: set[bytes] = field(default_factory=set)
    owed: set[bytes] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    pages: dict[str, list[bytes]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Take note, if it is a mark."""
        mark = mark_of(event)
        if mark is None:
            return
        payloads = {payload.encode() for payload in mark["payloads"]}
        match mark["what"]:
            case "pushing":
                self.begun |= payloads
            case "pushed":
                self.owed |= payloads
            case "committing":
                self.owed -= payloads
            case "committed":
                self.settled |= payloads
        for path, page in mark["pages"].items():
            found = bytes.fromhex(page)
            seen = self.pages.setdefault(path, [])
            if not seen or seen[-1] != found:
                seen.append(found)

    def broken_by(self, directory: Path) -> list[str]:
        """What of it does not hold for the queues in a directory, which are drained for that."""
        found, broken = drained(directory)
        for what, payloads in (
            ("acknowledged and lost", self.owed - found.keys()),
            ("committed and delivered again", self.settled & found.keys()),
            ("never pushed", found.keys() - self.begun),
            ("doubled", {payload for payload, times in found.items() if times > 1}),
        ):
            if payloads:
                some = sorted(int(payload.split()[0]) for payload in payloads)[:_TOLD_MAX]
                broken.append(f"{what}: {len(payloads)}, among them {some}")
        return broken


def drained(directory: Path) -> tuple[Counter[bytes], list[str]]:
    """Pop and commit everything; how often each payload came, and what the audits found."""
    clock = LaterClock()
    found: Counter[bytes] = Counter()
    findings: list[str] = []
    embedded = open_directory(directory, clock, "disk")
    with cassq.Client(f"file://{directory}", embedded, clock) as client:
        client.runtime.housekeeper.stop()
        findings += _audited(client)
        quiet = 0  # rounds: in one without a message some may have become dead letters
        while quiet < 2:
            before = found.total()
            for queue in client.queues():
                with queue.popper() as popper:
                    while messages := popper.pop(1000):
                        found.update(message.payload for message in messages)
                        popper.commit(messages)
            quiet = quiet + 1 if found.total() == before else 0
        findings += _audited(client)
    return found, findings


def _audited(client: cassq.Client) -> list[str]:
    return [
        f"audit of {queue.name}: {finding}"
        for queue in client.queues()
        for finding in queue.audit().findings
    ]


class Cut:
    """A power cut that broke a promise. at: how many events came before. seed: of what it left."""

    def __init__(self, at: int, seed: str, broken: Sequence[str]) -> None:
        self.at = at
        self.seed = seed
        self.broken = list(broken)

    def __str__(self) -> str:
        return f"cut after event {self.at} ({self.seed}): {'; '.join(self.broken)}"


def cuts(
    events: Sequence[Event], images: int, seed: str, directory: Path, *, stop_at: int = 3
) -> tuple[int, list[Cut]]:
    """Cut the power at `images` moments of a record; how many were looked into, and what went
    wrong, `stop_at` of them at most. directory: where the states are made, one after another."""
    rng = random.Random(seed)
    moments = Counter(rng.randrange(1, len(events) + 1) for _ in range(images))
    # The moments that matter most: an acknowledgement that just returned.
    ends = [n for n, event in enumerate(events, 1) if (mark_of(event) or {}).get("what") in _ENDS]
    moments.update(rng.choices(ends, k=images // 2))
    platter, promises = Platter(), Promises()
    wrong: list[Cut] = []
    looked = 0
    for at, event in enumerate(events, 1):
        platter.add(event)
        promises.hear(event)
        for number in range(moments[at]):
            name = f"{seed}/{at}/{number}"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            platter.leave(directory, random.Random(name), promises.pages)
            looked += 1
            try:
                broken = promises.broken_by(directory / "data")
            except cassq.CassqError as exc:
                broken = [f"{type(exc).__name__}: {exc}"]
            if broken:
                wrong.append(Cut(at, name, broken))
                if len(wrong) == stop_at:
                    return looked, wrong
    return looked, wrong


_ENDS = ("pushed", "committed", "reaped")


def told_of(cut: Cut, events: Sequence[Event]) -> str:
    """A cut with what was done last before it, for people."""
    last = [
        json.dumps([e.kind, e.path, e.other, e.offset, len(e.data)])
        for e in events[max(0, cut.at - 12) : cut.at]
    ]
    return "\n  ".join([str(cut), *last])
