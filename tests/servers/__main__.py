"""The command: `python -m tests.servers VERB ...`, real servers for tests and for trying things.

Needs Linux, and for all but sidecars Java 17 and Maven. Servers listen on loopback addresses of
their own, so clusters of several users and runs do not meet. Jars stay in $CASSQ_SERVERS_CACHE, or
in the user's cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.servers import registry
from tests.servers.cluster import Cluster
from tests.servers.kinds import cassandra, hazelcast, sidecar, zookeeper
from tests.servers.kinds.cassandra_config import COMMITLOG_SYNCS, CassandraSettings
from tests.servers.kinds.hazelcast import SESSION_SECONDS, HazelcastCluster
from tests.servers.kinds.sidecar import REPLICAS, SidecarCluster
from tests.servers.kinds.zookeeper import ZooKeeperCluster
from tests.servers.parts import jars
from tests.servers.parts.errors import MissingServerError, ServerFailedError
from tests.servers.supervisor import supervise

# Those whose jars are fetched.
KINDS = ("cassandra", "zookeeper", "hazelcast")

FAILED, USAGE, MISSING = 1, 2, 3
EXITS = f"Exit codes: 0, {FAILED} a server failed, {USAGE} a wrong call, {MISSING} no such server."

NODE_VERBS = {
    "kill": "end nodes at once (SIGKILL)",
    "pause": "stop the clock of nodes (SIGSTOP)",
    "resume": "let paused nodes run on (SIGCONT)",
    "cut": "cut nodes off from all others; the cluster must be up with --partitions",
    "restart": "start nodes with the data they have, after a polite stop if they run",
}


def main(arguments: list[str] | None = None) -> int:
    """Do one verb; the exit code."""
    parser = make_parser()
    given = sys.argv[1:] if arguments is None else arguments
    asked = parser.parse_args(given)
    try:
        return int(asked.act(asked))
    except ValueError as error:
        parser.error(str(error))
    except MissingServerError as error:
        print(f"not to be had here: {error}", file=sys.stderr)
        return MISSING
    except ServerFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return FAILED


# --- the verbs and their options ------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.servers",
        description=__doc__,
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    fetch = verbs.add_parser("fetch", help="fetch the jars, which `up` would do as well")
    fetch.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all")
    fetch.set_defaults(act=do_fetch)
    up = verbs.add_parser("up", help="start a cluster, wait until it is ready, and keep it")
    kinds = up.add_subparsers(metavar="KIND", required=True, dest="kind")
    _add_cassandra(kinds.add_parser("cassandra", help="Cassandra"))
    _add_zookeeper(kinds.add_parser("zookeeper", help="ZooKeeper"))
    _add_hazelcast(kinds.add_parser("hazelcast", help="Hazelcast; from three nodes on with CP"))
    _add_sidecar(kinds.add_parser("sidecar", help="storage sidecars, of zones a to d"))
    for verb, summary in NODE_VERBS.items():
        each = _add_request(verbs, verb, summary)
        each.add_argument("nodes", nargs="+", type=int, metavar="NODE", help="from 1 on")
    _add_request(verbs, "status", "show a cluster")
    _add_request(verbs, "heal", "undo every cut")
    _add_request(verbs, "mend", "heal, resume and restart what is not running; wait for the whole")
    logs = _add_request(verbs, "logs", "print what the nodes logged")
    logs.add_argument("nodes", nargs="*", type=int, metavar="NODE", help="from 1 on; all")
    down = _add_request(verbs, "down", "end a cluster")
    down.add_argument("cluster", nargs="?", metavar="NAME", help="the same as --name")
    listed = verbs.add_parser("list", help="name the clusters that are up")
    listed.set_defaults(act=do_list)
    return parser


def _add_request(verbs: Any, verb: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(verb, help=summary, description=summary)
    parser.add_argument("--name", help="which cluster; not needed when one is up")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(act=do_request, verb=verb, nodes=[], cluster=None)
    return parser


def _add_common(parser: argparse.ArgumentParser, nodes_max: int) -> None:
    parser.add_argument("--nodes", type=int, default=1, help=f"1 to {nodes_max}; default 1")
    parser.add_argument("--name", help="what the other verbs call it; default: its kind")
    parser.add_argument(
        "--home",
        type=Path,
        help="keep the files there, to go on with them (and the same --subnet) another time",
    )
    parser.add_argument("--subnet", help="such as 127.20.7; default: a free one, at random")
    parser.add_argument(
        "--partitions",
        action="store_true",
        help="a network namespace for each node, so that `cut` works; only root may",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in one line")
    parser.add_argument(
        "--detach",
        action="store_true",
        help="return when it is ready; `down` ends it. Otherwise it runs until Ctrl-C or SIGTERM",
    )
    parser.set_defaults(act=do_up)


def _add_cassandra(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, cassandra.CassandraCluster.nodes_max)
    parser.add_argument(
        "--commitlog-sync",
        choices=COMMITLOG_SYNCS,
        default="periodic",
        help="periodic (the default) may lose the last writes of a killed node, the others none",
    )
    parser.add_argument(
        "--authentication", action="store_true", help="log in as cassandra, password cassandra"
    )
    parser.add_argument(
        "--data-centers", metavar="N,N", help="how many nodes dc1, dc2, ... have; all in dc1"
    )
    parser.add_argument("--heap-mib", type=int, default=CassandraSettings.heap_mib, metavar="N")
    parser.add_argument(
        "--full-jit", action="store_true", help="for throughput; twice the CPU time of a start"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line of cassandra.yaml, the value as JSON or a word; may be repeated",
    )
    parser.set_defaults(make=_make_cassandra)


def _add_zookeeper(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, ZooKeeperCluster.nodes_max)
    parser.set_defaults(make=lambda a: zookeeper.cluster(a.nodes, **_place(a)))


def _add_hazelcast(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, HazelcastCluster.nodes_max)
    parser.add_argument(
        "--session-seconds",
        type=int,
        default=SESSION_SECONDS,
        metavar="N",
        help=f"until the locks of a silent client pass on; default {SESSION_SECONDS}",
    )
    parser.set_defaults(
        make=lambda a: hazelcast.cluster(a.nodes, session_seconds=a.session_seconds, **_place(a))
    )


def _add_sidecar(parser: argparse.ArgumentParser) -> None:
    _add_common(parser, SidecarCluster.nodes_max)
    parser.add_argument("--catalog", default="", metavar="URL", help="default: one of their own")
    parser.add_argument(
        "--replicas", type=int, default=REPLICAS, metavar="N", help=f"default {REPLICAS}"
    )
    parser.add_argument(
        "--disk-mib",
        type=int,
        default=0,
        metavar="N",
        help="a disk of its own for each, in memory; only root may",
    )
    parser.set_defaults(
        make=lambda a: sidecar.cluster(
            a.nodes,
            catalog=a.catalog,
            replicas=a.replicas,
            disk_bytes=a.disk_mib << 20,
            **_place(a),
        )
    )


def _make_cassandra(asked: argparse.Namespace) -> Cluster[Any]:
    found = asked.data_centers
    return cassandra.cluster(
        asked.nodes,
        **_place(asked),
        commitlog_sync=asked.commitlog_sync,
        authentication=asked.authentication,
        data_centers=tuple(int(count) for count in found.split(",")) if found else (),
        heap_mib=asked.heap_mib,
        full_jit=asked.full_jit,
        options=dict(parsed_option(each) for each in asked.option),
    )


def _place(asked: argparse.Namespace) -> dict[str, Any]:
    return {"home": asked.home, "subnet": asked.subnet, "partitions": asked.partitions}


def parsed_option(text: str) -> tuple[str, Any]:
    """`key=value`, the value as JSON where it is some, else as the word it is."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"an option looks like KEY=VALUE, not like {text!r}")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


# --- what they do ---------------------------------------------------------------------------------


def do_fetch(asked: argparse.Namespace) -> int:
    for kind in asked.kinds or KINDS:
        if kind not in KINDS:
            raise ValueError(f"there is no kind {kind!r}; there are {', '.join(KINDS)}")
        place = jars.fetch(kind)
        if kind == "cassandra":
            cassandra.make_archive()
        print(f"{kind} {jars.version(jars.pom_of(kind))}: {place}")
    return 0


def do_up(asked: argparse.Namespace) -> int:
    cluster = asked.make(asked)
    name = registry.checked(asked.name or asked.kind)
    if asked.detach:
        return _detach(name, asked)
    supervise(name, cluster, lambda status: show(status, as_json=asked.json))
    return 0


def _detach(name: str, asked: argparse.Namespace) -> int:
    """Run the same call without `--detach` in a session of its own, until it is ready."""
    given = [word for word in sys.argv[1:] if word not in ("--detach", "--json")]
    log = registry.directory() / f"{name}.log"
    with log.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "tests.servers", *given, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    assert started.stdout is not None
    with started.stdout as found:
        line = found.readline()
    if not line:
        print(log.read_text().strip(), file=sys.stderr)
        return started.wait()
    show(json.loads(line), as_json=asked.json)
    return 0


def do_request(asked: argparse.Namespace) -> int:
    name = registry.chosen(asked.cluster or asked.name)
    answer = registry.ask(name, {"verb": asked.verb, "nodes": asked.nodes})
    if asked.verb == "logs" and not asked.json:
        print(answer["logs"], end="")
    else:
        show(answer, as_json=asked.json)
    return 0


def do_list(asked: argparse.Namespace) -> int:
    print("".join(f"{name}\n" for name in registry.names()), end="")
    return 0


def show(status: dict[str, Any], *, as_json: bool) -> None:
    """Print what is known of a cluster; in JSON in one line."""
    if as_json:
        print(json.dumps(status), flush=True)
        return
    for key, value in status.items():
        if key != "nodes":
            words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            print(f"{key:15} {words}")
    for number, node in enumerate(status.get("nodes", []), 1):
        text = f"pid {node['pid']}, {node['memory_mib']} MiB" if "pid" in node else ""
        mode = node.get("mode", "")
        print(f"node {number:<10} {node['address']:15} {node['state']:8} {text} {mode}".rstrip())
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
