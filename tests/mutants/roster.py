"""All known bugs: those in `plants/`, a file for each part of the source, and the simulation's.

A plant is written so, the old and the new text between lines of marks, as they stand in the source:

    === its-name: module/within/cassq.py
    What the bug is, in a line or two.
    tests: unit/message/frames contract/extents/files::a_word_of_a_test
    <<<
    the old text
    ---
    the new text
    >>>
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import Mutant, Simulated
from tests.simulation.plants.plants import PLANTS
from tests.simulation.plants.schedule_plants import SCHEDULE_PLANTS
from tests.simulation.plants.sidecar_plants import SIDECAR_PLANTS
from tests.simulation.plants.spill_plants import SPILL_PLANTS
from tests.simulation.tasks.step_plants import STEP_PLANTS

_PLANTS = Path(__file__).with_name("plants")
_PLANT = re.compile(
    r"=== (?P<name>[a-z0-9-]+): (?P<file>\S+\.py)\n(?P<what>(?:(?!tests:).+\n)+)"
    r"tests: (?P<tests>.+)\n<<<\n(?P<old>(?s:.*?))---\n(?P<new>(?s:.*?))>>>\n\s*"
)


def plants_of(text: str) -> Iterator[Mutant]:
    """The plants of a file. Raises ValueError where something else stands."""
    at = 0
    while at < len(text):
        found = _PLANT.match(text, at)
        if found is None:
            raise ValueError(f"no plant begins at: {text[at : at + 60]!r}")
        at = found.end()
        # Without the last line end: a patch may end within a line.
        old, new = (found[part].removesuffix("\n") for part in ("old", "new"))
        yield Mutant(
            found["name"], found["file"], " ".join(found["what"].split()), old, new, found["tests"]
        )


def _planted() -> Iterator[Mutant]:
    for path in sorted(_PLANTS.glob("*.txt")):
        yield from plants_of(path.read_text())


MUTANTS = list(_planted())
SIMULATED = [
    *(Simulated(p.name, p.what, "tests/simulation/test_simulation.py") for p in PLANTS),
    *(Simulated(p.name, p.what, "tests/simulation/test_sidecars.py") for p in SIDECAR_PLANTS),
    *(Simulated(p.name, p.what, "tests/simulation/test_spilling.py") for p in SPILL_PLANTS),
    *(Simulated(p.name, p.what, "tests/simulation/test_schedules.py") for p in SCHEDULE_PLANTS),
    *(Simulated(p.name, p.what, "tests/simulation/test_steps.py") for p in STEP_PLANTS),
]
