"""Two languages on one queue: Python pushes orders and pops bills, without a server in between; a
program in JavaScript, or a shell script, makes the bills, through a gateway.

    python examples/two_languages/bills.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import cassq

HERE = Path(__file__).parent
JAVASCRIPT, SHELL = "javascript", "shell"
INSTALL = "npm install --no-audit --no-fund --loglevel=error"
WAIT_SECONDS = 60.0


@contextmanager
def gateway(url: str) -> Iterator[str]:
    """A gateway for the queues at `url`, at a free port; its address."""
    command = [sys.executable, "-m", "cassq", "--url", url, "gateway", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _, _, address = process.stdout.readline().strip().partition("=")
        try:
            yield address
        finally:
            process.terminate()


def consumer_of(language: str, work: Path) -> list[str]:
    """The command of the consumer, in a folder in which it may be installed."""
    for program in HERE.glob("consumer*"):
        shutil.copy(program, work)
    if language == SHELL:
        return ["sh", "consumer.sh"]
    shutil.copy(HERE / "package.json", work)
    click.echo("installing @aws-sdk/client-sqs and sqs-consumer")
    subprocess.run(INSTALL.split(), cwd=work, check=True)
    return ["node", "consumer.mjs"]


@contextmanager
def running(command: list[str], work: Path, address: str) -> Iterator[None]:
    """A consumer that knows the gateway's address, as any program of an AWS SDK does."""
    environ = {
        "AWS_ENDPOINT_URL_SQS": address,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }
    with subprocess.Popen(command, cwd=work, env={**os.environ, **environ}) as process:
        try:
            yield
        finally:
            process.terminate()


def bills_for(client: cassq.Client, count: int) -> set[str]:
    """Push orders, and pop their bills."""
    with client.queue("orders").pusher() as pusher:
        pusher.push_many([f"order {number}".encode() for number in range(count)])
    click.echo(f"{count} orders are pushed")
    bills: set[str] = set()
    with client.queue("bills").popper() as popper:
        while len(bills) < count and (messages := popper.pop(100, wait=WAIT_SECONDS)):
            bills |= {message.payload.decode() for message in messages}
            popper.commit(messages)
    return bills


def left_after_a_while(queue: cassq.Queue) -> int:
    """How many messages are not deleted: the last bills came before their orders were."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        group = queue.stats().groups["default"]
        left = group.waiting + group.pending
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


@click.command()
@click.option("--orders", type=click.IntRange(1), default=500, show_default=True, help="How many.")
@click.option(
    "--language",
    type=click.Choice([JAVASCRIPT, SHELL]),
    default=JAVASCRIPT if shutil.which("npm") else SHELL,
    help="Who makes the bills; JavaScript if npm is there.",
)
def main(orders: int, language: str) -> None:
    """Have orders that Python pushed billed in another language."""
    with tempfile.TemporaryDirectory(prefix="cassq-two-languages-") as name:
        work = Path(name)
        url = f"file://{work / 'queues'}"
        with cassq.connect(url) as client, gateway(url) as address:
            for queue in ("orders", "bills"):
                client.create_queue(queue)
            with running(consumer_of(language, work), work, address):
                bills = bills_for(client, orders)
                left = left_after_a_while(client.queue("orders"))
    missing = {f"bill {number}" for number in range(orders)} - bills
    if missing or left:
        raise click.ClickException(f"{len(missing)} bills are missing, {left} orders are left")
    click.echo(f"{len(bills)} bills came back. Everything is as expected")


if __name__ == "__main__":
    main()
