"""A storm: clients send, receive, hide and delete at three gateways of one place, some of which are
killed all the time, while their wall clocks are set and connections are cut as answers come. Some
of the clients are programs that are killed as well. Everything is written down.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from tests.integration.gateway import storm_clients
from tests.integration.gateway.storm_clients import (
    HOLD_SECONDS,
    CutError,
    Said,
    StormClients,
    ask,
)
from tests.integration.gateway.storm_judge import StormJudge

ROOT = Path(__file__).resolve().parents[3]
GATEWAYS = 3
SENDERS, RECEIVERS = 6, 6
PROGRAMS = 2
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
LIFE_LINES = 150  # what a program says at most before it is killed
# What Python imports as it starts: the wall clock of each process is set every other second, to
# what it was, an hour ahead or an hour behind.
SET_CLOCKS = """
import os, time
_wall, _ns = time.time, time.time_ns
def _ahead():
    return (hash((os.getpid(), time.monotonic_ns() // 2_000_000_000)) % 3 - 1) * 3600
time.time = lambda: _wall() + _ahead()
time.time_ns = lambda: _ns() + _ahead() * 1_000_000_000
"""


class Gateway:
    """A process of `cassq gateway` with one child, which is replaced when it is killed."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process: asyncio.subprocess.Process = process
        self.port: int = port

    @classmethod
    async def started(cls, url: str, directory: Path | None = None) -> Gateway:
        """One that serves. directory: where its processes find `SET_CLOCKS`; None: they do not."""
        paths = [os.environ.get("PYTHONPATH", "")]
        if directory is not None:
            (directory / "sitecustomize.py").write_text(SET_CLOCKS)
            paths.insert(0, str(directory))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cassq", "--url", url, "gateway", "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        return cls(process, int(line.rpartition(":")[2]))

    async def kill_child(self) -> bool:
        """Kill what serves; False if it is being replaced."""
        try:
            _, facts = await ask(self.port, HEALTH)
        except CutError:
            return False
        with suppress(ProcessLookupError):
            os.kill(facts["pid"], signal.SIGKILL)
        return True

    async def answers(self) -> None:
        """Return once it serves: its next process may start only after a pause."""
        status = 0
        while status != 200:
            with suppress(CutError):
                status, _ = await ask(self.port, HEALTH)

    async def stop(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()


class Storm:
    """One storm. said: what all clients said. kills, program_kills: of gateways, and of clients."""

    def __init__(self, queue: str, seed: int) -> None:
        self.said: list[Said] = []
        self.kills: int = 0
        self.program_kills: int = 0
        self._queue = queue
        self._chance = random.Random(seed)
        self._over = False

    async def run(self, url: str, directory: Path, seconds: float) -> None:
        """Storm for so long, and take what is left."""
        async with AsyncExitStack() as stack:
            gateways: list[Gateway] = []
            for _ in range(GATEWAYS):
                gateways.append(await Gateway.started(url, directory))
                stack.push_async_callback(gateways[-1].stop)
            ports = [gateway.port for gateway in gateways]
            clients = StormClients(self._queue, ports, self._chance, self.said.append)
            async with asyncio.TaskGroup() as group:
                for number in range(SENDERS):
                    group.create_task(clients.repeated(clients.send, str(number)))
                for _ in range(RECEIVERS):
                    group.create_task(clients.repeated(clients.receive))
                for number in range(PROGRAMS):
                    group.create_task(self._run_programs(f"p{number}", ports))
                group.create_task(self._kill(gateways))
                await asyncio.sleep(seconds)
                self._over = clients.over = True
            for gateway in gateways:
                await gateway.answers()
            # By one of them, as a lane that changes hands for each ten messages takes its time.
            await _drain(StormClients(self._queue, ports[:1], self._chance, self.said.append))

    async def _kill(self, gateways: list[Gateway]) -> None:
        while not self._over:
            # Rarely enough that most are replaced at once, not after the pause of a crash loop.
            await asyncio.sleep(self._chance.uniform(1.0, 5.0))
            self.kills += await self._chance.choice(gateways).kill_child()

    async def _run_programs(self, name: str, ports: list[int]) -> None:
        """Run programs, one after the other, each of which is killed after it has said something,
        whatever it is doing."""
        while not self._over:
            words = (self._queue, f"{name}.{self.program_kills}", *map(str, ports))
            paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
            program = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", storm_clients.__name__, *words),
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            )
            assert program.stdout is not None
            try:
                for _ in range(self._chance.randint(1, LIFE_LINES)):
                    self._hear(await program.stdout.readline())
                    if self._over:
                        break
            finally:
                with suppress(ProcessLookupError):
                    program.kill()
            for line in (await program.stdout.read()).splitlines(keepends=True):
                self._hear(line)
            assert await program.wait() == -signal.SIGKILL
            self.program_kills += 1

    def _hear(self, line: bytes) -> None:
        if line.endswith(b"\n"):
            self.said.append(Said(*json.loads(line)))

    @property
    def judge(self) -> StormJudge:
        """What is to be said of it, now that it is over."""
        return StormJudge(self.said, fifo=self._queue.endswith(".fifo"))


async def _drain(clients: StormClients) -> None:
    """Receive until nothing came for longer than anybody may hold a message."""
    loop = asyncio.get_running_loop()
    last = loop.time()
    while loop.time() - last < HOLD_SECONDS + 5:
        with suppress(CutError):
            if await clients.receive(may_cut=False):
                last = loop.time()


def stormed(url: str, queue: str, directory: Path, seconds: float, seed: int) -> Storm:
    """A storm that is over. The queue must be there. directory: an empty one."""
    storm = Storm(queue, seed)
    asyncio.run(storm.run(url, directory, seconds))
    return storm
