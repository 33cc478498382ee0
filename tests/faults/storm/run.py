"""One storm from beginning to end: crew, nemesis, the drained end, the check, the report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cassq
from cassq.model.queues import rate_of
from cassq.settings import QueueSettings
from tests.faults.storm.checker import check
from tests.faults.storm.crew import PARTS, Crew, Member, Role
from tests.faults.storm.ground import (
    FAIR,
    GROUP_SETTINGS,
    KEYED,
    KEYED_GROUPS,
    LANES,
    LIMITS,
    QUEUE_SETTINGS,
    SCHEDULES,
    STRICT,
    Ground,
    patiently,
)
from tests.faults.storm.history import Limit, history_of
from tests.faults.storm.journal import Journal, now_ns, read_all
from tests.faults.storm.nemesis import Nemesis
from tests.faults.storm.parts import end_schedule
from tests.faults.storm.plan import Plan
from tests.faults.storm.report import Report, figures_of

# Small, so that pipes roll, leases lapse and claims run out often.
POLICY: QueueSettings = {
    "lease": 4.0,
    "claim_timeout": 6.0,
    "max_deliveries": 4,
    "max_pop_width": 4,
    "max_pushes_per_pipe": 200,
    "max_push_time_of_pipe": 30.0,
    "idle_seal": 10.0,
}
# For how long nothing may come while something is left; and in all, where processors are few and
# busy with other things, too.
DRAIN_SECONDS, DRAIN_SECONDS_MAX = 300.0, 3600.0
LIFE_SECONDS, LOOK_SECONDS = 180.0, 2.0
# The lanes of a group are shared by several processes, which take them over from one another; and
# so are the limits of a group.
POPPERS = {(LANES, KEYED): 3, (LANES, FAIR): 2, (LANES, "default"): 2}
# A push there is one of a frame for each lane and priority, so there are fewer.
PAUSES = {LANES: 3.0}

# Queue, seconds it took, when it was acknowledged, messages.
Pushes = Sequence[tuple[str, float, int, int]]

NOT_JUMPED = (
    "clock jumps: time.time and time.time_ns of the client's process were set, which is all that"
    " cassq and its drivers ask for the wall clock; the clocks of the servers, and those that run"
    " evenly, were not"
)


@dataclass(frozen=True, slots=True)
class Size:
    """How large a storm is. pushers: of each queue. poppers: of the first group of each queue; the
    others have one, or as many as `POPPERS` says. pause: seconds between two pushes of a pusher,
    on average; longer where `PAUSES` says so. calm: seconds that clients go on when all is mended.
    """

    pushers: int = 2
    poppers: int = 2
    pause: float = 0.2
    calm: float = 20.0


class Storm:
    """A storm over servers that run. directory: where journals and the report go. tell: is told
    in lines how it goes."""

    def __init__(
        self,
        ground: Ground,
        directory: Path,
        size: Size,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._ground = ground
        self._tell = tell
        self._size = size
        self._groups = dict(ground.groups)
        self._directory = directory
        self._journals = directory / "journals"
        self._journals.mkdir(parents=True, exist_ok=True)

    def rage(self, plan: Plan) -> Report:
        """Carry the plan out; the report. Cost: the plan's time, and a minute or so."""
        self._prepare()
        crew = Crew(self._ground.url, self._journals, plan.seed)
        crew.start(self._roles())
        nemesis = Nemesis(plan, self._ground, self._tell)
        start_ns = now_ns()
        try:
            nemesis.run(crew)
            mended_ns = now_ns()
            self._await_life(mended_ns)
            calm_ns = now_ns()
        finally:
            crew.end()
        self._end_schedules()
        failures = [*nemesis.failures, *crew.failures, *self._ground.proofs(nemesis.note)]
        failures += self._drain(plan.seed)
        failures += self._ground.last_proofs(nemesis.note)
        stories = read_all(self._journals)
        history = history_of(
            stories, STRICT, self._groups, KEYED_GROUPS, SCHEDULES, limits(self._ground.clock_error)
        )
        verdict = check(history)
        return Report(
            seed=plan.seed,
            minutes=round(plan.seconds / 60, 2),
            servers=f"{self._ground.description}; {len(stories)} journals",
            nemesis=sorted(nemesis.done),
            made=dict(nemesis.made),
            figures=figures_of(history, verdict, start_ns, calm_ns),
            troubles=dict(history.troubles),
            findings=verdict.findings,
            counts=verdict.counts,
            failures=failures + still(self._groups, history.pushes, mended_ns),
            not_possible=self._ground.not_possible,
            notes=[
                NOT_JUMPED,
                f"{history.jumps} jumps of clients' clocks",
                *recoveries(self._groups, history.pushes, mended_ns),
                *(f"{len(each.ticks)} ticks of {each.schedule}" for each in history.ticking),
            ],
        )

    def _await_life(self, since_ns: int) -> None:
        """Let clients go on in calm, and until each queue was pushed to again, which may take a
        while where the machine is busy."""
        threading.Event().wait(self._size.calm)
        while now_ns() - since_ns < LIFE_SECONDS * 1e9:
            history = history_of(read_all(self._journals), STRICT, self._groups)
            if not still(self._groups, history.pushes, since_ns):
                return
            threading.Event().wait(LOOK_SECONDS)

    def _prepare(self) -> None:
        self._ground.prepare()
        with cassq.connect(self._ground.url) as client:
            for name, groups in self._groups.items():
                settings = POLICY | QUEUE_SETTINGS.get(name, {})
                queue = patiently(partial(client.create_queue, name, **settings))
                for group in groups:
                    of_group = GROUP_SETTINGS.get(group, {}) | LIMITS.get((name, group), {})
                    if group != "default":
                        patiently(partial(queue.create_group, group, **of_group))
                    elif of_group:
                        patiently(partial(queue.update_group, group, **of_group))
            for name, (of_queue, every) in SCHEDULES.items():
                create = partial(client.create_schedule, name, of_queue, missed="all")
                patiently(partial(create, every=every))

    def _end_schedules(self) -> None:
        """Before the proofs, as their clients would push ticks, too."""
        journal = Journal(self._journals / "schedules.jsonl", "drainer")
        with patiently(lambda: cassq.connect(self._ground.url)) as client:
            for name in SCHEDULES:
                patiently(partial(end_schedule, journal, client, name))

    def _roles(self) -> list[Role]:
        size, roles = self._size, [Role("reaper", "reap", (2.0,))]
        for queue, groups in self._groups.items():
            kept = queue in self._ground.kept
            for number in range(1, 1 + (1 if kept else size.pushers)):
                name = f"push-{queue}-{number}"
                space = self._ground.spaces.get(name, "")
                pause = size.pause * PAUSES.get(queue, 1.0)
                roles.append(Role(name, "push", (queue, pause), seeded=True, space=space))
            for at, group in enumerate(() if kept else groups):
                count = POPPERS.get((queue, group), size.poppers if at == 0 else 1)
                for number in range(1, 1 + count):
                    name = f"pop-{queue}-{group}-{number}"
                    rest = (queue, group, POLICY["claim_timeout"])
                    roles.append(Role(name, "pop", rest, seeded=True))
        return roles

    def _drain(self, seed: int) -> list[str]:
        """Drain in a process of its own; what went wrong."""
        crew = Crew(self._ground.url, self._journals, seed)
        path = str(self._journals / "drain.jsonl")
        part, url = f"{PARTS}:drain", self._ground.url
        drainer = Member(part, url, path, self._groups, DRAIN_SECONDS)
        crew.actors.append(drainer)
        ended = drainer.ended_within(DRAIN_SECONDS_MAX)
        failures = list(drainer.failures)
        drainer.end()
        return failures if ended else [*failures, "the drainer did not end"]


def limits(clock_error: float) -> dict[tuple[str, str], Limit]:
    """The limits of groups, less what clients may be wrong about the time: by so many seconds, the
    one in one direction and the other in the other."""
    error_ms = round(2000 * clock_error)
    claim_ms = round(POLICY["claim_timeout"] * 1000)
    found: dict[tuple[str, str], Limit] = {}
    for place, settings in LIMITS.items():
        concurrency, rate = settings["concurrency"], settings["rate"]
        assert concurrency is not None
        assert rate is not None
        count, unit_ms = rate_of(rate)
        window_ns, claim_ns = (1_000_000 * (ms - error_ms) for ms in (unit_ms, claim_ms))
        found[place] = Limit(concurrency, count, window_ns, claim_ns)
    return found


def recoveries(queues: Collection[str], pushes: Pushes, mended_ns: int) -> list[str]:
    """How long each queue waited for its next push when everything was mended."""
    firsts = {
        name: min((at for queue, _, at, _ in pushes if queue == name and at > mended_ns), default=0)
        for name in queues
    }
    return [
        f"first push to {name} {(at - mended_ns) / 1e9:.1f} s after all was mended"
        for name, at in firsts.items()
        if at
    ]


def still(queues: Collection[str], pushes: Pushes, mended_ns: int) -> list[str]:
    """Queues to which nothing was pushed after everything was mended."""
    silent = set(queues) - {queue for queue, _, at_ns, _ in pushes if at_ns > mended_ns}
    return [f"nothing was pushed to {queue} after all was mended" for queue in sorted(silent)]
