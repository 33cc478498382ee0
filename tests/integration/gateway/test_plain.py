"""Plain HTTP without a socket: pushing, receiving and settling batches, and refusing bad ones."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Credential

import cassq
from cassq.base.clock import SystemClock
from cassq.gateway.actions.service import open_service
from cassq.gateway.plain.answering import PlainAnswering
from cassq.gateway.plain.formats import ACTS, acts_of
from cassq.gateway.plain.openapi import document
from cassq.gateway.plain.request import LINES, MSGPACK, PlainAnswer, PlainRequest
from cassq.gateway.plain.service import ROUTES, PlainService
from cassq.gateway.request import Caller
from cassq.gateway.wire.counts import Counts, counts_bytes
from cassq.gateway.wire.credentials import Credentials
from cassq.gateway.wire.http import HttpRequest
from cassq.gateway.wire.signatures import Verifier
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.gateway import documented
from tests.integration.stage import Connect, drain, payloads


class Curl:
    """Asks the service, as a client does."""

    def __init__(self, service: PlainService) -> None:
        self.service: PlainService = service
        self.may: Callable[[str, str], bool] = lambda action, queue: True

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        kind: str = "",
        accept: str = "",
        **query: str,
    ) -> PlainAnswer:
        request = PlainRequest(
            method,
            tuple(path.split("/")),
            query,
            body,
            Caller("key", self.may),
            content_type=kind,
            accept=accept,
        )
        answer = await self.service.answer(request)
        documented.check_answer(request, answer)
        if answer.status == 200:
            assert documented.takes(request), request
        return answer

    async def get(self, path: str, **query: str) -> Any:
        answer = await self.ask("GET", path, **query)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    async def push(self, *items: object) -> list[str]:
        answer = await self.ask("POST", "queues/jobs/messages", lines(*items))
        assert answer.status == 200, answer.body
        ids: list[str] = json.loads(answer.body)["ids"]
        return ids

    async def receive(self, **query: str) -> list[dict[str, Any]]:
        answer = await self.ask("GET", "queues/jobs/messages", **query)
        assert (answer.status, answer.content_type) == (200, LINES), answer.body
        return [json.loads(line) for line in answer.body.splitlines()]

    async def settle(self, *acts: object) -> list[str]:
        answer = await self.ask("POST", "queues/jobs/settle", lines(*acts))
        assert answer.status == 200, answer.body
        invalid: list[str] = json.loads(answer.body)["invalid"]
        return invalid

    async def refused(
        self, status: int, method: str, path: str, body: bytes = b"", **more: str
    ) -> dict[str, Any]:
        answer = await self.ask(method, path, body, **more)
        assert answer.status == status, answer.body
        error: dict[str, Any] = json.loads(answer.body)["error"]
        return error


def lines(*items: object) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


Run = Callable[[Callable[[Curl], Awaitable[None]]], None]


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs")


@pytest.fixture
def run(queue: cassq.Queue, url: str) -> Run:
    def run_main(main: Callable[[Curl], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS):
                async with open_service(url) as service:
                    await main(Curl(PlainService(service.host)))

        asyncio.run(whole())

    return run_main


def test_lines_are_pushed_received_and_acked(run: Run, queue: cassq.Queue) -> None:
    async def main(curl: Curl) -> None:
        ids = await curl.push("one", {"payload": "two", "headers": {"a": "b"}, "key": "k"})
        first, second = await curl.receive(max="10")
        assert [first["id"], second["id"]] == ids
        assert (first["payload"], first["attempts"]) == ("one", 1)
        assert (second["payload"], second["headers"], second["key"]) == ("two", {"a": "b"}, "k")
        assert await curl.settle({"ack": [first["receipt"], second["receipt"]]}) == []
        assert await curl.settle({"ack": first["receipt"]}) == [first["receipt"]]
        assert await curl.receive() == []

    run(main)
    assert queue.stats().groups["default"].committed == 2


def test_msgpack_is_pushed_and_received(run: Run) -> None:
    async def main(curl: Curl) -> None:
        for items in ([b"\xff", b"b"], [{"payload": b"\xfe", "key": b"\x00"}, b"c"]):
            body = msgpack.packb(items)
            answer = await curl.ask("POST", "queues/jobs/messages", body, kind=MSGPACK)
            assert len(json.loads(answer.body)["ids"]) == 2
        answer = await curl.ask("GET", "queues/jobs/messages", accept=MSGPACK)
        found = msgpack.unpackb(answer.body)
        assert [each["payload"] for each in found] == [b"\xff", b"b", b"\xfe", b"c"]
        assert found[2]["key"] == b"\x00"

    run(main)


def test_what_is_not_text_is_base64_in_lines(run: Run) -> None:
    async def main(curl: Curl) -> None:
        encoded = base64.b64encode(b"\xff\x00").decode()
        await curl.push({"payload_base64": encoded, "key_base64": encoded})
        (message,) = await curl.receive()
        assert message["payload_base64"] == message["key_base64"] == encoded
        assert not {"payload", "key"} & message.keys()

    run(main)


def test_native_clients_see_the_same_messages(
    run: Run, queue: cassq.Queue, connect: Connect
) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("from curl")
        with queue.pusher() as pusher:
            pusher.push(b"from python", headers={"x": "y"}, priority=3)

    run(main)
    found = drain(connect().queue("jobs").popper())
    assert sorted(payloads(found)) == [b"from curl", b"from python"]


def test_acts_do_what_they_say(run: Run, queue: cassq.Queue) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("a", "b", "c", "d")
        by_payload = {each["payload"]: each["receipt"] for each in await curl.receive()}
        acts = (
            {"nack": by_payload["a"], "delay": 0, "error": "no address"},
            {"release": [by_payload["b"]]},
            {"dead": [by_payload["c"]], "error": "never"},
            {"extend": [by_payload["d"]], "seconds": 3600},
        )
        assert await curl.settle(*acts) == []
        again = {each["payload"]: each["attempts"] for each in await curl.receive(wait="1")}
        more = {each["payload"]: each["attempts"] for each in await curl.receive()}
        assert again | more == {"a": 2, "b": 1}

    run(main)
    (letter,) = queue.dead_letters().peek()
    assert (letter.payload, letter.death["error"]) == (b"c", "never")


def test_acts_that_ask_for_the_same_are_one() -> None:
    later = {"delay": 3}
    items = [{"ack": "a"}, {"ack": ["b", "c"]}, {"nack": "d"}, {"nack": "e", **later}, {"ack": "f"}]
    assert acts_of(items) == [
        ("ack", ["a", "b", "c"], {}),
        ("nack", ["d"], {}),
        ("nack", ["e"], later),
        ("ack", ["f"], {}),
    ]
    assert items[1] == {"ack": ["b", "c"]}


def test_a_wait_ends_with_a_push(run: Run) -> None:
    async def main(curl: Curl) -> None:
        waiting = asyncio.create_task(curl.receive(wait="20"))
        await curl.push("late")
        assert [each["payload"] for each in await waiting] == ["late"]

    run(main)


def test_what_was_not_delivered_goes_back_uncounted(run: Run) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("one")
        answer = await curl.ask("GET", "queues/jobs/messages")
        assert answer.undelivered is not None
        await answer.undelivered()
        (message,) = await curl.receive(wait="20")
        assert message["attempts"] == 1

    run(main)


def test_a_visible_message_is_delivered_again(run: Run) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("one")
        (first,) = await curl.receive(visible="0")
        (second,) = await curl.receive(wait="20")
        assert second["attempts"] == 2
        assert await curl.settle({"ack": first["receipt"]}) == [first["receipt"]]
        assert await curl.settle({"ack": second["receipt"]}) == []

    run(main)


def test_queues_and_their_statistics(run: Run, client: cassq.Client) -> None:
    client.create_queue("other")

    async def main(curl: Curl) -> None:
        await curl.push("one")
        assert await curl.get("queues") == {"queues": ["jobs", "other"]}
        assert await curl.get("queues", prefix="o") == {"queues": ["other"]}
        stats = await curl.get("queues/jobs")
        assert stats["groups"]["default"]["waiting"] == 1

    run(main)


def test_a_queue_is_created_once_and_keeps_its_settings(run: Run, client: cassq.Client) -> None:
    client.create_queue("set", max_deliveries=3)

    async def main(curl: Curl) -> None:
        for name in ("new", "new", "set"):
            answer = await curl.ask("PUT", f"queues/{name}")
            assert (answer.status, json.loads(answer.body)) == (200, {"queue": name})
        await curl.refused(400, "PUT", "queues/other", b"{}")
        await curl.refused(400, "PUT", "queues/no name")
        curl.may = lambda action, queue: action == "CreateQueue" and queue == "a"
        await curl.refused(403, "PUT", "queues/b")

    run(main)
    assert client.queue("set").policy.max_deliveries == 3
    assert [queue.name for queue in client.queues()] == ["jobs", "new", "set"]


def test_each_group_receives_all_messages(run: Run, queue: cassq.Queue) -> None:
    queue.create_group("audit")

    async def main(curl: Curl) -> None:
        waiting = asyncio.create_task(curl.receive(group="audit", wait="20"))
        await curl.push("one")
        (audited,), (one,) = await waiting, await curl.receive(wait="20")
        assert audited["payload"] == one["payload"] == "one"
        assert await curl.settle({"ack": [audited["receipt"], one["receipt"]]}) == []
        error = await curl.refused(404, "GET", "queues/jobs/messages", group="none")
        assert error["code"] == "group_not_found"

    run(main)
    assert {group.committed for group in queue.stats().groups.values()} == {1}


BAD = {
    "not JSON": b'{"payload": "a"',
    "no payload": b'{"headers": {}}',
    "both": b'{"payload": "a", "payload_base64": "YQ=="}',
    "not base64": b'{"payload_base64": "!"}',
    "a number": b"5",
    "null": b"null",
    "an unknown field": b'{"payload": "a", "prio": 1}',
    "a priority of the wrong type": b'{"payload": "a", "priority": "1"}',
    "a delay of the wrong type": b'{"payload": "a", "delay": "1"}',
    "headers that are no texts": b'{"payload": "a", "headers": {"a": 1}}',
    "half a surrogate": b'"\\ud800"',
    "too many": b'"a"\n' * 10_001,
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_of_a_body_that_is_wrong_nothing_is_pushed(
    run: Run, queue: cassq.Queue, body: bytes
) -> None:
    async def main(curl: Curl) -> None:
        good = lines("good")
        error = await curl.refused(400, "POST", "queues/jobs/messages", good + body)
        assert error["code"] == "bad_request"

    run(main)
    assert queue.stats().pushed == 0


def test_of_messages_that_are_refused_the_others_are_pushed_and_the_status_says_so(
    run: Run, queue: cassq.Queue
) -> None:
    async def main(curl: Curl) -> None:
        items = "good", {"payload": "bad", "priority": 10}, {"payload": "good", "priority": 9}
        answer = await curl.ask("POST", "queues/jobs/messages", lines(*items))
        assert answer.status == 400
        found = json.loads(answer.body)
        assert [each is None for each in found["ids"]] == [False, True, False]
        assert [each["at"] for each in found["errors"]] == [1]

    run(main)
    assert queue.stats().pushed == 2


def test_of_acts_that_are_wrong_nothing_is_done(run: Run, queue: cassq.Queue) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("a")
        (message,) = await curl.receive()
        good = {"ack": message["receipt"]}
        for wrong in (
            {"ack": "no receipt"},
            {"ack": 5},
            {"ack": [], "nack": []},
            {"nack": message["receipt"], "seconds": 1},
            {"extend": message["receipt"]},
            {"extend": message["receipt"], "seconds": "1"},
            {"forget": message["receipt"]},
            "ack",
        ):
            error = await curl.refused(400, "POST", "queues/jobs/settle", lines(good, wrong))
            assert error["code"] == "bad_request"

    run(main)
    assert queue.stats().groups["default"].pending == 1


def test_paths_methods_types_and_parameters_that_are_not_there(run: Run) -> None:
    async def main(curl: Curl) -> None:
        await curl.refused(404, "GET", "nothing")
        await curl.refused(404, "GET", "queues/none/messages")
        await curl.refused(404, "POST", "queues/none/messages", lines("a"))
        await curl.refused(405, "DELETE", "queues/jobs/messages")
        await curl.refused(415, "POST", "queues/jobs/messages", b"<a/>", kind="text/xml")
        await curl.refused(400, "POST", "queues/jobs/messages", b"\xc1", kind=MSGPACK)
        await curl.refused(400, "POST", "queues/jobs/messages", b"\x05", kind=MSGPACK)
        for name, value in (("max", "0"), ("max", "x"), ("wait", "21"), ("visible", "nan")):
            await curl.refused(400, "GET", "queues/jobs/messages", **{name: value})
        error = await curl.refused(400, "GET", "queues/jobs/messages", maximum="1")
        assert "'maximum'" in error["message"]

    run(main)


def test_credentials_decide_what_may_be_done(run: Run) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("a")
        curl.may = lambda action, queue: action == "ReceiveMessage" and queue == "jobs"
        (message,) = await curl.receive()
        await curl.refused(403, "POST", "queues/jobs/messages", lines("a"))
        await curl.refused(403, "POST", "queues/jobs/settle", lines({"ack": message["receipt"]}))
        await curl.refused(403, "GET", "queues/jobs")
        await curl.refused(403, "GET", "queues")

    run(main)


def test_the_document_has_every_route_and_no_other(run: Run) -> None:
    found = {
        (path, method.upper())
        for path, operations in document()["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert found == {
        ("/".join(("/v1", *shape)), method)
        for shape, methods in ROUTES.items()
        for method in methods
    }

    async def main(curl: Curl) -> None:
        assert await curl.get("openapi.json") == document()

    run(main)


MESSAGES: list[object] = [
    *("", "text", 5, None, True, [], {}),
    *({"payload": value} for value in ("", "x", 5, None, [], {})),
    *({"payload_base64": value} for value in ("", "YQ==", "YWI=", "YWJj", "!", "YQ", "YQ=", 5)),
    {"payload": "a", "payload_base64": None},
    {"payload": None, "payload_base64": "YQ=="},
    {"payload": "a", "payload_base64": "YQ=="},
    *(
        {"payload": "a", name: value}
        for name, values in {
            "headers": ({}, {"a": "b"}, {"a": 1}, {"a": None}, [], "a", None),
            "key": ("", "k", 5, None, []),
            "key_base64": ("", "YQ==", "!", None),
            "priority": (0, 9, -1, 10, 1.5, "1", True, None),
            "delay": (0, 1.5, 315_360_000, 315_360_001, -1, "1", True, None),
            "dedup_id": ("a", 5, None),
            "prio": (1, None),
        }.items()
        for value in values
    ),
    {"payload": "a", "key": "k", "key_base64": "aw=="},
    {"payload": "a", "key": None, "key_base64": "aw=="},
]


@pytest.mark.parametrize("packed", [False, True], ids=["lines", "msgpack"])
def test_the_document_and_the_server_take_the_same_messages(
    run: Run, queue: cassq.Queue, packed: bool
) -> None:
    queue.update(dedup_window=600)
    kind = MSGPACK if packed else LINES
    items = [*MESSAGES, *([b"\xff", {"payload": b"\xff", "key": b"\x00"}] if packed else [])]

    async def main(curl: Curl) -> None:
        for item in items:
            body = msgpack.packb([item]) if packed else lines(item)
            request = PlainRequest("POST", ("queues", "jobs", "messages"), {}, body, Caller("key"))
            request.content_type = kind
            answer = await curl.ask("POST", "queues/jobs/messages", body, kind=kind)
            assert (answer.status == 200) == documented.takes(request), (item, answer.body)
            assert answer.status in (200, 400)

    run(main)


def test_the_document_and_the_server_take_the_same_acts(run: Run) -> None:
    async def main(curl: Curl) -> None:
        await curl.push("a")
        ((receipt),) = [message["receipt"] for message in await curl.receive()]
        acts: list[object] = [
            *("ack", 5, None, [], {}),
            *({verb: value} for verb in ACTS for value in (receipt, [receipt], [], 5, None, [5])),
            *(
                {verb: receipt, "delay": value}
                for verb in ACTS
                for value in (0, 1.5, -1, "1", None)
            ),
            *({verb: receipt, "error": value} for verb in ACTS for value in ("", "why", 5, None)),
            *(
                {"extend": receipt, "seconds": value}
                for value in (0, 0.5, 43_200, 43_201, -1, "1", None, True)
            ),
            {"nack": receipt, "delay": 315_360_001},
            {"nack": receipt, "delay": 5, "error": "why"},
            {"ack": receipt, "nack": receipt},
            {"forget": receipt},
        ]
        for act in acts:
            path = ("queues", "jobs", "settle")
            request = PlainRequest("POST", path, {}, lines(act), Caller("key"))
            answer = await curl.ask("POST", "queues/jobs/settle", lines(act))
            assert (answer.status == 200) == documented.takes(request), (act, answer.body)
            assert answer.status in (200, 400)

    run(main)


@pytest.mark.parametrize(
    ("path", "name", "values"),
    [
        ("queues/jobs/messages", "max", ("1", "10000", "0", "10001", "1.5", "x", "nan", "")),
        ("queues/jobs/messages", "wait", ("0", "0.01", "-1", "21", "x", "nan", "inf")),
        ("queues/jobs/messages", "visible", ("0", "0.5", "43200", "43201", "-1", "x")),
        ("queues/jobs/messages", "group", ("default",)),
        ("queues/jobs/messages", "limit", ("1",)),
        ("queues/jobs", "max", ("1",)),
        ("queues", "prefix", ("", "j")),
        ("queues", "max", ("1",)),
    ],
)
def test_the_document_and_the_server_take_the_same_parameters(
    run: Run, path: str, name: str, values: tuple[str, ...]
) -> None:
    async def main(curl: Curl) -> None:
        for value in values:
            request = PlainRequest("GET", tuple(path.split("/")), {name: value}, b"", Caller("key"))
            answer = await curl.ask("GET", path, **{name: value})
            assert (answer.status == 200) == documented.takes(request), (name, value, answer.body)
            assert answer.status in (200, 400)

    run(main)


# --- as HTTP --------------------------------------------------------------------------------------

KEYS = """
[keys.WORKER]
secret = "its secret"
queues = ["jobs"]
actions = ["ReceiveMessage", "DeleteMessage"]
"""


def http(method: str, target: str, body: bytes = b"", **headers: str) -> HttpRequest:
    lines = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    request = HttpRequest(method.encode(), target.encode(), {b"host": b"localhost", **lines})
    request.body = body
    return request


def basic(name: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}"


@pytest.fixture
def over_http(
    queue: cassq.Queue, url: str, tmp_path: Path
) -> Callable[[Callable[[PlainAnswering], Awaitable[None]]], None]:
    """Runs with credentials in force."""
    (tmp_path / "keys").write_text(KEYS)

    def run_main(main: Callable[[PlainAnswering], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS), open_service(url) as service:
                with tempfile.TemporaryFile() as file:
                    file.truncate(counts_bytes(1))
                    counts = Counts(file.fileno(), 0)
                    verifier = Verifier(Credentials(tmp_path / "keys"))
                    plain = PlainService(service.host)
                    await main(PlainAnswering(plain, counts, SystemClock(), verifier))

        asyncio.run(whole())

    return run_main


def test_a_caller_names_its_key_and_its_secret(
    over_http: Callable[[Callable[[PlainAnswering], Awaitable[None]]], None],
) -> None:
    async def main(answering: PlainAnswering) -> None:
        target, right = "/v1/queues/jobs/messages?max=5", basic("WORKER", "its secret")
        reply = await answering(http("GET", target, authorization=right))
        assert reply.status == 200
        reply = await answering(http("POST", target, b'"a"', authorization=right))
        assert reply.status == 400  # there is no parameter max
        reply = await answering(http("POST", target[:-6], b'"a"', authorization=right))
        assert reply.status == 403
        for wrong in (
            basic("WORKER", "another"),
            basic("NOBODY", "its secret"),
            basic("WORKER", ""),
            "Basic !",
            "Bearer WORKER",
            "",
        ):
            reply = await answering(http("GET", target, authorization=wrong))
            assert reply.status == 401, wrong
            assert b"WWW-Authenticate: Basic" in reply.headers
        assert (await answering(http("GET", target))).status == 401

    over_http(main)


def test_a_caller_may_sign_instead(
    over_http: Callable[[Callable[[PlainAnswering], Awaitable[None]]], None],
) -> None:
    def signed(secret: str) -> HttpRequest:
        url = "http://localhost/v1/queues/jobs/messages?max=5"
        asked = AWSRequest("GET", url)
        SigV4Auth(Credential("WORKER", secret), "sqs", "eu-west-1").add_auth(asked)
        headers = {name.lower(): text for name, text in asked.headers.items()}
        return http("GET", "/v1/queues/jobs/messages?max=5", **headers)

    async def main(answering: PlainAnswering) -> None:
        assert (await answering(signed("its secret"))).status == 200
        assert (await answering(signed("another"))).status == 401

    over_http(main)
