"""Exposure: which addresses a sidecar may listen at, and how its connections are encrypted."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path

from cassq.base.tls import loading, tls_of
from cassq.errors import BackendError, ConfigError
from cassq.extents.sidecar.net.connection import host_and_port


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(listen: str, *, token: str, tls: bool, ca: bool, insecure: bool) -> None:
    """Check that strangers cannot get in. ca: clients present certificates of its own authority.
    insecure: the user accepts the risk explicitly.

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
            f"anyone could connect at {host}: TLS alone keeps nobody out",
            hint="give --token-file, or --ca for certificates of clients",
        )


def server_tls(files: Mapping[str, Path]) -> ssl.SSLContext | None:
    """How to encrypt as a server; None for not at all. files: `cert` and `key`, and optionally
    `ca`, the authority of clients' certificates, which are then required. Raises ConfigError."""
    if not files:
        return None
    for needed in ("cert", "key"):
        if needed not in files:
            raise ConfigError(f"TLS needs --{needed}", hint="give --cert and --key, and maybe --ca")
    with loading({f"--{name} {path}": path for name, path in files.items()}):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files["cert"], files["key"])
        if "ca" in files:
            context.load_verify_locations(files["ca"])
            context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(files: Mapping[str, Path]) -> ssl.SSLContext | None:
    """How to encrypt towards other sidecars, with the same files. Raises ConfigError."""
    if not files:
        return None
    return tls_of({"tls": "full", **{name: str(path) for name, path in files.items()}})
