"""The servers' jars: fetched once through Maven by the coordinates of a pom, then kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.servers.parts.errors import MissingServerError
from tests.servers.parts.java import INSTALL

HERE = Path(__file__).parents[1]
DOWNLOAD_SECONDS_MAX = 600
CACHE_VARIABLE = "CASSQ_SERVERS_CACHE"


def cache_directory() -> Path:
    """Where jars stay between runs: $CASSQ_SERVERS_CACHE, or a folder of the user's cache."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cassq-servers"


def pom_of(kind: str) -> Path:
    """What names the jars of a kind of server that is started here."""
    return HERE / f"{kind}-pom.xml"


def version(pom: Path) -> str:
    """The version that a pom pins, of its first dependency."""
    pinned = ElementTree.parse(pom).find(".//{*}dependency/{*}version")
    assert pinned is not None
    assert pinned.text is not None
    return pinned.text


def jar_directory(kind: str, pom: Path | None = None) -> Path:
    """The directory of a kind's jars, whether they were fetched yet or not: one for each pom."""
    pom = pom or pom_of(kind)
    mark = hashlib.sha256(pom.read_bytes()).hexdigest()[:8]
    return cache_directory() / f"{kind}-{version(pom)}-{mark}"


def fetch(kind: str, pom: Path | None = None) -> Path:
    """The directory with the jars of a kind of server, filled by Maven the first time.

    pom: that of a kind which is not started from here.

    Any number of processes may ask at once: one fetches, the others wait for it. Raises
    MissingServerError. Cost: one `stat` when they are there, else a download of up to 70 MB.
    """
    pom = pom or pom_of(kind)
    jars = jar_directory(kind, pom)
    if jars.exists():
        return jars
    mvn = shutil.which("mvn")
    if mvn is None:
        raise MissingServerError(
            f"{kind}'s jars come through Maven: no mvn on the PATH ({INSTALL})"
        )
    # One lock for all kinds: Maven's own repository is not made for two at once.
    with exclusively("fetch"):
        if not jars.exists():
            _run_maven(mvn, kind, pom, jars)
    return jars


def _run_maven(mvn: str, kind: str, pom: Path, jars: Path) -> None:
    fresh = jars.with_name(f"{jars.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)  # of one that was killed; the lock is ours
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}", "-DincludeScope=runtime"]
    try:
        fetched = subprocess.run(
            [mvn, "-q", "-B", "-f", str(pom), *goal],
            check=False,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS_MAX,
        )
        if fetched.returncode != 0:
            said = " ".join((fetched.stdout + fetched.stderr).split())[:400]
            raise MissingServerError(f"Maven could not fetch {kind}'s jars: {said}")
        # The rename makes a half-fetched directory impossible.
        fresh.rename(jars)
    except subprocess.TimeoutExpired as error:
        raise MissingServerError(f"Maven took more than {DOWNLOAD_SECONDS_MAX} s") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def class_path(jars: Path) -> str:
    """Every jar by name, sorted: with a `*` the order is the directory's, and the JVM refuses a
    class archive that was made in another."""
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))


@contextmanager
def exclusively(what: str) -> Iterator[None]:
    """Hold a lock of the cache; the kernel lets go of a dead holder's."""
    place = cache_directory()
    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{what}.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
