"""Optional packages: the error when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cassq.errors import MissingExtraError

# What a cassandra: URL needs.
CASSANDRA = ("cassandra: URLs need", "cassandra-driver", "cassandra")
# What a URL with store=sidecar needs, and what running a sidecar needs.
SIDECAR = ("store=sidecar needs", "msgspec", "sidecar")
SIDECAR_SERVER = ("a sidecar needs", "rocksdict", "sidecar-server")
# What `cassq gateway` needs.
GATEWAY = ("the gateway needs", "httptools", "gateway")


@contextmanager
def wanted(who_needs: str, package: str, extra: str) -> Iterator[None]:
    """Wraps an import: if it fails, raises MissingExtraError with the command that installs it.

    who_needs: a subject and its verb, as "metrics need". extra: the name of cassq's extra.
    """
    try:
        yield
    except ImportError as exc:
        raise MissingExtraError(
            f"{who_needs} the package {package}", hint=f"pip install 'cassq[{extra}]'"
        ) from exc
