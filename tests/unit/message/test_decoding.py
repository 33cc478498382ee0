"""Decoding payloads: what each format makes of good and of bad bytes; it never raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.errors import ConfigError, MissingExtraError
from cassq.message.decoding import Decoded, Decoder, decoder

needs_msgpack = pytest.mark.needs("module:msgpack")
needs_protobuf = pytest.mark.needs("module:google.protobuf")


@pytest.fixture
def descriptor_set(tmp_path: Path) -> Path:
    """Two files, one of which imports the other, with a nested message."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    files = FileDescriptorSet()
    money = files.file.add(name="money.proto", package="shop", syntax="proto3")
    amount = money.message_type.add(name="Money")
    amount.field.add(name="cents", number=1, type=FieldDescriptorProto.TYPE_INT64)
    orders = files.file.add(name="orders.proto", package="shop", syntax="proto3")
    orders.dependency.append("money.proto")
    order = orders.message_type.add(name="Order")
    order.field.add(name="order_id", number=1, type=FieldDescriptorProto.TYPE_STRING)
    order.field.add(
        name="total",
        number=2,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".shop.Money",
    )
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FieldDescriptorProto.TYPE_STRING)
    for message in (amount, order, line):
        for field in message.field:
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
    path = tmp_path / "shop.desc"
    path.write_bytes(files.SerializeToString())
    return path


# --- good bytes -------------------------------------------------------------------------------


def test_text_is_utf8() -> None:
    assert decoder("text")("käse".encode()) == Decoded("käse", "käse")


@pytest.mark.parametrize("value", [{"a": [1, "ü"]}, [], 5, None, True, "text"])
def test_json_is_shown_as_json(value: Any) -> None:
    decoded = decoder("json")(json.dumps(value).encode())
    assert (decoded.value, decoded.error) == (value, "")
    assert decoded.text == (value if isinstance(value, str) else json.dumps(value).replace(
        "\\u00fc", "ü"))  # fmt: skip


@needs_msgpack
def test_msgpack_becomes_what_json_can_hold() -> None:
    import msgpack

    value = {"a": b"\xff", 5: [1.5, None], "t": msgpack.Timestamp(0), "x": msgpack.ExtType(7, b"z")}
    decoded = decoder("msgpack")(msgpack.packb(value))
    assert decoded.error == ""
    assert decoded.value == {
        "a": {"base64": "/w=="},
        "5": [1.5, None],
        "t": "1970-01-01 00:00:00+00:00",
        "x": {"code": 7, "data": {"base64": "eg=="}},
    }
    assert json.loads(decoded.text) == decoded.value


@needs_protobuf
@pytest.mark.parametrize(
    ("message", "payload", "value"),
    [
        ("shop.Order", b"\x0a\x02o7\x12\x02\x08\x05", {"order_id": "o7", "total": {"cents": "5"}}),
        ("shop.Order", b"", {}),
        ("shop.Order.Line", b"\x0a\x01s", {"sku": "s"}),
        ("shop.Money", b"\x08\x07", {"cents": "7"}),
    ],
)
def test_protobuf_is_decoded_by_a_descriptor_set(
    descriptor_set: Path, message: str, payload: bytes, value: Any
) -> None:
    assert decoder(f"protobuf:{message}", descriptor_set)(payload).value == value


# --- bad bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload", "message"),
    [
        ("text", b"\xff\xfe", "not UTF-8 text"),
        ("json", b"{", "not JSON"),
        ("json", b"NaN", "NaN is not a JSON number"),
        ("json", b"[" * 100_000, "not JSON"),
        ("json", b'"\\ud800"', "not JSON"),
        ("json", b"", "not JSON"),
        pytest.param("msgpack", b"\xc1", "not MessagePack", marks=needs_msgpack),
        pytest.param("msgpack", b"\x01\x02", "not MessagePack", marks=needs_msgpack),
        pytest.param("msgpack", b"\xdb\xff\xff\xff\xff", "not MessagePack", marks=needs_msgpack),
    ],
)
def test_what_cannot_be_decoded_is_reported_and_shown_as_bytes(
    name: str, payload: bytes, message: str
) -> None:
    decoded = decoder(name)(payload)
    assert message in decoded.error
    assert decoded.value is None
    assert decoded.text.startswith(payload[:64].hex())
    assert len(decoded.text) < 200


@needs_protobuf
@pytest.mark.parametrize("payload", [b"\xff", b"\x0a\x05ab", b"\x4a\x02hi", b"\x0a\x01\xff"])
def test_bytes_that_are_not_such_a_message_are_reported(
    descriptor_set: Path, payload: bytes
) -> None:
    decoded = decoder("protobuf:shop.Order", descriptor_set)(payload)
    assert decoded.error.startswith("not a shop.Order: ")
    assert payload.hex() in decoded.text


@needs_msgpack
@given(st.binary(max_size=200), st.sampled_from(["text", "json", "msgpack"]))
def test_no_payload_makes_a_decoder_raise(payload: bytes, name: str) -> None:
    decoded = decoder(name)(payload)
    json.dumps(decoded.value)
    decoded.text.encode()


# --- what is not a decoder --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "xml", "json:x", "text:", "protobuf", "protobuf:"])
def test_anything_but_a_decoder_is_refused_with_those_there_are(name: str) -> None:
    if name == "text:":
        assert decoder(name)(b"x").text == "x"
        return
    with pytest.raises(ConfigError, match="is not a decoder") as caught:
        decoder(name)
    assert "msgpack" in caught.value.hint


@needs_protobuf
def test_a_descriptor_set_that_cannot_be_used_is_reported(
    descriptor_set: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.desc"
    bad.write_bytes(b"\xff\xff\xff")
    with pytest.raises(ConfigError, match="no message 'shop.Basket'") as caught:
        decoder("protobuf:shop.Basket", descriptor_set)
    assert "shop.Order.Line" in caught.value.hint
    with pytest.raises(ConfigError, match="is not a usable descriptor set"):
        decoder("protobuf:shop.Order", bad)
    with pytest.raises(ConfigError, match="cannot be read"):
        decoder("protobuf:shop.Order", tmp_path / "none.desc")
    with pytest.raises(ConfigError, match="needs a descriptor set"):
        decoder("protobuf:shop.Order")
    with pytest.raises(ConfigError, match="is for protobuf"):
        decoder("json", descriptor_set)


@pytest.mark.parametrize(
    ("name", "package", "module"),
    [("msgpack", "msgpack", "msgpack"), ("protobuf:x.Y", "protobuf", "google.protobuf")],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, module: str
) -> None:
    import sys

    for loaded in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=f"needs the package {package}") as caught:
        decoder(name, Path("x"))if ":" in name else decoder(name)  # fmt: skip
    assert "cassq[decoding]" in caught.value.hint


def test_a_decoder_is_a_function_of_bytes() -> None:
    decode: Decoder = decoder("text")
    assert decode(b"") == Decoded("", "")
