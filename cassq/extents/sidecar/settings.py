"""Settings of a client of sidecars: how many replicas, how to reach them, how long to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl

REPLICAS = 3
REPLICAS_MAX = 9
LAG_SECONDS = 0.7
PATIENCE_SECONDS = 10.0
REPAIR_AFTER_SECONDS = 600.0
REPAIR_BYTES = 64 * 1024 * 1024


class Settings(NamedTuple):
    """How a client uses sidecars.

    replicas: of each new extent. zone: the client's own; it reads from sidecars there first; "" for
    none. token: the secret that clients and sidecars share; "" for none. tls: how to encrypt; None
    for no TLS. lag: how many seconds a replica may be behind all others. patience: how many
    seconds to wait if none answers. repair_after: how many seconds a sidecar may be silent before
    its replicas are copied elsewhere. repair_rate: how many bytes per second all clients together
    copy.
    """

    replicas: int = REPLICAS
    zone: str = ""
    token: str = ""
    tls: ssl.SSLContext | None = None
    lag: float = LAG_SECONDS
    patience: float = PATIENCE_SECONDS
    repair_after: float = REPAIR_AFTER_SECONDS
    repair_rate: int = REPAIR_BYTES

    def __repr__(self) -> str:
        """Never shows the token."""
        token = "set" if self.token else "none"
        tls = "on" if self.tls else "off"
        return f"Settings(replicas={self.replicas}, zone={self.zone!r}, token {token}, tls {tls})"
