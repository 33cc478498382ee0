"""`python -m bench.restarting`: how soon a stream of Spark goes on when its driver was killed, and
how soon a new one starts.

Both start in a session that is there and warm; measured is the time from the query's start to the
first batch with messages. The killed drivers are processes of their own, each killed while its
stream runs and holds the group's lease.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click

import cassq
import cassq.spark
from bench.measuring.session import session

FIRST = "the first batch came"
PATIENCE_SECONDS = 300.0
ROOT = Path(__file__).parents[1]


def started(spark: Any, url: str, queue: str, checkpoint: Path, come: threading.Event) -> Any:
    """A query over a queue; `come` is set by its first batch with messages."""

    def take(frame: Any, _number: int) -> None:
        if frame.count():
            come.set()

    frame = spark.readStream.format("cassq").options(url=url, queue=queue).load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def seconds_to_first_batch(spark: Any, url: str, queue: str, checkpoint: Path) -> float:
    """Start a query, wait for its first messages, and stop it."""
    come, began = threading.Event(), time.perf_counter()
    query = started(spark, url, queue, checkpoint, come)
    if not come.wait(PATIENCE_SECONDS):
        raise click.ClickException(f"no batch came: {query.exception()}")
    took = time.perf_counter() - began
    query.stop()
    return took


def killed(url: str, queue: str, checkpoint: Path) -> None:
    """Run a query in a driver of its own until its first batch has come, and kill that."""
    words = [sys.executable, "-m", "bench.restarting", "--follow", url, queue, str(checkpoint)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as driver:
        assert driver.stdout is not None
        line = next((line for line in driver.stdout if FIRST in line), "")
        os.killpg(driver.pid, signal.SIGKILL)
    if not line:
        raise click.ClickException("the driver ended before its first batch")


def follow(url: str, queue: str, checkpoint: str) -> None:
    """As a driver of its own, until it is killed."""
    with tempfile.TemporaryDirectory() as directory, session(Path(directory)) as spark:
        cassq.spark.register(spark)
        come = threading.Event()
        query = started(spark, url, queue, Path(checkpoint), come)
        come.wait(PATIENCE_SECONDS)
        print(FIRST, flush=True)
        query.awaitTermination()


@click.command()
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--follow", "route", nargs=3, hidden=True)
def main(pairs: int, route: tuple[str, str, str] | None) -> None:
    """Compare a stream that goes on after its driver was killed with a new one."""
    if route:
        follow(*route)
        return
    with tempfile.TemporaryDirectory() as directory, session(Path(directory)) as spark:
        cassq.spark.register(spark)
        home = Path(directory)
        url = f"file://{home}/queues"
        new: list[float] = []
        again: list[float] = []
        with cassq.connect(url) as client:
            for number in range(-1, pairs):  # the first warms up
                queue = client.create_queue(f"jobs{number}")
                checkpoint = home / f"checkpoint{number}"
                queue.pusher().push(b"before")
                killed(url, queue.name, checkpoint)
                queue.pusher().push(b"after")
                went_on = seconds_to_first_batch(spark, url, queue.name, checkpoint)
                other = client.create_queue(f"new{number}")
                other.pusher().push(b"before")
                began = seconds_to_first_batch(spark, url, other.name, home / f"new{number}")
                if number >= 0:
                    again.append(went_on)
                    new.append(began)
    click.echo("| seconds to the first batch | least | median | most |\n|---|---:|---:|---:|")
    for name, found in (("after a kill", again), ("of a new stream", new)):
        click.echo(
            f"| {name} | {min(found):.2f} | {statistics.median(found):.2f} | {max(found):.2f} |"
        )


if __name__ == "__main__":
    main()
