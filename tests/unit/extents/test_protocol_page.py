"""docs/sidecar_protocol.md says what the code does: operations, fields, codes, limits, bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cassq.extents.protocol import messages
from cassq.extents.protocol.messages import (
    REPLIES,
    REQUESTS,
    Append,
    Code,
    Hello,
    ListedExtent,
    RefusedError,
)
from cassq.extents.protocol.wire import (
    HELLO_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    read_request,
    refusal_parts,
    request_parts,
)
from cassq.sidecar.engine import checks
from cassq.sidecar.sessions import connection
from cassq.sidecar.sessions.handshake import WINDOW_BYTES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sidecar_protocol.md"
TEXT = PAGE.read_text()


def rows(heading: str) -> Iterator[list[str]]:
    """The rows of the first table of a section that begins with these cells."""
    lines = iter(TEXT.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            break
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def fields(cell: str) -> tuple[str, ...]:
    return tuple(cell.replace(",", " ").split())


def names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))


def test_the_page_lists_every_operation_with_its_fields_in_order() -> None:
    documented = {
        int(op): (request, fields(its), reply, fields(replys))
        for op, request, its, reply, replys in rows("op")
    }
    there = {
        op: (kind.__name__, names(kind), REPLIES[kind].__name__, names(REPLIES[kind]))
        for op, kind in REQUESTS.items()
    }
    assert documented == there


def test_every_operation_is_explained() -> None:
    for kind in REPLIES:
        assert re.search(rf"^\*\*{kind.__name__}\*\*", TEXT, re.MULTILINE), kind


def test_the_type_of_every_field_is_reported() -> None:
    documented = {
        name: kind for kind, names in rows("type") for name in re.findall(r"`([a-z_]+)`", names)
    }
    shapes = {
        "Number": None,
        "str": "str",
        "bool": "bool",
        "bytes": "bin",
        "bytes | Sequence[bytes]": "bin",
        "Sequence[str]": "array of str",
        "Sequence[tuple[str, Number]]": "array of [pipe_id, known]",
        "Sequence[tuple[Number, Number, bool, bool, Number] | None]": (
            "array of [acked, end, fenced, closed, idle_ms] or nil"
        ),
        "Sequence[ListedExtent]": f"array of [{', '.join(names(ListedExtent))}]",
        "Mapping[str, Any]": "map by name",
    }
    seen = set()
    for kind in {*REPLIES, *REPLIES.values()}:
        for name in names(kind):
            annotation = kind.__annotations__[name]
            assert documented.get(name) == shapes[annotation], (kind, name)
            seen.add(name)
    assert set(documented) <= seen, "nothing is told of fields that are not there"


def test_the_page_lists_every_code_with_its_name_and_whether_to_try_again() -> None:
    documented = {int(code): (name, again) for code, name, _, again in rows("code")}
    assert {code: name for code, (name, _) in documented.items()} == {
        code.value: code.name for code in Code if code is not Code.OK
    }
    for code in Code:
        if code is not Code.OK:
            assert (documented[code][1] != "no") == RefusedError(code).retryable, code


def test_limits_are_those_of_the_code() -> None:
    documented = {what: int(limit) for what, limit in rows("what")}
    assert list(documented.values()) == [
        HELLO_BYTES_MAX,
        MESSAGE_BYTES_MAX,
        WINDOW_BYTES,
        messages.READ_BYTES_MAX,
        messages.WAIT_MS_MAX,
        messages.EXTENTS_MAX,
        connection.WAITING_MAX,
        checks.PIPE_ID_LENGTH_MAX,
        checks.QUEUE_NAME_LENGTH_MAX,
    ]
    flowing = " ".join(TEXT.split())
    for number in (
        f"{messages.VERSION}. Frames",
        f"within {connection.HELLO_SECONDS:g} seconds",
        f"more than {connection.HIGH_BYTES >> 20} MiB",
        f"for {connection.STALLED_SECONDS:g} seconds",
        f"{HELLO_BYTES_MAX:,}",
        f"have {connection.WAITING_MAX} long polls",
        f"has {connection.SESSIONS_MAX} connections at most",
    ):
        assert number in flowing, number


def example(number: int) -> list[str]:
    block: str = re.findall(r"```text\n(.*?)```", TEXT.split("## An example")[1], re.DOTALL)[number]
    return block.splitlines()


def test_the_example_is_what_is_sent() -> None:
    hello, append = (bytes.fromhex(line) for line in example(0))
    assert hello == b"".join(request_parts(Hello(1, "c", "t", "me"), 1))
    sent = Append("p", 1, 0, 1, 0, b"\xaa\xbb\xcc")
    assert append == b"".join(request_parts(sent, 2))
    assert read_request(append[4:]) == (2, sent)
    shorter = msgspec.msgpack.encode([3, 2, "p", 1, 0, 1, 0, b"\xaa\xbb\xcc"])
    assert len(shorter) < len(append) - 4
    assert read_request(shorter) == (2, sent)
    refusal = b"".join(refusal_parts(RefusedError(Code.BAD_FRAME, "no"), 2))
    assert refusal[4:].startswith(bytes.fromhex(example(1)[0].removeprefix("........")))


@pytest.mark.parametrize("name", ["sidecar", "state", "catalog_seconds", "requests"])
def test_facts_are_named(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_all_facts_are_named() -> None:
    from cassq.sidecar import status

    source = Path(str(status.__file__)).read_text()
    documented: list[Any] = re.findall(r'^            "([a-z_]+)":', source, re.MULTILINE)
    assert len(documented) > 20
    for name in documented:
        assert f"`{name}`" in TEXT, name
