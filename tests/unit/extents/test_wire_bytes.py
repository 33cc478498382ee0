"""The bytes of every request, reply and refusal, as version 1 of the protocol has them for ever."""

from __future__ import annotations

from typing import Any

import pytest

from cassq.extents.protocol.messages import (
    REPLIES,
    REQUESTS,
    Append,
    Appended,
    Code,
    Done,
    Drop,
    Ends,
    EndsAre,
    Fence,
    Fenced,
    Frames,
    Hello,
    Info,
    InfoIs,
    List,
    Listed,
    ListedExtent,
    Mark,
    Open,
    Read,
    RefusedError,
    Replicate,
    Replicated,
    Scrub,
    Scrubbed,
    Settle,
    Turn,
    TurnAsked,
    Welcome,
)
from cassq.extents.protocol.wire import (
    read_reply,
    read_request,
    refusal_parts,
    reply_of,
    reply_parts,
    request_parts,
)

REQUESTED: list[tuple[Any, int, str]] = [
    (Hello(1, "", "", ""), 1, "0700000096010101a0a0a0"),
    (
        Hello(1, "c" * 31, "t" * 32, "käse 魚"),
        2,
        "5000000096010201bf" + "63" * 31 + "d920" + "74" * 32 + "a96bc3a4736520e9ad9a",
    ),
    (Open("p", 1, "mail", False), 127, "0c00000096027fa17001a46d61696cc2"),
    (
        Open("p" * 100, 255, "q" * 256, True),
        128,
        "700100009602cc80d964" + "70" * 100 + "ccffda0100" + "71" * 256 + "c3",
    ),
    (Append("p", 1, 0, 1, 0, b""), 300, "100000009803cd012ca17001000100c600000000"),
    (
        Append("p", 1, 127, 128, 127, b"frame"),
        70000,
        "180000009803ce00011170a170017fcc807fc6000000056672616d65",
    ),
    (
        Append("p", 1, 65535, 65536, 256, [b"header", b"body"]),
        4294967296,
        "280000009803cf0000000100000000a17001cdffffce00010000cd0100c60000000a686561646572626f6479",
    ),
    (
        Append("p", 2, 2**32, 1, 2**32 - 1, (b"h" * 32, b"b" * 300)),
        9223372036854775808,
        "6e0100009803cf8000000000000000a17002cf000000010000000001ceffffffffc600"
        "00014c" + "68" * 32 + "62" * 300,
    ),
    (Mark("p", 1, 500, True), 0, "0a000000960400a17001cd01f4c3"),
    (
        Read("p", 0, 2**63, 8388608, 10000, 30000),
        2,
        "1a000000980502a17000cf8000000000000000ce00800000cd2710cd7530",
    ),
    (Read("p", 128, 2**64 - 1, 255, 1, 0), 127, "1400000098057fa170cc80cfffffffffffffffffccff0100"),
    (Ends([], 0), 128, "060000009406cc809000"),
    (
        Ends([("p", 0), ("q", 70000)], 1000),
        300,
        "150000009406cd012c9292a1700092a171ce00011170cd03e8",
    ),
    (Turn("p"), 70000, "090000009307ce00011170a170"),
    (Fence("p", 2), 4294967296, "0e0000009408cf0000000100000000a17002"),
    (Settle("p", 1000), 9223372036854775808, "100000009409cf8000000000000000a170cd03e8"),
    (Drop([]), 1, "04000000930a0190"),
    (
        Drop([f"p{n}" for n in range(16)]),
        2,
        (
            "3c000000930a02dc0010a27030a27031a27032a27033a27034a27035a27036a27037a2"
            "7038a27039a3703130a3703131a3703132a3703133a3703134a3703135"
        ),
    ),
    (List("", 1000, ""), 127, "08000000950b7fa0cd03e8a0"),
    (List("p", 1, "damaged"), 128, "0f000000950bcc80a17001a764616d61676564"),
    (Info(), 300, "05000000920ccd012c"),
    (Scrub("p", 3), 70000, "0a000000940dce00011170a17003"),
    (
        Replicate("p", "mail", True, "host:9191", 9, 1048576),
        4294967296,
        "23000000980ecf0000000100000000a170a46d61696cc3a9686f73743a3931393109ce" + "00100000",
    ),
]

REPLIED: list[tuple[Any, int, str]] = [
    (Done(), 1, "03000000920001"),
    (
        Welcome(1, "a", "g" * 32, "zone", 8388608, 67174432),
        2,
        "3700000098000201a161d920" + "67" * 32 + "a47a6f6e65ce00800000ce04010020",
    ),
    (Appended(1000500, False, True), 127, "0a00000095007fce000f4434c2c3"),
    (Appended(0, True, False), 128, "070000009500cc8000c3c2"),
    (Frames(0, b""), 300, "0b0000009400cd012c00c600000000"),
    (Frames(7, b"f" * 300), 70000, "390100009400ce0001117007c60000012c" + "66" * 300),
    (EndsAre([]), 4294967296, "0c0000009300cf000000010000000090"),
    (
        EndsAre([None, (1, 2, True, False, 300), (2**40, 2**40, False, True, 0)]),
        9223372036854775808,
        (
            "2b0000009300cf800000000000000093c0950102c3c2cd012c95cf0000010000000000"
            "cf0000010000000000c2c300"
        ),
    ),
    (TurnAsked(12345), 1, "06000000930001cd3039"),
    (Fenced(9, 8, True), 2, "060000009500020908c3"),
    (Listed([]), 127, "0400000093007f90"),
    (
        Listed(
            [
                ListedExtent("p", "mail", 9, -1, False, 10**12, 1700000000000, "", True),
                ListedExtent("q", "ü", 5, 5, True, 0, 0, "torn", False),
            ]
        ),
        128,
        (
            "350000009300cc809299a170a46d61696c09ffc2cf000000e8d4a51000cf0000018bcf"
            "e56800a0c399a171a2c3bc0505c30000a4746f726ec2"
        ),
    ),
    (InfoIs({}), 300, "060000009300cd012c80"),
    (
        InfoIs(
            {
                "sidecar": "a",
                "read_only": False,
                "catalog_seconds": None,
                "load": 1.5,
                "free_bytes": 10**13,
                "requests": {"Append": 3},
            }
        ),
        70000,
        (
            "620000009300ce0001117086a773696465636172a161a9726561645f6f6e6c79c2af63"
            "6174616c6f675f7365636f6e6473c0a46c6f6164cb3ff8000000000000aa667265655f"
            "6279746573cf000009184e72a000a8726571756573747381a6417070656e6403"
        ),
    ),
    (
        InfoIs({f"fact{n}": -n for n in range(16)}),
        4294967296,
        (
            "840000009300cf0000000100000000de0010a5666163743000a56661637431ffa56661"
            "637432fea56661637433fda56661637434fca56661637435fba56661637436faa56661"
            "637437f9a56661637438f8a56661637439f7a6666163743130f6a6666163743131f5a6"
            "666163743132f4a6666163743133f3a6666163743134f2a6666163743135f1"
        ),
    ),
    (
        Scrubbed(32, "", "0" * 32),
        9223372036854775808,
        (
            "2f0000009500cf800000000000000020a0d92030303030303030303030303030303030"
            "30303030303030303030303030303030"
        ),
    ),
    (Replicated(2**33), 1, "0c000000930001cf0000000200000000"),
]

REFUSED: list[tuple[Any, int, str]] = [
    (RefusedError(Code.MALFORMED, "no message"), 1, "0f000000940101aa6e6f206d65737361676580"),
    (
        RefusedError(Code.VERSION, "another", version=1),
        2,
        "15000000940202a7616e6f7468657281a776657273696f6e01",
    ),
    (RefusedError(Code.TOKEN), 127, "0a00000094037fa5746f6b656e80"),
    (
        RefusedError(Code.GAP, "a gap", end=70000),
        128,
        "140000009407cc80a5612067617081a3656e64ce00011170",
    ),
    (
        RefusedError(Code.DAMAGED, "größer", end=3, nothing=None),
        300,
        "140000009409cd012ca86772c3b6c39f657281a3656e6403",
    ),
    (
        RefusedError(Code.FAILED, "x" * 300),
        70000,
        "37010000940fce00011170da012c" + "78" * 300 + "80",
    ),
    (
        RefusedError(Code.BUSY, "later", few=[1, "b", None], which={"p": True}),
        4294967296,
        "25000000940ecf0000000100000000a56c6174657282a36665779301a162c0a5776869" + "636881a170c3",
    ),
]

# Where msgpack writes a number in another way from one on to the next.
AT_EDGES = {
    0: "06000000940d00a17000",
    127: "06000000940d7fa1707f",
    128: "08000000940dcc80a170cc80",
    255: "08000000940dccffa170ccff",
    256: "0a000000940dcd0100a170cd0100",
    65535: "0a000000940dcdffffa170cdffff",
    65536: "0e000000940dce00010000a170ce00010000",
    4294967295: "0e000000940dceffffffffa170ceffffffff",
    4294967296: "16000000940dcf0000000100000000a170cf0000000100000000",
    9223372036854775808: "16000000940dcf8000000000000000a170cf8000000000000000",
    18446744073709551615: "16000000940dcfffffffffffffffffa170cfffffffffffffffff",
}


@pytest.mark.parametrize(("request_", "number", "written"), REQUESTED)
def test_a_request_has_its_bytes(request_: Any, number: int, written: str) -> None:
    assert b"".join(request_parts(request_, number)).hex() == written
    got, read = read_request(bytes.fromhex(written)[4:])
    assert (got, type(read)) == (number, type(request_))
    assert b"".join(request_parts(read, number)).hex() == written


@pytest.mark.parametrize(("reply", "number", "written"), REPLIED)
def test_a_reply_has_its_bytes(reply: Any, number: int, written: str) -> None:
    assert b"".join(reply_parts(reply, number)).hex() == written
    answered, fields = read_reply(bytes.fromhex(written)[4:])
    asked = next(request for request, *_ in REQUESTED if REPLIES[type(request)] is type(reply))
    assert not isinstance(fields, RefusedError)
    assert (answered, reply_of(asked, fields)) == (number, reply)


@pytest.mark.parametrize(("refusal", "number", "written"), REFUSED)
def test_a_refusal_has_its_bytes(refusal: RefusedError, number: int, written: str) -> None:
    assert b"".join(refusal_parts(refusal, number)).hex() == written
    answered, read = read_reply(bytes.fromhex(written)[4:])
    assert isinstance(read, RefusedError)
    assert (answered, read.code, read.message) == (number, refusal.code, refusal.message)
    known = {name: value for name, value in refusal.fields.items() if value is not None}
    assert read.fields == known


@pytest.mark.parametrize("code", Code)
def test_a_refusal_begins_with_its_code(code: Code) -> None:
    if code is not Code.OK:
        assert refusal_parts(RefusedError(code), 1)[0][4:7] == bytes([0x94, code, 1])


@pytest.mark.parametrize(("number", "written"), AT_EDGES.items())
def test_a_number_is_as_short_as_it_can_be(number: int, written: str) -> None:
    assert b"".join(request_parts(Scrub("p", number), number)).hex() == written
    assert read_request(bytes.fromhex(written)[4:]) == (number, Scrub("p", number))


def test_every_request_and_every_reply_is_among_them() -> None:
    assert {type(request) for request, *_ in REQUESTED} == set(REQUESTS.values())
    assert {type(reply) for reply, *_ in REPLIED} == set(REPLIES.values())
