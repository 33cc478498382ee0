"""The package: what a wheel holds, what `import cassq` loads, and who may import whom."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from cassq.version import __version__

ROOT = Path(__file__).resolve().parents[3]

# Drivers, optional packages, and parts of the standard library that take long to load.
NOT_LOADED = {
    *("cassandra", "click", "confluent_kafka", "grpc", "hazelcast", "kazoo", "lz4", "matplotlib"),
    *("numpy", "pandas", "prometheus_client", "pyarrow", "pyspark", "rich", "rocksdict"),
    *("msgpack", "msgspec", "zstandard"),
    *("asyncio", "email", "http", "importlib.metadata", "multiprocessing", "pkg_resources"),
    *("ssl", "unittest", "urllib.request"),
}


def run(*command: str | Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def output(*command: str | Path, cwd: Path = ROOT, **env: str) -> str:
    done = run(*command, cwd=cwd, **env)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this source tree, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    no_network = ("--no-deps", "--no-build-isolation", "--no-index")
    output(sys.executable, "-m", "pip", "wheel", *no_network, "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has the wheel, and borrows its dependencies."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    options = ("--no-deps", "--no-index", "--no-compile")
    output(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
    # Dependencies come from this environment, behind the fresh one's own. The editable install
    # that may be here is not among them: a .pth file inside a directory so added is not read.
    (packages,) = home.glob("lib/python3*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_a_wheel_has_the_schema_the_types_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    schema = {f"cassq/{p.relative_to(ROOT)}" for p in (ROOT / "schema").rglob("*.*ql")}
    assert "cassq/schema/sqlite.sql" in schema
    info = f"cassq-{__version__}.dist-info"
    expected = {*schema, "cassq/py.typed", f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"}
    assert expected <= names, expected - names


def test_a_wheel_is_for_every_python_from_3_11_on(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    assert "Requires-Python: >=3.11" in lines
    for minor in (11, 12, 13, 14):
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in lines


def test_a_wheel_has_every_module_and_nothing_else(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "cassq").rglob("*.py")}
    assert modules <= names
    assert {n for n in names - modules if not n.startswith("cassq/schema/")} == {"cassq/py.typed"}


def test_an_installed_wheel_reads_its_own_schema(installed: Path, tmp_path: Path) -> None:
    script = (
        "from cassq.catalog import schema_files as s;"
        "print(s.find_directory()); print(s.latest_version('sqlite')); print(s.read('sqlite.sql'))"
    )
    where, version, text = output(installed, "-c", script, cwd=tmp_path).split("\n", 2)
    assert Path(where).is_relative_to(installed.parent.parent.resolve())
    assert int(version) == len(list((ROOT / "schema" / "sqlite").glob("*.sql"))) + 1
    assert text.rstrip() == (ROOT / "schema" / "sqlite.sql").read_text().rstrip()


def test_an_installed_wheel_has_the_command(installed: Path, tmp_path: Path) -> None:
    assert __version__ in output(installed.parent / "cassq", "--version", cwd=tmp_path)


def test_a_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    output(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    source = tmp_path / f"cassq-{__version__}"
    for name in ("schema/sqlite.sql", "tests/conftest.py", "setup.cfg", "dev", "CHANGELOG.md"):
        assert (source / name).is_file(), name
    output(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    (again,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_importing_cassq_loads_no_driver_and_nothing_heavy() -> None:
    loaded = set(
        output(sys.executable, "-c", _PRINT_LOADED.format("import cassq; cassq.connect")).split()
    )
    assert "cassq.client.client" in loaded
    assert loaded & NOT_LOADED == set()


def test_what_is_loaded_is_seen() -> None:
    loaded = set(output(sys.executable, "-c", _PRINT_LOADED.format("import asyncio")).split())
    assert "asyncio" in loaded & NOT_LOADED


# What the interpreter itself loads at its start, as for an editable install, is not counted.
_PRINT_LOADED = "import sys; before = set(sys.modules); {}; print(*(set(sys.modules) - before))"


def test_the_changelog_names_this_version() -> None:
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


# --- who may import whom ---------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with the contracts, to break them in."""
    shutil.copytree(ROOT / "cassq", tmp_path / "cassq", ignore=shutil.ignore_patterns("__pyc*"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    # As a module's function and not as the script: the folder comes first on the path.
    script = "import sys; from importlinter.cli import lint_imports_command as c; c()"
    return run(sys.executable, "-c", script, "--no-cache", cwd=folder, PYTHONPATH=str(folder))


def test_the_import_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("cassq/errors.py", "import cassq.base.clock", "The ground imports nothing"),
        ("cassq/message/frames.py", "from cassq import connect", "Imports point downwards only"),
        (
            "cassq/catalog/late.py",
            "from cassq.producer.pusher import Pusher",
            "Imports point downwards",
        ),
        ("cassq/unplaced.py", "", "Imports point downwards only"),
        (
            "cassq/message/frames.py",
            "import cassq.message.ranges\n#",
            "No two modules import each other",
        ),
        ("cassq/base/clock.py", "import kazoo.client", "No driver outside its own adapter"),
        (
            "cassq/client/client.py",
            "def f():\n    import click",
            "No driver outside its own adapter",
        ),
    ],
)
def test_a_forbidden_import_breaks_a_contract(
    copy: Path, module: str, line: str, contract: str
) -> None:
    if contract.startswith("No two"):
        _append(copy / "cassq/message/ranges.py", "import cassq.message.frames")
    _append(copy / module, line)
    done = lint_imports(copy)
    broken = [text for text in done.stdout.splitlines() if "BROKEN" in text]
    assert done.returncode != 0
    assert any(text.startswith(contract) for text in broken), done.stdout + done.stderr


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"\n{line}\n")
