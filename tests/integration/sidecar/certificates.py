"""Certificates for tests, made by openssl: an authority, and what it signed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def authority(directory: Path, name: str = "ca") -> Path:
    """NAME.pem and NAME.key; the certificate's path."""
    _openssl(
        directory,
        f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={name}"
        f" -keyout {name}.key -out {name}.pem -addext keyUsage=critical,keyCertSign",
    )
    return directory / f"{name}.pem"


def signed(directory: Path, name: str, address: str = "127.0.0.1", by: str = "ca") -> None:
    """NAME.pem and NAME.key, for an address of IP, signed by an authority there."""
    _openssl(
        directory,
        f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr",
    )
    (directory / f"{name}.ext").write_text(f"subjectAltName=IP:{address}\n")
    _openssl(
        directory,
        f"x509 -req -in {name}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -days 1"
        f" -extfile {name}.ext -out {name}.pem",
    )


def _openssl(directory: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=directory, check=True, capture_output=True)
