"""What was measured in a run: the figures of each case, peer and round, and what failed."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.measuring.children import Figures
from bench.results.figures import middle, ratio

# The name under which the bare disk's figures are kept.
DISK = "disk"


@dataclass
class Scores:
    """All figures of one run, by case key and peer name, a dict of figures for each round."""

    _rounds: dict[tuple[str, str], list[Figures]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, case_key: str, peer: str, figures: Figures) -> None:
        self._rounds.setdefault((case_key, peer), []).append(figures)

    def fail(self, case_key: str, peer: str, reason: str) -> None:
        """Note a failed round; it keeps its place, so that rounds stay comparable."""
        self.add(case_key, peer, {})
        self.failures[case_key, peer] = reason

    def took_part(self, case_key: str) -> list[str]:
        return [peer for key, peer in self._rounds if key == case_key]

    def rounds(self, case_key: str, peer: str) -> list[Figures]:
        return self._rounds.get((case_key, peer), [])

    def values(self, case_key: str, peer: str, figure: str) -> list[float | None]:
        """A figure of each round, None where it was not measured."""
        return [figures.get(figure) for figures in self.rounds(case_key, peer)]

    def median(self, case_key: str, peer: str, figure: str) -> float | None:
        return middle(self.values(case_key, peer, figure))

    def ratio(
        self, case_key: str, over: str, under: str, figure: str, under_figure: str = ""
    ) -> float | None:
        """The median over the rounds of one peer's figure divided by another's."""
        return ratio(
            self.values(case_key, over, figure),
            self.values(case_key, under, under_figure or figure),
        )
