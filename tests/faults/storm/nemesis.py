"""The nemesis: carries a plan out on real servers and clients, and notes what it did when."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from cassq.base.clock import Stopwatch
from tests.faults.storm.crew import Crew
from tests.faults.storm.deeds import Heal, LeftOutError, healing
from tests.faults.storm.ground import Ground
from tests.faults.storm.plan import Plan, Step
from tests.servers.parts.errors import ServerFailedError


class Nemesis:
    """Two threads, one for the servers and one for the clients; `run` returns when the plan is
    over and everything is mended.

    tell: is told of each deed at once, in a line. done: (seconds since the start, what).
    made: how many steps of each kind. failures: what the machine did not do as told.
    """

    def __init__(self, plan: Plan, ground: Ground, tell: Callable[[str], object]) -> None:
        self._plan = plan
        self._ground = ground
        self._tell = tell
        self._watch = Stopwatch()
        self.done: list[tuple[float, str]] = []
        self.made: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, crew: Crew) -> None:
        self._watch = Stopwatch()
        tracks = [
            threading.Thread(
                target=self._track,
                args=(self._plan.servers, lambda step: self._ground.hurt(step, self.note)),
            ),
            threading.Thread(
                target=self._track,
                args=(self._plan.clients, lambda step: self._hurt_client(crew, step)),
            ),
        ]
        for track in tracks:
            track.start()
        for track in tracks:
            track.join()
        self._wait_until(self._plan.seconds)
        try:
            self._ground.mend(self.note)
        except ServerFailedError:
            self.failures.append(f"not mended: {traceback.format_exc()}")
        self.note("all is mended")

    def seconds(self) -> float:
        """Since the start."""
        return self._watch.seconds()

    def note(self, what: str) -> None:
        """Write a deed down."""
        at = round(self.seconds(), 1)
        self.done.append((at, what))
        self._tell(f"{at:7.1f} {what}")

    def _wait_until(self, seconds: float) -> None:
        threading.Event().wait(max(0.0, seconds - self.seconds()))

    def _track(self, steps: tuple[Step, ...], hurt: Callable[[Step], Heal]) -> None:
        """One step after the other, with the plan's pauses between them: servers that are slow to
        start delay what follows. What would begin after the plan's end is left out."""
        lag = 0.0
        for done, step in enumerate(steps):
            self._wait_until(step.at + lag)
            began = self.seconds()
            if began > self._plan.seconds and not self._plan.whole:
                self.note(f"{len(steps) - done} steps are left out: it is too late")
                return
            try:
                with ExitStack() as healing:
                    healing.callback(hurt(step))
                    self.made[step.what] += 1
                    self._wait_until(began + step.seconds)
            except LeftOutError as exc:
                self._ground.not_possible.append(f"{step.what}, after {began:.0f} s: {exc}")
                self.note(f"left out: {step.what}: {exc}")
            except Exception:  # whatever it is, it is told, and what follows is tried
                self.failures.append(f"{step}: {traceback.format_exc()}")
                self.note(f"FAILED: {step.what}")
            lag = max(lag, self.seconds() - step.until)

    # --- clients --------------------------------------------------------------------------------

    def _hurt_client(self, crew: Crew, step: Step) -> Heal:
        name = crew.name(step.target)
        match step.what:
            case "kill client":
                self.note(f"kill -9 {name}")
                crew.kill(step.target)
                return healing(self.note, f"start {name} anew", crew.replace, step.target)
            case "stop client":
                self.note(f"SIGSTOP {name}")
                crew.stop(step.target)
                return healing(self.note, f"SIGCONT {name}", crew.go_on, step.target)
            case _:
                self.note(f"clock of {name} jumps by {step.amount:+.0f} s")
                crew.say(step.target, ("jump", step.amount))
                return healing(
                    self.note, f"clock of {name} is right", crew.say, step.target, ("jump", 0.0)
                )
