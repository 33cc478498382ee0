"""`celery -A mail cassq`: what is in the queues.

Celery's command imports this when it starts; that also registers URLs that begin with `cassq+`."""

from __future__ import annotations

import click

from cassq.kombu.brokers import broker_of
from cassq.kombu.transport import Transport


@click.command(name="cassq")
@click.pass_context
def queues(ctx: click.Context) -> None:
    """Show how many tasks wait, are delayed, are running, or have failed for good."""
    app = ctx.obj.app
    with app.connection_for_read() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise click.UsageError("the app's broker is not cassq")
        client = broker_of(transport.url).client
        rows: list[tuple[str, object, object, object, object]] = [
            ("queue", "waiting", "delayed", "taken", "dead")
        ]
        for queue in client.queues():
            if queue.name.endswith("~dead"):
                continue
            for group, found in queue.stats().groups.items():
                name = queue.name if group == "default" else f"{queue.name} {group}"
                waiting = found.waiting - found.delayed
                rows.append((name, waiting, found.delayed, found.pending, found.dead))
        wide = max(len(name) for name, *_ in rows)
        for name, *counts in rows:
            click.echo(f"{name:<{wide}}" + "".join(f" {count!s:>9}" for count in counts))
