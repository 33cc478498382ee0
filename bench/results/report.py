"""The results as Markdown: the targets first, then a table for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers.roster import MODULES, peer_class
from bench.plan import Plan
from bench.results.figures import middle, ratio, spread
from bench.results.scores import DISK, Scores
from bench.results.targets import Judgement
from bench.scenarios.scenario import Case, Column, Scenario, Unit

ABSENT = "–"
DISK_TITLE = "the bare disk"


@dataclass(frozen=True)
class Report:
    """Everything a page of results is made of."""

    plan: Plan
    scenarios: Sequence[Scenario]
    peers: Sequence[str]
    missing: Mapping[str, str]
    scores: Scores
    judgements: Sequence[Judgement]
    facts: Sequence[str]

    def markdown(self) -> str:
        parts = [
            "# Results\n",
            "\n".join(f"- {fact}" for fact in [*self.facts, *self._amounts()]),
            "## Targets\n",
            targets_table(self.judgements),
        ]
        for scenario in self.scenarios:
            parts.append(f"## {scenario.title}\n")
            for case in scenario.cases(self.plan):
                parts.append(f"### {case.title[:1].upper()}{case.title[1:]}\n")
                parts.append(self._table(scenario, case))
        parts.append("## The peers\n")
        parts.append(self._peers_table())
        return "\n".join(f"{part.rstrip()}\n" for part in parts)

    def _amounts(self) -> list[str]:
        rounds = self.plan.rounds
        facts = [
            f"Rounds: {rounds}, the peers taking turns within each",
            "Figures are medians, in brackets the smallest and the largest",
            "“cassq is” is the median of each round's own ratio",
        ]
        append, overwrite = (
            self.scores.median("single", DISK, figure) for figure in ("one", "overwrite")
        )
        if append is not None:
            facts.append(
                f"Disk: {shown(append, 'rate')} synced appends a second, "
                f"{shown(overwrite, 'rate')} synced overwrites of what was written before"
            )
        return facts

    def _table(self, scenario: Scenario, case: Case) -> str:
        if scenario.parts:
            return self._table_of_parts(scenario, case)
        columns = scenario.columns(self.plan)
        present = self.scores.took_part(case.key)
        columns = [
            column
            for column in columns
            if any(
                self.scores.median(case.key, peer, column.figure) is not None for peer in present
            )
        ]
        compared = scenario.compared and scenario.own in present and len(present) > 1
        heads = ["", *(column.title for column in columns), *(["cassq is"] if compared else [])]
        rows = []
        for name in [DISK, *MODULES]:
            if name in present:
                rows.append(self._row(scenario, case, name, columns, compared))
            elif name in self.missing and would_take_part(scenario, case, name):
                rows.append([name, f"skipped: {self.missing[name]}"])
        return table(heads, rows) if rows else "Nobody took part."

    def _table_of_parts(self, scenario: Scenario, case: Case) -> str:
        columns = scenario.columns(self.plan)
        rows = []
        for prefix, title in scenario.parts.items():
            row = [title]
            for column in columns:
                values = self.scores.values(case.key, scenario.own, f"{prefix}_{column.figure}")
                row.append(cell(values, middle(values), column.unit, ranged=True))
            rows.append(row)
        failure = self.scores.failures.get((case.key, scenario.own))
        text = table(["", *(column.title for column in columns)], rows)
        return text if failure is None else f"{text}\n\nA round failed: {failure}"

    def _row(
        self, scenario: Scenario, case: Case, name: str, columns: Sequence[Column], compared: bool
    ) -> list[str]:
        title = DISK_TITLE if name == DISK else peer_class(name).title
        failure = self.scores.failures.get((case.key, name))
        if failure is not None:
            title = f"{title} (failed: {failure})"
        row = [title]
        for column in columns:
            values = self.scores.values(case.key, name, column.figure)
            ranged = column.figure == scenario.headline
            row.append(
                cell(values, self.scores.median(case.key, name, column.figure), column.unit, ranged)
            )
        return [*row, self._comparison(scenario, case, name)] if compared else row

    def _comparison(self, scenario: Scenario, case: Case, name: str) -> str:
        if name in (scenario.own, DISK):
            return ""
        own = self.scores.values(case.key, scenario.own, scenario.headline)
        other = self.scores.values(case.key, name, scenario.headline)
        times = ratio(own, other) if scenario.higher_is_better else ratio(other, own)
        return ABSENT if times is None else f"{times:.2f}× as good"

    def _peers_table(self) -> str:
        rows = []
        for name in self.peers:
            if name in self.missing:
                rows.append([name, ABSENT, f"skipped: {self.missing[name]}"])
            else:
                traits = peer_class(name).traits
                rows.append([peer_class(name).title, traits.durable, traits.note])
        return table(["", "acknowledged means on", "how it was used"], rows)


def would_take_part(scenario: Scenario, case: Case, name: str) -> bool:
    """Whether a missing peer leaves a gap in this table."""
    try:
        return scenario.takes_part(case, peer_class(name))
    except ImportError:
        # Its library is what is missing, so nothing is known of it but its name.
        return not case.one_core and not scenario.alone and not scenario.peers


def targets_table(judgements: Sequence[Judgement]) -> str:
    rows = []
    for judgement in judgements:
        target = judgement.target
        digits = ",.0f" if target.unit == "/s" else ",.2f"
        measured = ABSENT if judgement.value is None else f"{judgement.value:{digits}}{target.unit}"
        wanted = f"{target.comparison} {target.limit:,.8g}{target.unit}"
        rows.append([target.title, wanted, measured, judgement.verdict.value])
    return table(["target", "wanted", "measured", ""], rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled up."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    full = [[*line, *[""] * (len(heads) - len(line))] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in full)


def cell(values: Sequence[float | None], middle: float | None, unit: Unit, ranged: bool) -> str:
    if middle is None:
        return ABSENT
    ends = spread(values)
    if not ranged or ends is None or ends[0] == ends[1]:
        return shown(middle, unit)
    return f"{shown(middle, unit)} ({shown(ends[0], unit)}–{shown(ends[1], unit)})"


def shown(value: float | None, unit: Unit) -> str:
    """A figure as a reader wants it."""
    if value is None:
        return ABSENT
    match unit:
        case "rate":
            return f"{float(f'{value:.4g}'):,.0f}"
        case "s" | "ms" | "ratio":
            return f"{value:.2f}"
        case "MB":
            return f"{value / 1e6:,.1f}" if value < 1e7 else f"{value / 1e6:,.0f}"
        case "share":
            return f"{value * 100:.1f}"
