"""The address of a lock service: `zookeeper://user:password@h1:2181,h2:2181/cassq?session=10`.
And whether anything listens there, which distinguishes a server that is down from one that refuses.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Collection, Iterable
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from cassq.errors import ConfigError

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::(\d{1,5}))?")
_PORT_MAX = 65535
_CONNECT_SECONDS_MAX = 1.0


class LockAddress(NamedTuple):
    """A parsed URL of locks.

    hosts: each with its port. path: without slashes at its ends. user, password: "" for none.
    """

    scheme: str
    hosts: tuple[str, ...]
    path: str
    user: str
    password: str
    options: dict[str, str]

    def shown(self) -> str:
        """The URL without its password."""
        who = f"{self.user}:...@" if self.user else ""
        return f"{self.scheme}://{who}{','.join(self.hosts)}/{self.path}"

    def seconds(self, name: str, default: float, least: float, most: float) -> float:
        """An option in seconds. Raises ConfigError unless it is a number in these bounds."""
        text = self.options.get(name)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise ConfigError(
                f"{self.shown()}: {name}={text} is not a number of seconds from {least:g} to"
                f" {most:g}"
            )
        return value


def parse(url: str, *, port: int, options: Collection[str]) -> LockAddress:
    """The parts of a URL; hosts without a port get `port`.

    Raises ConfigError, which never shows a password.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    place, _, path = rest.partition("/")
    who, at, listed = place.rpartition("@")
    user, colon, password = who.partition(":")
    if at and not (user and colon and password):
        raise ConfigError(
            f"the URL {scheme}://...@{listed}/{path} has no user and password before the @",
            hint=f"write {scheme}://user:password@host/{path}; %40 is an @ in a password",
        )
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(options))
    if unknown:
        raise ConfigError(
            f"the URL {scheme}://{listed}/{path} has an unknown option {unknown[0]!r}",
            hint=f"it may have {', '.join(sorted(options))}",
        )
    hosts = tuple(_host(each.strip(), port, f"{scheme}://{listed}") for each in listed.split(","))
    return LockAddress(scheme, hosts, path.strip("/"), unquote(user), unquote(password), given)


def _host(text: str, port: int, shown: str) -> str:
    match = _HOST.fullmatch(text)
    number = int(match[2] or port) if match else 0
    if not match or not 0 < number <= _PORT_MAX:
        raise ConfigError(
            f"{text!r} in {shown} is not a host with a port",
            hint=f"write host:{port}, with commas between several",
        )
    return f"{match[1]}:{number}"


def any_reachable(hosts: Iterable[str]) -> bool:
    """Whether any of these `host:port` takes a connection. Cost: at most a second per host."""
    for each in hosts:
        host, _, port = each.rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS_MAX).close()
            return True
    return False
