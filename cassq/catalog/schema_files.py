"""The schema files: finds and reads the files of `schema/`, in a wheel or in a source tree.

`schema/<backend>.sql` (or `.cql`) is the full current schema of a new store;
`schema/<backend>/NNNN_name.sql` upgrades a store from version NNNN - 1 to NNNN. A new store has
the version of the last migration, or version 1 while there is none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from cassq.errors import BrokenInvariantError, ConfigError

FIRST_VERSION = 1

_MIGRATION = re.compile(r"(?P<version>\d{4})_[a-z0-9_]+\.(sql|cql)")


class Migration(NamedTuple):
    """One step from `version - 1` to `version`; `read(name)` gives its statements."""

    version: int
    name: str


def read(name: str, *, directory: Path | None = None) -> str:
    """The text of one schema file, such as `sqlite.sql` or `sqlite/0002_leases.sql`.

    Raises ConfigError if the installation has no such file. Cost: one small file read.
    """
    path = (directory or find_directory()) / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the schema file {name} cannot be read from {path.parent}: {error.strerror}",
            hint="the installation is incomplete: install cassq again",
        ) from error


def migrations(backend: str, *, directory: Path | None = None) -> list[Migration]:
    """The migrations of a backend, such as `sqlite`, in the order in which they apply.

    Raises BrokenInvariantError if a file is misnamed or a number is missing or used twice.
    """
    folder = (directory or find_directory()) / backend
    if not folder.is_dir():
        return []
    steps = []
    for path in sorted(folder.iterdir()):
        match = _MIGRATION.fullmatch(path.name)
        if match is None:
            raise BrokenInvariantError(f"{path} is not named like a migration, NNNN_name.sql")
        steps.append(Migration(int(match["version"]), f"{backend}/{path.name}"))
    found = [step.version for step in steps]
    expected = list(range(FIRST_VERSION + 1, FIRST_VERSION + 1 + len(steps)))
    if found != expected:
        raise BrokenInvariantError(f"the migrations in {folder} are {found}, not {expected}")
    return steps


def latest_version(backend: str, *, directory: Path | None = None) -> int:
    """The version that `<backend>.sql` describes and migrations lead to."""
    steps = migrations(backend, directory=directory)
    return steps[-1].version if steps else FIRST_VERSION


def find_directory(package: Path | None = None) -> Path:
    """The directory of the schema files that belong to the package's directory.

    A wheel has it inside the package; in a source tree (and so in an editable install) it is beside
    the package. The project file distinguishes a source tree from a site-packages directory, where
    a neighbour named `schema` would belong to another project.
    """
    package = package or Path(__file__).resolve().parents[1]
    inside, beside = package / "schema", package.parent / "schema"
    if inside.is_dir():
        return inside
    if beside.is_dir() and (package.parent / "pyproject.toml").is_file():
        return beside
    raise ConfigError(
        f"the schema files of cassq are missing: neither in {inside} nor in {beside}",
        hint="the installation is incomplete: install cassq again",
    )
