"""The handshake: which clients are admitted, and the answer that they get."""

from __future__ import annotations

import hmac
from typing import NamedTuple

from cassq.extents.protocol.messages import VERSION, Code, Hello, RefusedError, Welcome
from cassq.extents.protocol.wire import MESSAGE_BYTES_MAX

WINDOW_BYTES = 8 * 1024 * 1024


class Handshake(NamedTuple):
    """A sidecar's identity, and the credentials that clients need. tokens: the valid ones, two
    while the token is being changed; empty if clients need none."""

    sidecar: str
    generation: str
    zone: str
    cluster: str
    tokens: tuple[str, ...] = ()
    window_bytes: int = WINDOW_BYTES
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def __repr__(self) -> str:
        """Never shows a token."""
        tokens = len(self.tokens) or "none"
        return f"Handshake({self.sidecar!r} of {self.cluster!r}, tokens: {tokens})"

    def admit(self, hello: Hello) -> Welcome:
        """The welcome of an admitted client. Raises RefusedError for others."""
        if hello.version != VERSION:
            raise RefusedError(
                Code.VERSION,
                f"this sidecar speaks version {VERSION} of the protocol, not {hello.version}",
                version=VERSION,
            )
        if self.tokens and not self._has(hello.token):
            why = "the token is wrong" if hello.token else "a token is needed"
            raise RefusedError(Code.TOKEN, why)
        if hello.cluster and hello.cluster != self.cluster:
            raise RefusedError(
                Code.CLUSTER,
                f"this sidecar belongs to catalog {self.cluster}, not to {hello.cluster}",
            )
        return Welcome(
            VERSION,
            self.sidecar,
            self.generation,
            self.zone,
            self.window_bytes,
            self.message_bytes_max,
        )

    def _has(self, given: str) -> bool:
        return any(hmac.compare_digest(given.encode(), token.encode()) for token in self.tokens)
