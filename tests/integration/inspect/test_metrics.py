"""Metrics of real clients, scraped over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import cassq
from cassq.errors import (
    ClaimLostError,
    ClosedError,
    ConfigError,
    MissingExtraError,
    QueueNotFoundError,
)
from cassq.inspect.prometheus import PrometheusServer
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, alone, numbers, push, reap
from tests.shell import Shell

pytestmark = pytest.mark.needs("module:prometheus_client")

CLIENT = "cassq_client_"


def scraped(port: int) -> dict[str, float]:
    """What is served: values by name, or by name and labels, without those that are constant."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            found[series] = float(value)
    return found


def total(found: dict[str, float], name: str, **labels: str) -> float:
    """The sum of a metric's values whose labels have these values."""
    matching = [
        value
        for series, value in found.items()
        if series.partition("{")[0] == name
        and all(f'{label}="{wanted}"' in series for label, wanted in labels.items())
    ]
    assert matching, f"no {name} {labels} among {sorted(found)}"
    return sum(matching)


@pytest.fixture
def served(client: cassq.Client, queue: cassq.Queue) -> PrometheusServer:
    return client.serve_metrics()


# --- what a client did ------------------------------------------------------------------------


def test_what_a_client_pushed_popped_and_committed_is_served(
    client: cassq.Client, queue: cassq.Queue, served: PrometheusServer
) -> None:
    with queue.pusher() as pusher, queue.popper() as popper:
        pusher.push(b"one")
        pusher.push_many(numbers(20))
        pusher.push_soon(b"soon").result()
        popper.commit(popper.pop(10))
        popper.rollback(popper.pop(3))
        popper.dead(popper.pop(1))
        popper.release(popper.pop(2))
        found = scraped(served.port)
    sent = "messaging_client_sent_messages_total"
    assert total(found, sent, messaging_destination_name="jobs", error_type="") == 22
    consumed = "messaging_client_consumed_messages_total"
    labels = {"messaging_destination_name": "jobs", "messaging_consumer_group_name": "default"}
    assert total(found, consumed, **labels, messaging_system="cassq") == 16
    for name, count in (("committed", 10), ("rolled_back", 3), ("dead", 1), ("released", 2)):
        assert total(found, f"{CLIENT}{name}_messages_total", **labels) == count, name
    assert total(found, f"{CLIENT}written_bytes_total") > 22


def test_iteration_counts_what_was_handed_out_not_what_was_claimed_ahead(
    queue: cassq.Queue, served: PrometheusServer
) -> None:
    push(queue, *numbers(500))
    with queue.popper() as popper:
        for number, message in enumerate(popper, 1):
            message.ack()
            if number == 50:
                break
        found = scraped(served.port)
        assert total(found, "messaging_client_consumed_messages_total") == 50
        popper.flush()
        assert total(scraped(served.port), f"{CLIENT}committed_messages_total") == 50


def test_totals_outlive_pushers_and_poppers(queue: cassq.Queue, served: PrometheusServer) -> None:
    for _ in range(5):
        push(queue, b"1", b"2")
        with queue.popper() as popper:
            popper.commit(popper.pop(2))
    found = scraped(served.port)
    assert total(found, "messaging_client_sent_messages_total") == 10
    assert total(found, f"{CLIENT}committed_messages_total") == 10


def test_deliveries_again_and_losses_are_counted(
    client: cassq.Client, queue: cassq.Queue, served: PrometheusServer, connect: Connect
) -> None:
    alone(client)
    queue.update(claim_timeout=0.05)
    push(queue, *numbers(4))
    mine, others = queue.popper(keep_alive=0), connect().queue("jobs").popper()
    messages = mine.pop(4)
    taken = eventually("the claim expires", lambda: others.pop(4, wait=1.0))
    with pytest.raises(ClaimLostError):
        mine.commit(messages)
    assert total(scraped(served.port), f"{CLIENT}lost_messages_total") == len(messages)
    others.rollback(taken)
    again = eventually("it comes again", lambda: mine.pop(4, wait=1.0))
    assert total(scraped(served.port), f"{CLIENT}redelivered_messages_total") == len(again)


def test_pushes_that_failed_are_counted_by_their_error(
    client: cassq.Client, queue: cassq.Queue, served: PrometheusServer
) -> None:
    push(queue, b"1")
    pusher = queue.pusher()
    client.delete_queue("jobs")
    with pytest.raises(QueueNotFoundError):
        pusher.push_many(numbers(3))
    found = scraped(served.port)
    sent = "messaging_client_sent_messages_total"
    assert total(found, sent, error_type="QueueNotFoundError") == 3
    assert total(found, sent, error_type="") == 1


# --- what is in the queues ----------------------------------------------------------------------


def test_depths_are_those_of_now_and_of_every_queue(
    client: cassq.Client, queue: cassq.Queue, served: PrometheusServer, connect: Connect
) -> None:
    push(connect().create_queue("other"), *numbers(3))
    push(queue, *numbers(10))
    with queue.popper() as popper:
        popper.commit(popper.pop(2))
        popper.pop(3)
        found = scraped(served.port)
    labels = {"messaging_destination_name": "jobs", "messaging_consumer_group_name": "default"}
    assert total(found, "cassq_group_waiting_messages", **labels) == 5
    assert total(found, "cassq_group_pending_messages", **labels) == 3
    assert total(found, "cassq_group_committed_messages_total", **labels) == 2
    assert total(found, "cassq_group_open_messages", **labels, deliveries="1") == 3
    other = {"messaging_destination_name": "other"}
    assert total(found, "cassq_group_waiting_messages", **other) == 3
    assert total(found, "cassq_queue_pushed_messages_total", **other) == 3
    assert total(found, "cassq_catalog_readable") == 1


def test_depths_can_be_left_to_another_client(client: cassq.Client, queue: cassq.Queue) -> None:
    push(queue, b"1")
    found = scraped(client.serve_metrics(queues=False).port)
    assert total(found, "messaging_client_sent_messages_total") == 1
    assert not [series for series in found if series.startswith(("cassq_group", "cassq_queue"))]


def test_what_the_reaper_did_is_counted(
    client: cassq.Client, queue: cassq.Queue, served: PrometheusServer
) -> None:
    push(queue, b"1")
    with queue.popper() as popper:
        popper.commit(popper.pop(1))
    reap(client)
    found = scraped(served.port)
    assert total(found, "cassq_reaper_actions_total", outcome="done", **{"pass": "retire"}) == 1


def test_a_catalog_that_cannot_be_read_leaves_the_counters(
    client: cassq.Client, queue: cassq.Queue, served: PrometheusServer
) -> None:
    push(queue, b"1")
    client.ports.life.closed = True
    try:
        found = scraped(served.port)
    finally:
        client.ports.life.closed = False
    assert total(found, "cassq_catalog_readable") == 0
    assert total(found, "messaging_client_sent_messages_total") == 1


# --- serving ------------------------------------------------------------------------------------


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_metrics_end_with_the_client(client: cassq.Client, served: PrometheusServer) -> None:
    assert not is_free(served.port)
    client.close()
    assert is_free(served.port)
    with pytest.raises(ClosedError):
        client.serve_metrics()


def test_metrics_can_be_closed_before_their_client(
    client: cassq.Client, served: PrometheusServer
) -> None:
    served.close()
    assert is_free(served.port)
    client.close()


@pytest.mark.linux_only
def test_only_this_machine_is_served_by_default(served: PrometheusServer) -> None:
    with urlopen(f"http://localhost:{served.port}/metrics", timeout=30) as answer:
        assert answer.status == 200
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]  # fmt: skip
    (address,) = (each for each in listening if int(each.partition(":")[2], 16) == served.port)
    assert address.startswith("0100007F:")


def test_a_port_that_is_taken_is_refused(client: cassq.Client, served: PrometheusServer) -> None:
    for port in (served.port, -1, 70_000):
        with pytest.raises(ConfigError, match=str(port)):
            client.serve_metrics(port)


def test_without_the_driver_the_extra_is_named(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cassq.inspect.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError) as caught:
        client.serve_metrics()
    assert "cassq[metrics]" in caught.value.hint


def test_a_forked_child_does_not_keep_the_port(
    client: cassq.Client, served: PrometheusServer
) -> None:
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold_write)
        os.read(hold_read, 1)  # until the parent has looked
        os._exit(0)
    os.close(hold_read)
    try:
        port = served.port
        served.close()
        eventually("the port is free", lambda: is_free(port))
    finally:
        os.close(hold_write)
        assert os.waitpid(child, 0)[1] == 0


# --- the reaper's daemon --------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Iterator[Shell]:
    opened = Shell(tmp_path, url)
    opened.run("queue", "create", "mail")
    yield opened
    opened.close()


def test_the_reaper_serves_metrics_while_it_runs(shell: Shell, tmp_path: Path) -> None:
    shell.run("push", "mail", stdin=b"1\n2\n")
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = shell.start("reap", "--every", "0.2", "--metrics-port", "0", stderr=stderr)
    reported = eventually(
        "it tells where", lambda: re.search(r"http://127\.0\.0\.1:(\d+)/metrics", log.read_text())
    )
    found = scraped(int(reported[1]))
    assert total(found, "cassq_group_waiting_messages", messaging_destination_name="mail") == 2
    health = f"http://127.0.0.1:{reported[1]}/health"
    facts = eventually("a pass succeeds", lambda: _healthy_after_a_pass(health))
    assert (facts["healthy"], facts["failures"], facts["error"]) == (True, 0, "")
    assert facts["last_success"] is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert is_free(int(reported[1]))


def _healthy_after_a_pass(address: str) -> Any:
    with urlopen(address) as answer:
        assert answer.status == 200
        facts = json.load(answer)
    return facts if facts["passes"] else None


def test_health_is_not_found_where_it_is_not_served(client: cassq.Client) -> None:
    server = client.serve_metrics()
    with pytest.raises(HTTPError) as caught:
        urlopen(f"http://127.0.0.1:{server.port}/health")
    assert caught.value.code == 404
    caught.value.close()


def test_bad_health_is_503_and_says_why(client: cassq.Client) -> None:
    facts = {"healthy": False, "error": "the disk is full"}
    server = client.serve_metrics(health=lambda: facts)
    with pytest.raises(HTTPError) as caught:
        urlopen(f"http://127.0.0.1:{server.port}/health")
    assert caught.value.code == 503
    assert json.load(caught.value) == facts
    caught.value.close()


def test_one_pass_of_the_reaper_serves_no_metrics(shell: Shell) -> None:
    failed = shell.run("reap", "--metrics-port", "0", "--json", code=2)
    assert "--every" in json.loads(failed.err)["error"]
