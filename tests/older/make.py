"""`python -m tests.older.make`: makes places as the version does that is here, to be kept.

It writes `directory.tar.xz`, `sidecars.tar.xz` and `keyspace.xz` beside this file. A place that is
kept is not made anew, but by hand in another folder: what an earlier version made is the point.
"""

from __future__ import annotations

import json
import lzma
import multiprocessing
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cassandra.cluster import Cluster, Session

import cassq
from tests.older.content import fill, hold
from tests.servers.kinds import cassandra, sidecar

HERE = Path(__file__).parent
KEYSPACE = "older"


def make(url: str) -> None:
    """Fill a place, and leave a claim of a process that is gone."""
    for step in (_fill, _hold):
        process = multiprocessing.get_context("spawn").Process(target=step, args=(url,))
        process.start()
        process.join()
        assert process.exitcode == 0, step


def _fill(url: str) -> None:
    with cassq.connect(url) as client:
        fill(client)


def _hold(url: str) -> None:
    hold(cassq.connect(url))
    os._exit(0)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        make(f"file:{home}/directory")
        pack(home, ["directory"], "directory")
        with sidecar.cluster(nodes=3, home=home / "sidecars") as sidecars:
            make(sidecars.url())
        for node in (home / "sidecars").glob("node*"):
            for extra in node.iterdir():
                if extra.name != "data":
                    extra.unlink() if extra.is_file() else shutil.rmtree(extra)
        pack(home, ["sidecars/catalog", *(f"sidecars/node{n}/data" for n in (1, 2, 3))], "sidecars")
    with cassandra.cluster(nodes=1) as node:
        url = node.url(KEYSPACE)  # type: ignore[attr-defined]
        apply = ["schema", "apply", "--replication", "1", "--url", url]
        subprocess.run([sys.executable, "-m", "cassq", *apply], check=True)
        make(url)
        with lzma.open(HERE / "keyspace.xz", "wt") as file:
            for line in lines(url):
                file.write(json.dumps(line) + "\n")


def pack(home: Path, folders: list[str], name: str) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
        for folder in folders:
            archive.add(home / folder, folder, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders of nobody; not doorbells, which are made anew, nor what RocksDB logged."""
    member.uname = member.gname = ""
    wanted = member.isdir() or (member.isreg() and Path(member.name).name != "LOG")
    return member if wanted else None


@contextmanager
def session_of(url: str) -> Iterator[Session]:
    """A bare session of the driver with a node, in the keyspace that the URL names, if any."""
    host, _, keyspace = url.removeprefix("cassandra://").partition("/")
    with Cluster(host.split(",")) as cluster:
        yield cluster.connect(keyspace or None)


def lines(url: str) -> Iterator[list[str]]:
    """A keyspace: the statements that make its tables, and (table, JSON) of each row."""
    with session_of(url) as session:
        tables = session.cluster.metadata.keyspaces[session.keyspace].tables
        yield [tables[name].as_cql_query() for name in sorted(tables)]
        for name in sorted(tables):
            for row in session.execute(f"SELECT JSON * FROM {name}"):
                yield [name, row[0]]


if __name__ == "__main__":
    main()
