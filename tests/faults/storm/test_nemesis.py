"""The nemesis goes on whatever comes of a step, and tells of it at once and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.faults.storm.crew import Crew
from tests.faults.storm.deeds import Heal, LeftOutError, Note, healing
from tests.faults.storm.ground import Ground
from tests.faults.storm.nemesis import Nemesis
from tests.faults.storm.plan import Plan, Span, Step


class Meadow(Ground):
    """Where steps do what they are called."""

    description = "a meadow"
    troubles: Mapping[str, Span] = {}

    def prepare(self) -> None:
        """Nothing is needed."""

    def mend(self, note: Note) -> None:
        note("the meadow is mended")

    def hurt(self, step: Step, note: Note) -> Heal:
        if step.what == "cannot be":
            raise LeftOutError("the grass is too high")
        if step.what == "fail":
            raise ValueError("a mole")
        note(step.what)
        return healing(note, f"healed {step.what}", lambda: None)


def test_a_step_that_fails_or_is_left_out_keeps_no_other_from_being_made() -> None:
    ground, lines = Meadow("nowhere:"), list[str]()
    names = ("mow", "cannot be", "fail", "mow again")
    steps = tuple(Step(0.0, name, 1, 0.0) for name in names)
    nemesis = Nemesis(Plan(1, 0.0, steps, (), whole=True), ground, lines.append)
    nemesis.run(Crew("nowhere:", Path(), 1))
    deeds = [what for _, what in nemesis.done]
    assert deeds == [
        "mow",
        "healed mow",
        "left out: cannot be: the grass is too high",
        "FAILED: fail",
        "mow again",
        "healed mow again",
        "the meadow is mended",
        "all is mended",
    ]
    assert [line.split(maxsplit=1)[1] for line in lines] == deeds
    assert nemesis.made == {"mow": 1, "mow again": 1}
    (failure,) = nemesis.failures
    assert "ValueError: a mole" in failure
    (found,) = ground.not_possible
    assert "cannot be" in found
    assert "the grass is too high" in found
