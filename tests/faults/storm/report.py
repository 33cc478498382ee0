"""The report of a storm: figures, what the nemesis did, and the verdict; as JSON and as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.faults.storm.checker import Verdict
from tests.faults.storm.history import History, Limit, Seen
from tests.faults.storm.journal import order_key_of
from tests.faults.storm.limits import in_hand, in_windows


@dataclass(slots=True)
class Report:
    """All that is told of a run.

    made: how often each kind of trouble was caused. troubles: what clients were told, how often.
    not_possible: what this machine did not allow. failures: clients that ended by an error nobody
    expects, and servers that did not do as told.
    """

    seed: int
    minutes: float
    servers: str
    nemesis: list[tuple[float, str]]
    made: dict[str, int]
    figures: dict[str, dict[str, Any]]
    troubles: dict[str, int]
    findings: dict[str, list[str]]
    counts: dict[str, int]
    failures: list[str] = field(default_factory=list)
    not_possible: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.failures and not any(self.counts.values())

    def as_text(self) -> str:
        lines = [
            f"storm, seed {self.seed}, {self.minutes:g} minutes: {'GOOD' if self.good else 'BAD'}",
            f"  {self.servers}",
            "",
            *_table(self.figures),
            "",
            "properties (offences)",
            *(f"  {'ok ' if not n else 'BAD'} {name} ({n})" for name, n in self.counts.items()),
        ]
        for name, found in self.findings.items():
            lines += [f"  {name}: {each}" for each in found]
        lines += [f"  FAILURE {each}" for each in self.failures]
        lines += ["", "what clients were told while servers were in trouble"]
        lines += [f"  {count:6} {what}" for what, count in sorted(self.troubles.items())]
        lines += ["", "what was done to servers and clients (when: see below)"]
        lines += [f"  {count:6} {what}" for what, count in sorted(self.made.items())]
        lines += ["", "left out on this machine"]
        lines += [f"  {each}" for each in self.not_possible or ["nothing"]]
        lines += ["", "notes", *(f"  {each}" for each in self.notes)]
        lines += ["", f"the nemesis ({len(self.nemesis)} deeds; seconds since the start)"]
        lines += [f"  {at:7.1f} {what}" for at, what in self.nemesis]
        return "\n".join(lines) + "\n"

    def write(self, directory: Path) -> None:
        """As report.json and report.txt."""
        directory.mkdir(parents=True, exist_ok=True)
        document = {"good": self.good, **asdict(self)}
        (directory / "report.json").write_text(json.dumps(document, indent=1) + "\n")
        (directory / "report.txt").write_text(self.as_text())


def _table(figures: dict[str, dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    width = max([len(name) for name in names], default=0)
    lines = ["  " + " " * width + "".join(f"{key:>14}" for key in figures)]
    for name in names:
        cells = "".join(f"{each.get(name, '')!s:>14}" for each in figures.values())
        lines.append(f"  {name:{width}}{cells}")
    return lines


def figures_of(history: History, verdict: Verdict, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Of each queue, and each of its groups. Stalls are looked for between start and end."""
    figures: dict[str, dict[str, Any]] = {}
    for queue in sorted({seen.queue for seen in history.seen.values()}):
        fates = Counter(sent.fate for sent in history.sent.values() if sent.queue == queue)
        pushes = [push for push in history.pushes if push[0] == queue]
        seconds = sorted(took for _, took, _, _ in pushes)
        figures[queue] = {
            "tried": sum(fates.values()),
            "acknowledged": fates["acknowledged"],
            "unknown": fates["unknown"],
            "refused": fates["refused"],
            "pushes": len(pushes),
            "push p50 ms": _ms(at_share(seconds, 0.5)),
            "push p99 ms": _ms(at_share(seconds, 0.99)),
            "push max ms": _ms(at_share(seconds, 1.0)),
            "longest stall s": longest_gap([at for *_, at, _ in pushes], start_ns, end_ns),
        }
    for seen in history.seen.values():
        items = [item for delivery in seen.deliveries for item in delivery.items]
        counted = Counter(item[0] for item in items)
        results = Counter((s.how, s.result) for s in seen.settlings)
        commits = {
            k for s in seen.settlings if (s.how, s.result) == ("commit", "ok") for k in s.keys
        }
        figures[seen.name] = {
            "delivered": len(items),
            "messages": len(counted),
            "redelivered": len(items) - len(counted),
            "committed": len(commits),
            "dead": len(seen.dead),
            "duplicates": verdict.duplicates.get(seen.name, 0),
            "keys taken over": takeovers(seen) if seen.group in history.keyed else "",
            **_uses(seen, history.limits.get((seen.queue, seen.group))),
            "commits lost": results["commit", "lost"],
            "commits unknown": results["commit", "unknown"],
            "longest stall s": _pause(
                [delivery.returned_ns for delivery in seen.deliveries], start_ns, end_ns
            ),
        }
    return figures


def _uses(seen: Seen, limit: Limit | None) -> dict[str, str]:
    """The most that was used at once of each limit of a group that has some."""
    if limit is None:
        return {}
    most = max((count for _, count in in_hand(seen, limit)), default=0)
    rate = max((count for _, count in in_windows(seen, limit)), default=0)
    return {
        "most in hand": f"{most} of {limit.concurrency}",
        "most in a second": f"{rate} of {limit.rate}",
    }


def takeovers(seen: Seen) -> int:
    """How often a message came to another process than the one before it of its key."""
    last: dict[str, str] = {}
    count = 0
    for delivery in sorted(seen.deliveries, key=lambda each: each.returned_ns):
        for key in {order_key_of(key) for key, *_ in delivery.items}:
            count += last.get(key, delivery.popper) != delivery.popper
            last[key] = delivery.popper
    return count


def at_share(ordered: Sequence[float], share: float) -> float:
    """The value that so great a share does not exceed; 0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-len(ordered) * share // 1).__int__() - 1)]


def longest_gap(times_ns: Sequence[int], start_ns: int, end_ns: int) -> float:
    """The longest time without any of these, in seconds."""
    inside = sorted(at for at in times_ns if start_ns <= at <= end_ns)
    edges = [start_ns, *inside, end_ns]
    return round(max(b - a for a, b in pairwise(edges)) / 1e9, 1)


def _pause(times_ns: Sequence[int], start_ns: int, end_ns: int) -> float | str:
    """`longest_gap`; "" where nothing was popped but when it was over, as nobody was to."""
    if not any(start_ns <= at <= end_ns for at in times_ns):
        return ""
    return longest_gap(times_ns, start_ns, end_ns)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
