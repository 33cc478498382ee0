"""Exposure: which addresses a sidecar may listen at, and by what it knows its clients."""

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
    """What a sidecar knows its clients by, and is known by itself. tokens: the valid ones, none if
    none is needed. tls: for its clients' connections. access: what it presents to others."""

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
    """The credentials that these files have now; warns if other sidecars that were started with
    the same authority could not copy from this one. token_file: None for the environment's token.
    tls: files, see `server_tls`. Raises ConfigError, which never shows a token."""
    tokens = _tokens(token_file)
    encrypted, others = server_tls(tls), client_tls(tls)
    if encrypted is not None and others is not None and (why := distrust(encrypted, others)):
        logger.warning(
            "this sidecar would not copy from one with the same certificate: %s. If the others'"
            " certificates are from its authority too, no lost replica can be replaced: give"
            " --peer-ca, the authority's certificate",
            why,
        )
    return SidecarCredentials(tokens, encrypted, Access(tokens[0] if tokens else "", others))


def distrust(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Why such a client does not trust such a server, whatever its address; "" if it does. Cost: a
    handshake in memory."""
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
    """Check that strangers cannot get in. token: clients present one. ca: they present
    certificates of its own authority. insecure: the user accepts the risk explicitly.

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
    """How to encrypt as a server; None for not at all. files: `cert` and `key`, and optionally
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
    """How to encrypt towards other sidecars, with the same files. Their certificates must be from
    the authority `peer-ca`, or else `ca`, or else one known to this machine. Raises ConfigError."""
    if not files:
        return None
    given = {name: str(path) for name, path in files.items()}
    if authority := given.pop("peer-ca", ""):
        given["ca"] = authority
    return tls_of({"tls": "full", **given})
