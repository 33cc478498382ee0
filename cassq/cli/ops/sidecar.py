"""`cassq sidecar`: running a storage sidecar, and looking after the existing ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cassq import extras
from cassq.cli.ops.sidecar_leave import drain, forget
from cassq.cli.ops.sidecars import check, list_, show
from cassq.cli.options import A_FILE, time_option
from cassq.cli.ui import output
from cassq.cli.ui.daemon_log import log_as_daemon
from cassq.cli.verb import Invocation, Verb
from cassq.client.connecting import DEFAULT_URL
from cassq.errors import ConfigError

if TYPE_CHECKING:
    from cassq.sidecar.serving import ServingAddress

FREE_MIN = "2%"
DRAIN = "30s"
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
LARGE_EXAMPLE = (
    "cassq sidecar serve --data /srv/cassq --listen 10.0.0.5:7070 --zone rack1"
    " --catalog cassandra://db1,db2/cassq --token-file /etc/cassq/token"
    " --cert /etc/cassq/node.pem --key /etc/cassq/node.key --peer-ca /etc/cassq/ca.pem"
    " --http 127.0.0.1:7080"
)


@click.group()
def sidecar() -> None:
    """Run a storage sidecar, and look after the existing ones.

    Sidecars keep messages, each on a local disk, if the URL of the queues has `store=sidecar`.
    """


@sidecar.command(
    "serve",
    cls=Verb,
    short_help="Run a storage sidecar until SIGTERM or Ctrl-C.",
    examples=[
        "cassq sidecar serve --data /var/lib/cassq-a --listen 127.0.0.1:7071 --zone a",
        LARGE_EXAMPLE,
    ],
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="The data directory, on a local disk; created if it does not exist.",
)
@click.option(
    "--listen",
    required=True,
    metavar="HOST:PORT",
    help="Where to listen. Without TLS: a loopback address.",
)
@click.option(
    "--zone",
    required=True,
    metavar="ZONE",
    help="Sidecars of one zone may fail together, as in one rack. Replicas are spread over zones.",
)
@click.option(
    "--catalog",
    metavar="URL",
    help="Where the queues are, as for clients. [default: as --url]",
)
@click.option(
    "--name",
    default="",
    help="The sidecar's permanent name.  [default: the name in DIR, or HOST:PORT]",
)
@click.option(
    "--advertise",
    default="",
    metavar="HOST:PORT",
    help="Where clients reach it, if this differs from --listen.",
)
@click.option(
    "--token-file",
    type=A_FILE,
    help="A file with the token that clients must present, or with two valid tokens. Without it,"
    " CASSQ_SIDECAR_TOKEN is the token.",
)
@click.option("--cert", type=A_FILE, help="Its certificate, for TLS.")
@click.option("--key", type=A_FILE, help="The key of the certificate.")
@click.option("--ca", type=A_FILE, help="Clients must present certificates of this authority.")
@click.option(
    "--peer-ca",
    type=A_FILE,
    help="Copy from sidecars with certificates of this authority. [default: --ca, or the system's]",
)
@click.option("--insecure", is_flag=True, help="Listen without TLS in a network that you trust.")
@click.option(
    "--http",
    default="",
    metavar="HOST:PORT",
    help="Serve /health, and /metrics for Prometheus.",
)
@click.option(
    "--free-min",
    default=FREE_MIN,
    show_default=True,
    metavar="SIZE",
    help="Accept no messages while less than this is free on the disk, as in 10GiB or 5%.",
)
@time_option(
    "--drain-seconds", DRAIN, "When it stops, wait this long for writers to move to other sidecars."
)
@time_option(
    "--orphans-after", "1h", "Remove extents that the catalog does not know after this long."
)
@click.pass_obj
def serve(
    call: Invocation,
    data: Path,
    listen: str,
    zone: str,
    catalog: str | None,
    name: str,
    advertise: str,
    token_file: Path | None,
    cert: Path | None,
    key: Path | None,
    ca: Path | None,
    peer_ca: Path | None,
    insecure: bool,
    http: str,
    free_min: str,
    drain_seconds: float,
    orphans_after: float,
) -> None:
    """Run a storage sidecar: keep replicas of messages in DIR, for the clients of one catalog.

    It registers in the catalog, and may be started before the first client. On SIGTERM or Ctrl-C it
    stops after its writers have moved to other sidecars; a second signal ends it at once. If it is
    killed, nothing acknowledged is lost. When it comes back, it reports incomplete replicas. On
    SIGHUP it reads the files of its token and certificates again. It logs to standard error, one
    line per message with its time, or with --json one object per message.

    It listens on loopback addresses only, unless it has TLS and either a token or certificates of
    clients, or --insecure is given.
    """
    with extras.wanted(*extras.SIDECAR_SERVER):
        from cassq.sidecar.rocks import opener
        from cassq.sidecar.serving import SidecarOptions, serve
    given = {"cert": cert, "key": key, "ca": ca, "peer-ca": peer_ca}
    files: Mapping[str, Path] = {which: path for which, path in given.items() if path is not None}
    if not _ZONE.fullmatch(zone):
        raise ConfigError(
            f"{zone!r} is not a valid zone name",
            hint="a zone has 1 to 64 letters, digits, and characters of _.-",
        )
    options = SidecarOptions(
        data=data,
        listen=listen,
        catalog=catalog or call.url or DEFAULT_URL,
        zone=zone,
        name=name,
        advertise=advertise,
        token_file=token_file,
        tls=files,
        insecure=insecure,
        http=http,
        drain_seconds=drain_seconds,
        orphan_ms=round(orphans_after * 1000),
    )

    log_as_daemon(as_json=call.as_json, waits=False)
    serve(options, opener(free_min), ready=partial(_show, call))


def _show(call: Invocation, serving: ServingAddress) -> None:
    if call.as_json:
        output.json_line(
            {"sidecar": serving.name, "address": serving.address, "http": serving.http}
        )
        return
    output.note(f"sidecar {serving.name} serves at {serving.address}, until SIGTERM or Ctrl-C")
    if serving.open_to_all:
        output.note("it has neither token nor TLS: any program that can connect may use it")
    if serving.http:
        output.note(f"health and metrics at http://{serving.http}/health and /metrics")


for _verb in (list_, show, check, drain, forget):
    sidecar.add_command(_verb)
