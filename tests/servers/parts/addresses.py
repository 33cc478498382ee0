"""Loopback addresses for a cluster: a subnet of 127.0.0.0/8 that no other cluster has.

All of 127.0.0.0/8 is local on Linux, so every node has an address of its own and every server
keeps its usual ports. A subnet is held by a bound socket, which the kernel frees with its holder.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterable, Iterator

from tests.servers.parts.errors import MissingServerError

NODES_MAX = 9
_CLAIM_HOST = 254
_CLAIM_PORT = 30_127
_TRIES_MAX = 50


class Subnet:
    """The addresses 127.X.Y.1, .2, ... until `release`."""

    def __init__(self, prefix: str, claim: socket.socket) -> None:
        self.prefix = prefix
        self._claim = claim

    def addresses(self, count: int) -> list[str]:
        """The first so many addresses."""
        assert 0 < count <= NODES_MAX
        return [f"{self.prefix}.{number}" for number in range(1, count + 1)]

    def release(self) -> None:
        """Give the subnet to whoever wants it; harmless when done twice."""
        self._claim.close()


def claim_subnet(prefix: str | None = None) -> Subnet:
    """A subnet that nobody else has: a certain one such as "127.20.7", or a random one.

    Raises ValueError for a prefix that is none, MissingServerError when it is taken.
    """
    if prefix is not None:
        check_prefix(prefix)
    for candidate in [prefix] if prefix is not None else random_prefixes(random.Random()):
        claim = _claim(candidate)
        if claim is not None:
            return Subnet(candidate, claim)
    raise MissingServerError(f"the subnet {prefix or '127.X.Y'} is taken, or not local here")


def random_prefixes(source: random.Random) -> Iterator[str]:
    """Prefixes to try. 127.0 is left out: resolvers and distributions have addresses there."""
    for _ in range(_TRIES_MAX):
        yield f"127.{source.randint(1, 254)}.{source.randint(1, 254)}"


def check_prefix(prefix: str) -> None:
    """Raise ValueError unless this is 127 and two numbers more."""
    match = re.fullmatch(r"127\.(\d{1,3})\.(\d{1,3})", prefix)
    if match is None or any(int(part) > 255 for part in match.groups()):
        raise ValueError(f"a subnet looks like 127.20.7, not like {prefix!r}")


def _claim(prefix: str) -> socket.socket | None:
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        claim.bind((f"{prefix}.{_CLAIM_HOST}", _CLAIM_PORT))
    except OSError:
        claim.close()
        return None
    return claim


def answers(address: str, port: int, *, seconds: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=seconds):
            return True
    except OSError:
        return False


def joined(addresses: Iterable[str], port: int) -> str:
    """The addresses with their port, as clients take them: "127.1.2.1:2181,127.1.2.2:2181"."""
    return ",".join(f"{address}:{port}" for address in addresses)
