"""Exposure: at which addresses a sidecar may listen, and how it authenticates its clients."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cassq.base.tls import is_loopback, load_own, loading, tls_of
from cassq.client.backends.sidecar_options import TOKEN, TOKEN_CHARACTERS_MAX, TOKEN_VARIABLE
from cassq.errors import BackendError, ConfigError
from cassq.extents.sidecar.net.connection import Access, host_and_port
from cassq.plurals import counted

logger: logging.Logger = logging.getLogger("cassq")


class SidecarCredentials(NamedTuple):
    """How a sidecar authenticates its clients, and itself to other sidecars. tokens: the valid
    ones; empty if clients need none. tls: for its clients' connections; None for no TLS. access:
    what it presents to other sidecars."""

    tokens: tuple[str, ...]
    tls: ssl.SSLContext | None
    access: Access

    def __str__(self) -> str:
        """For logs, without the tokens."""
        tokens = counted(len(self.tokens), "token")
        if self.tls is None:
            return f"{tokens}, no TLS"
        authorities = counted(self.tls.cert_store_stats()["x509_ca"], "CA")
        return f"{tokens}, TLS, {authorities} for clients' certificates"


def read_credentials(token_file: Path | None, tls: Mapping[str, Path]) -> SidecarCredentials:
    """The credentials that these files have now. Logs a warning if this sidecar would not trust
    another with the same certificate, and so could not copy from it. token_file: None for the
    environment's token. tls: files, see `server_tls`. Raises ConfigError, which never shows a
    token."""
    tokens = _tokens(token_file)
    encrypted, others = server_tls(tls), client_tls(tls)
    if encrypted is not None and others is not None and (why := distrust(encrypted, others)):
        logger.warning(
            "this sidecar would not copy from one with the same certificate: %s. If the other"
            " sidecars' certificates are from the same authority, no lost replica can be replaced:"
            " give --peer-ca, the authority's certificate",
            why,
        )
    return SidecarCredentials(tokens, encrypted, Access(tokens[0] if tokens else "", others))


def distrust(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Why a client with this context would not trust a server with that one, even if the host name
    fits; "" if it would. Cost: a handshake in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    named, client.check_hostname = client.check_hostname, False
    asking = client.wrap_bio(to_client, to_server)
    asked = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (asking, asked) * 3:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as exc:
                return exc.verify_message
    except ssl.SSLError as exc:
        return exc.reason or "the handshake fails"
    finally:
        client.check_hostname = named
    return ""


def _tokens(path: Path | None) -> tuple[str, ...]:
    if path is None:
        text, where, tokens_max = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE, 1
        if not text:
            return ()
    else:
        where, tokens_max = f"--token-file {path}", 2
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it is not text"
            raise ConfigError(
                f"{where} cannot be read: {why}", hint="write the token to a file of its own"
            ) from exc
    tokens = tuple(text.splitlines() if path is not None else [text])
    if not (1 <= len(tokens) <= tokens_max and all(map(TOKEN.fullmatch, tokens))):
        raise ConfigError(
            f"{where} is not a valid token",
            hint=f"a token has 1 to {TOKEN_CHARACTERS_MAX} ASCII characters, and no spaces; a file"
            " may have two tokens, one per line",
        )
    return tokens


def check_exposure(listen: str, *, token: bool, tls: bool, ca: bool, insecure: bool) -> None:
    """Check that a sidecar is not open to strangers. token: clients must present one. ca: they must
    present certificates of its own authority. insecure: the user accepts the risk explicitly.

    Raises ConfigError.
    """
    try:
        host, _ = host_and_port(listen)
    except BackendError as exc:
        raise ConfigError(f"--listen: {exc.message}", hint="write --listen HOST:PORT") from exc
    if is_loopback(host) or insecure:
        return
    if not tls:
        why = "the token would be readable on the network" if token else "anyone could connect"
        raise ConfigError(
            f"a sidecar without TLS listens on loopback addresses only, not on {host}: {why}",
            hint="give --cert, --key and either --ca or --token-file;"
            " in a network that you trust: --insecure",
        )
    if not (token or ca):
        raise ConfigError(
            f"anyone could connect at {host}: TLS alone does not authenticate clients",
            hint="give --token-file, or --ca for certificates of clients",
        )


def server_tls(files: Mapping[str, Path]) -> ssl.SSLContext | None:
    """How to encrypt as a server; None for no encryption. files: `cert` and `key`, and optionally
    `ca`, the authority of clients' certificates, which are then required; `peer-ca` is for
    `client_tls`. Raises ConfigError."""
    if not files:
        return None
    for needed in ("cert", "key"):
        if needed not in files:
            raise ConfigError(f"TLS needs --{needed}", hint="give --cert and --key, and maybe --ca")
    with loading({f"--{name} {path}": path for name, path in files.items()}):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_own(context, files["cert"], files["key"])
        if "ca" in files:
            context.load_verify_locations(files["ca"])
            context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(files: Mapping[str, Path]) -> ssl.SSLContext | None:
    """How to encrypt connections to other sidecars, with the same files. Their certificates must be
    from the authority `peer-ca`, or else `ca`, or else one known to this machine. Raises
    ConfigError."""
    if not files:
        return None
    given = {name: str(path) for name, path in files.items()}
    if authority := given.pop("peer-ca", ""):
        given["ca"] = authority
    return tls_of({"tls": "full", **given})
