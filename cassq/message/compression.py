"""Compression of frames: the codecs, and their optional packages."""

from __future__ import annotations

import struct
from typing import Any

from cassq import extras
from cassq.errors import ConfigError, MissingExtraError

COMPRESSIONS = {"none": 0, "zstd": 1, "lz4": 2}

_U32 = struct.Struct("<I")


def check_compression(name: str) -> str:
    """`name`, if this codec can be used here; else raises ConfigError or MissingExtraError."""
    if name not in COMPRESSIONS:
        raise ConfigError(f"compression {name!r} is unknown", hint="use none, zstd or lz4")
    if name != "none":
        compress(name, b"")
    return name


def compress(name: str, body: bytes) -> bytes:
    if name == "zstd":
        zstandard = _optional("zstandard")
        return bytes(zstandard.ZstdCompressor(level=1).compress(body))
    return bytes(_optional("lz4.block").compress(body, store_size=False))


def decompress(code: int, stored: bytes, size_max: int) -> bytes:
    if len(stored) < 4:
        raise ValueError("a compressed frame is cut short")
    (size,) = _U32.unpack_from(stored)
    if size > size_max:
        raise ValueError(f"a compressed frame claims {size} bytes")
    try:
        if code == COMPRESSIONS["zstd"]:
            zstandard = _optional("zstandard")
            body = zstandard.ZstdDecompressor().decompress(stored[4:], max_output_size=size)
        else:
            body = _optional("lz4.block").decompress(stored[4:], uncompressed_size=size)
    except MissingExtraError:
        raise
    except Exception as exc:  # each library has its own error class
        raise ValueError("a compressed frame cannot be unpacked") from exc
    if len(body) != size:
        raise ValueError("a compressed frame unpacks to another size")
    return bytes(body)


def _optional(module: str) -> Any:
    with extras.wanted("compressed frames need", module.partition(".")[0], "compression"):
        return __import__(module, fromlist=["_"])
