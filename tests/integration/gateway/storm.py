"""A storm: clients send, receive, hide and delete at three gateways of one place, some of which are
killed all the time, while their wall clocks are set and connections are cut as answers come.
Everything is written down."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from tests.integration.gateway.listened import Client, call

GATEWAYS = 3
SENDERS, RECEIVERS = 6, 6
BATCH = 10
# For how long a message is hidden that is to be deleted, and how soon that must be done.
HOLD_SECONDS, DELETE_SECONDS = 20, 10
WAIT_SECONDS = 1
CUT = 0.05  # how many requests end with a cut
ANSWER_SECONDS = 90.0
URL = "http://localhost/000000000000/"
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


class CutError(Exception):
    """The client itself went away, or the gateway did."""


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
            _, facts = await ask(self.port, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        except CutError:
            return False
        with suppress(ProcessLookupError):
            os.kill(facts["pid"], signal.SIGKILL)
        return True

    async def stop(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()


async def ask(port: int, request: bytes, *, cut: float | None = None) -> tuple[int, dict[str, Any]]:
    """The status and the body of an answer. cut: go away after so many seconds, answered or not.
    Raises CutError."""
    client: Client | None = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            client.send(request)
            if cut is not None:
                await asyncio.sleep(cut)
                client.writer.transport.abort()
                raise CutError
            response = await client.read()
    except (OSError, EOFError) as exc:
        raise CutError from exc
    finally:
        if client is not None:
            client.close()
    body = response.body
    return response.status, json.loads(body) if body[:1] == b"{" else {}


class Storm:
    """One storm. asked, sent: bodies that were to be sent, and those whose sending was answered.
    ended: those whose deletion was asked for. deleted: when a deletion was answered, by the loop's
    clock. wrong: what must not be. fifo: whether the queue is one, each sender with a group."""

    def __init__(self, queue: str, seed: int) -> None:
        self._url = URL + queue
        self.fifo: bool = queue.endswith(".fifo")
        self.chance: random.Random = random.Random(seed)
        self.gateways: list[Gateway] = []
        self.asked: set[str] = set()
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.ended: set[str] = set()
        self._in_order: dict[str, deque[int]] = defaultdict(deque)  # sent, not ended, by group
        self.deleted: dict[str, float] = {}
        self.wrong: list[str] = []
        self.kills = self.cuts = self.refused = 0
        self._held: dict[str, float] = {}  # until when nobody else may get a body
        self._over = False

    async def run(self, url: str, directory: Path, seconds: float) -> None:
        """Storm for so long, and take what is left."""
        async with AsyncExitStack() as stack:
            for _ in range(GATEWAYS):
                gateway = await Gateway.started(url, directory)
                stack.push_async_callback(gateway.stop)
                self.gateways.append(gateway)
            async with asyncio.TaskGroup() as group:
                for number in range(SENDERS):
                    group.create_task(self._repeated(self._send, number))
                for _ in range(RECEIVERS):
                    group.create_task(self._repeated(self._receive))
                group.create_task(self._kill())
                await asyncio.sleep(seconds)
                self._over = True
            await self._drain()

    async def _repeated(self, act: Any, *given: Any) -> None:
        while not self._over:
            with suppress(CutError):
                await act(*given)

    async def _kill(self) -> None:
        while not self._over:
            await asyncio.sleep(self.chance.uniform(0.3, 2.0))
            self.kills += await self.chance.choice(self.gateways).kill_child()

    async def _ask(
        self,
        action: str,
        *,
        may_cut: bool = True,
        sure_until: float = float("inf"),
        **parameters: Any,
    ) -> dict[str, Any]:
        """The members of an answer. sure_until: an answer that comes later may be a refusal. Raises
        CutError, also for one that is not 200."""
        port = self.chance.choice(self.gateways).port
        cut = self.chance.uniform(0, 0.05) if may_cut and self.chance.random() < CUT else None
        try:
            status, found = await ask(
                port, call(action, {"QueueUrl": self._url, **parameters}), cut=cut
            )
        except CutError:
            self.cuts += 1
            await asyncio.sleep(0.02)
            raise
        if status == 200:
            return found
        self.refused += 1
        if status != 503 and asyncio.get_running_loop().time() < sure_until:
            self.wrong.append(f"{action} {parameters}: {status} {found}")
        raise CutError

    # --- what clients do ------------------------------------------------------------------------

    async def _send(self, number: int) -> None:
        bodies = [f"{number}-{len(self.asked) + at}" for at in range(self.chance.randint(1, BATCH))]
        self.asked.update(bodies)
        entries = [{"MessageBody": body, **self._grouped(body)} for body in bodies]
        if len(bodies) == 1:
            await self._ask("SendMessage", **entries[0])
            self._note_sent(bodies)
        else:
            numbered = [{"Id": str(at), **entry} for at, entry in enumerate(entries)]
            found = await self._ask("SendMessageBatch", Entries=numbered)
            done = sorted(int(each["Id"]) for each in found.get("Successful", ()))
            self._note_sent([bodies[at] for at in done])
        await asyncio.sleep(0.01)

    def _grouped(self, body: str) -> dict[str, str]:
        """More parameters of a message: its group is its sender."""
        if not self.fifo:
            return {}
        return {"MessageGroupId": body.partition("-")[0], "MessageDeduplicationId": body}

    def _note_sent(self, bodies: Iterable[str]) -> None:
        self.sent.update(bodies)
        for body in bodies:
            group, _, number = body.partition("-")
            self._in_order[group].append(int(number))

    async def _receive(self, *, may_cut: bool = True) -> int:
        """Receive, and delete most of it; how many came."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await self._ask(
            "ReceiveMessage",
            may_cut=may_cut,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=WAIT_SECONDS,
            VisibilityTimeout=HOLD_SECONDS,
        )
        messages = found.get("Messages", [])
        now = loop.time()
        for message in messages:
            self._see(message["Body"], began, now)
        deleting = []
        for message in messages:
            if may_cut and self.chance.random() < 0.1:
                seconds = self.chance.choice((0, 0, 1))
                handle = message["ReceiptHandle"]
                self._held.pop(message["Body"], None)
                with suppress(CutError):
                    await self._hide(handle, seconds, began)
            else:
                deleting.append(message)
        for message in deleting:
            self._held.pop(message["Body"], None)
        if deleting:
            await self._delete(deleting, began)
        return len(messages)

    async def _hide(self, handle: str, seconds: int, began: float) -> None:
        await self._ask(
            "ChangeMessageVisibility",
            sure_until=began + DELETE_SECONDS,  # others may have it then
            ReceiptHandle=handle,
            VisibilityTimeout=seconds,
        )

    async def _delete(self, messages: list[dict[str, Any]], began: float) -> None:
        self.ended.update(message["Body"] for message in messages)
        entries = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
            for at, message in enumerate(messages)
        ]
        found = await self._ask("DeleteMessageBatch", Entries=entries)
        now = asyncio.get_running_loop().time()
        if now - began > DELETE_SECONDS:
            return  # others may have them by now, whose handles count
        for each in found.get("Successful", ()):
            self.deleted[messages[int(each["Id"])]["Body"]] = now

    def _see(self, body: str, began: float, now: float) -> None:
        self.received.add(body)
        if now < self._held.get(body, now):
            self.wrong.append(f"{body} came while another had it")
        self._held[body] = began + HOLD_SECONDS
        if body not in self.asked:
            self.wrong.append(f"{body} was invented")
        if self.deleted.get(body, began) < began:
            self.wrong.append(f"{body} came again after its deletion was answered")
        if self.fifo:
            self._check_order(body)

    def _check_order(self, body: str) -> None:
        """Of a group nothing comes while an earlier message, whose sending was answered, is neither
        deleted nor about to be."""
        group, _, number = body.partition("-")
        waiting = self._in_order[group]
        while waiting and f"{group}-{waiting[0]}" in self.ended:
            waiting.popleft()
        if waiting and waiting[0] < int(number):
            self.wrong.append(f"{body} came before {group}-{waiting[0]}")

    async def _drain(self) -> None:
        """Receive until nothing came for longer than anybody may hold a message."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while loop.time() - last < HOLD_SECONDS + 5:
            with suppress(CutError):
                if await self._receive(may_cut=False):
                    last = loop.time()

    @property
    def lost(self) -> set[str]:
        """What was sent, and never came to one who deleted it."""
        return self.sent - self.ended


def stormed(url: str, queue: str, directory: Path, seconds: float, seed: int) -> Storm:
    """A storm that is over. The queue must be there. directory: an empty one."""
    storm = Storm(queue, seed)
    work: Coroutine[Any, Any, None] = storm.run(url, directory, seconds)
    asyncio.run(work)
    return storm
