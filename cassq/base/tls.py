"""TLS: encryption of connections to servers, from a URL's options; and where it matters."""

from __future__ import annotations

import errno
import ipaddress
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cassq.errors import ConfigError

# How far the servers' certificates are verified.
LEVELS = ("full", "ca", "no")


def tls_of(options: Mapping[str, str], prefix: str = "") -> ssl.SSLContext | None:
    """How to encrypt; None means not at all. prefix: the prefix of these options' names.

    `tls=full` (or 1): the server must have a certificate for its address, from an authority in the
    file `ca=` or known to this machine. `tls=ca`: the same without checking the address. `cert=`
    and `key=`: the client's own. Naming any of these files turns tls on.
    """
    tls, ca, cert, key = (f"{prefix}{name}" for name in ("tls", "ca", "cert", "key"))
    files = {name: options[name] for name in (ca, cert, key) if name in options}
    value = options.get(tls, "full" if files else "no")
    level = {"1": "full", "true": "full", "yes": "full", "0": "no", "false": "no"}.get(value, value)
    if level not in LEVELS:
        raise ConfigError(f"{tls} must be one of {', '.join(LEVELS)}, not {value!r}")
    if level == "no":
        if files:
            raise ConfigError(f"{tls} is off, but the URL has {min(files)}=")
        return None
    if key in files and cert not in files:
        raise ConfigError(f"the URL has {key}=, but no {cert}=")
    with loading({f"{name}={path}": Path(path) for name, path in files.items()}):
        context = ssl.create_default_context(cafile=files.get(ca))
        context.check_hostname = level == "full"
        if cert in files:
            load_own(context, files[cert], files.get(key))
    return context


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_own(context: ssl.SSLContext, cert: str | Path, key: str | Path | None) -> None:
    """Load the certificate to present, without asking at the terminal for a pass phrase."""
    context.load_cert_chain(cert, key, password=_no_pass_phrase)


def _no_pass_phrase() -> str:
    raise OSError(errno.EACCES, "its key has a pass phrase")


@contextmanager
def loading(files: Mapping[str, Path]) -> Iterator[None]:
    """Raises ConfigError for PEM files that are missing, or that its block cannot load. files: by
    the option as the user wrote it."""
    for option, path in files.items():
        if not path.is_file():
            raise ConfigError(f"{option}: there is no such file")
    try:
        yield
    except (ssl.SSLError, OSError) as exc:
        raise ConfigError(
            f"{', '.join(files)} cannot be used: {exc.strerror or exc}",
            hint="they are PEM files: a certificate, or a key without a pass phrase",
        ) from exc
