"""The schema files: where they are found, and the order of migrations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cassq.catalog import schema_files
from cassq.errors import BrokenInvariantError, ConfigError


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_source_tree_has_the_schema_of_the_sqlite_catalog() -> None:
    assert "create table" in schema_files.read("sqlite.sql").lower()


def test_every_migration_of_this_source_tree_can_be_read() -> None:
    for migration in schema_files.migrations("sqlite"):
        assert schema_files.read(migration.name).strip(), migration.name


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.sql.*install cassq again"):
        schema_files.read("absent.sql", directory=tmp_path)


def test_migrations_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path / "sqlite/0003_groups.sql")
    write(tmp_path / "sqlite/0002_leases.sql", "alter table pipes add column lease")
    steps = schema_files.migrations("sqlite", directory=tmp_path)
    assert steps == [(2, "sqlite/0002_leases.sql"), (3, "sqlite/0003_groups.sql")]
    assert "alter" in schema_files.read(steps[0].name, directory=tmp_path)
    assert schema_files.latest_version("sqlite", directory=tmp_path) == 3


def test_a_backend_without_migrations_is_at_the_first_version(tmp_path: Path) -> None:
    assert schema_files.migrations("sqlite", directory=tmp_path) == []
    assert schema_files.latest_version("sqlite", directory=tmp_path) == 1


@pytest.mark.parametrize(
    "names",
    [
        ["0002_leases.sql", "0004_groups.sql"],
        ["0002_leases.sql", "0002_groups.sql"],
        ["0001_first.sql"],
        ["2_leases.sql"],
        ["0002_leases.sql.orig"],
    ],
)
def test_a_gap_a_double_or_a_misnamed_migration_is_refused(
    tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        write(tmp_path / "sqlite" / name)
    with pytest.raises(BrokenInvariantError):
        schema_files.migrations("sqlite", directory=tmp_path)


def test_an_installed_package_finds_the_schema_inside_itself(tmp_path: Path) -> None:
    write(tmp_path / "cassq/schema/sqlite.sql")
    write(tmp_path / "schema/sqlite.sql")
    assert schema_files.find_directory(tmp_path / "cassq") == tmp_path / "cassq/schema"


def test_a_source_tree_finds_the_schema_beside_the_package(tmp_path: Path) -> None:
    write(tmp_path / "schema/sqlite.sql")
    write(tmp_path / "pyproject.toml")
    assert schema_files.find_directory(tmp_path / "cassq") == tmp_path / "schema"


def test_the_schema_of_another_project_beside_an_installed_package_is_not_taken(
    tmp_path: Path,
) -> None:
    write(tmp_path / "schema/__init__.py")
    with pytest.raises(ConfigError, match="install cassq again"):
        schema_files.find_directory(tmp_path / "cassq")


COMPACTIONS = {
    "rewritten": "LeveledCompactionStrategy",
    "passing": "LeveledCompactionStrategy",
    "lasting": "SizeTieredCompactionStrategy",
    "frames": "SizeTieredCompactionStrategy",
}
TABLE = re.compile(r"CREATE TABLE (?P<name>\w+) \(  -- (?P<kind>\w+)\n(?P<rest>[^;]*);")


def test_each_table_on_cassandra_says_how_it_is_kept_on_disk() -> None:
    text = schema_files.read("cassandra.cql")
    # Column comments may hold a semicolon; what they say is not looked at.
    code = re.sub(r"(?<=\S)  +--(?! (?:rewritten|passing|lasting|frames)\n).*", "", text)
    found = {match["name"]: match for match in TABLE.finditer(code)}
    assert sorted(found) == sorted(re.findall(r"CREATE TABLE (\w+)", code))
    for match in found.values():
        assert f"compaction = {{'class': '{COMPACTIONS[match['kind']]}'" in match["rest"], match
