"""The part of the comparison that is by SQS' protocol: its verdicts, its client, that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bench.__main__ import SCENARIOS
from bench.measuring.raw_http import FailedError, RawConnection, RefusedError, request
from bench.results.scores import Scores
from bench.results.targets import TARGETS, Verdict, judge
from bench.scenarios.gateway.scenario import OWN, OverSqs
from bench.servers.server import MissingServerError
from bench.servers.sqs import ElasticMqServer, client_core, pinned, server_core

ROOT = Path(__file__).parents[3]
HERE = tuple(target for target in TARGETS if target.title.startswith("by SQS"))
GOOD = {
    "send": 9e3,
    "batch": 6e4,
    "receive": 4e4,
    "plain_push": 4e5,
    "p99_ms": 4.0,
    "leave_ms": 50.0,
}


def verdicts(scores: Scores) -> set[Verdict]:
    return {judgement.verdict for judgement in judge(scores, HERE)}


def test_every_target_can_be_reached_and_missed() -> None:
    assert len(HERE) == 11
    assert verdicts(Scores()) == {Verdict.UNKNOWN}
    for factor, held, verdict in ((1.0, 1.0, Verdict.REACHED), (0.5, 0.5, Verdict.MISSED)):
        scores = Scores()
        figures = {name: value * factor for name, value in GOOD.items()}
        times = {name: GOOD[name] / factor / factor for name in ("p99_ms", "leave_ms")}
        scores.add("gateway", OWN, {**figures, **times})
        scores.add("gateway-fifo", OWN, figures)
        scores.add("gateway-backlog", OWN, {"held": held})
        scores.add("gateway-fifo-backlog", OWN, {"held": held})
        assert verdicts(scores) == {verdict}


def test_the_scenario_can_be_chosen() -> None:
    assert SCENARIOS["gateway"] is OverSqs


def test_servers_and_their_client_share_no_core_if_there_are_two(tmp_path: Path) -> None:
    shown = "import os; print(*os.sched_getaffinity(0))"
    command = pinned(sys.executable, "-c", shown)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(server_core())]
    assert client_core() <= server_core()


def test_without_java_elasticmq_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingServerError, match="java is not installed"):
        ElasticMqServer(tmp_path).find()


def answering(answers: list[bytes], ask: Callable[[RawConnection], Awaitable[object]]) -> object:
    """What a raw connection makes of answers, one for each request."""

    async def main() -> object:
        left, serving = iter(answers), set[asyncio.Task[None] | None]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.add(asyncio.current_task())
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    answer = next(left)
                    for part in (answer[:20], answer[20:]):
                        writer.write(part)
                        await writer.drain()
                    if b"Connection: close" in answer:
                        break
                writer.close()
                await writer.wait_closed()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(30):
            connection = RawConnection(f"{host}:{port}")
            try:
                return await ask(connection)
            finally:
                connection.close()
                await asyncio.gather(*filter(None, serving))
                server.close()
                await server.wait_closed()

    return asyncio.run(main())


def reply(status: int, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), more, body)


def test_the_client_reads_answers_and_connects_again_when_it_must() -> None:
    asked = request("GET", "/", "a:1", b"")
    answers = [reply(200, b"one", b"Connection: close\r\n"), reply(200, b""), reply(200, b"two")]

    async def ask(connection: RawConnection) -> list[bytes]:
        return [await connection.ask(asked) for _ in answers]

    assert answering(answers, ask) == [b"one", b"", b"two"]


@pytest.mark.parametrize(("status", "error"), [(400, RefusedError), (503, FailedError)])
def test_the_client_distinguishes_refusals_from_failures(
    status: int, error: type[Exception]
) -> None:
    async def ask(connection: RawConnection) -> bytes:
        return await connection.ask(request("GET", "/", "a:1", b""))

    with pytest.raises(RefusedError, match="no") as caught:
        answering([reply(status, b"no")], ask)
    assert type(caught.value) is error


@pytest.mark.long(reason="a measurement of a gateway")
@pytest.mark.needs("module:psutil", "module:uvloop", "module:msgspec")
def test_a_small_measurement_runs(tmp_path: Path) -> None:
    options = ("--peers", OWN, "--scenarios", "gateway", "--messages", "small")
    finished = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", *options, "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    rows = [line for line in finished.stdout.splitlines() if line.startswith("| cassq gateway |")]
    assert len(rows) == 5  # one of each case, and one of the peers
    assert "failed" not in finished.stdout
    assert not list(tmp_path.iterdir())
