"""`cassq gateway` as a process, with boto3 as its client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from cassq.cli.main import main
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.worker.processes import Home, WorkerProcess, check_notices, home

__all__ = ["home"]

KEYS = """
[keys.AKIDALL]
secret = "one"
[keys.AKIDSOME]
secret = "two"
queues = ["orders-*"]
"""


def gateway(home: Home, *options: str) -> WorkerProcess:
    """A gateway at any free port."""
    return WorkerProcess(home, "--listen", "127.0.0.1:0", *options, verb=("gateway",))


def endpoint(process: WorkerProcess) -> str:
    """Where it serves, once it does."""
    process.until_logged("health at http")
    found = re.search(r"health at (\S+)/health", process.errors)
    assert found is not None
    return found[1]


def client(
    process: WorkerProcess, key: tuple[str, str] = ("any", "any"), service: str = "sqs"
) -> Any:
    """A client of boto3."""
    config = Config(retries={"mode": "standard", "max_attempts": 5}, read_timeout=DEADLINE_SECONDS)
    return boto3.client(
        service,
        endpoint_url=endpoint(process),
        region_name="us-east-1",
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def test_boto3_sends_and_receives(home: Home) -> None:
    with gateway(home) as process:
        sqs = client(process)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        assert url == f"{endpoint(process)}/000000000000/mail"
        attributes = {"b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}}
        sent = sqs.send_message(QueueUrl=url, MessageBody="grüß <&>", MessageAttributes=attributes)
        [message] = sqs.receive_message(
            QueueUrl=url, WaitTimeSeconds=20, MessageAttributeNames=["All"]
        )["Messages"]
        assert message["MessageId"] == sent["MessageId"]
        assert message["Body"] == "grüß <&>"
        assert message["MessageAttributes"] == attributes
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            sqs.get_queue_url(QueueName="none")
        with ThreadPoolExecutor() as pool:  # SIGTERM ends a wait with its answer
            waiting = pool.submit(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=20)
            eventually("it waits", lambda: _requests(process) >= 2)
            assert process.terminate() == 0
            assert "Messages" not in waiting.result(DEADLINE_SECONDS)


def _requests(process: WorkerProcess) -> int:
    """How many are in hand, with the one that asks."""
    found: int = json.loads(process.get("/health")[1])["requests"]
    return found


@pytest.mark.long(reason="starts a gateway")
def test_the_service_manager_is_notified(home: Home) -> None:
    check_notices(
        home,
        lambda environ: WorkerProcess(
            home, "--listen", "127.0.0.1:0", verb=("gateway",), **environ
        ),
    )


@pytest.mark.long(reason="starts a gateway, and a shell with what it printed")
def test_what_it_prints_is_all_that_a_program_needs(home: Home) -> None:
    command = [sys.executable, "-m", "cassq", "--url", home.url, "gateway"]
    script = "import boto3; print(boto3.client('sqs').create_queue(QueueName='mail')['QueueUrl'])"
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pasted = "".join(process.stdout.readline() for _ in range(3))
            done = subprocess.run(
                ["sh", "-c", f'{pasted}\nexec "$0" -c "$1"', sys.executable, script],
                env=bare,
                capture_output=True,
                text=True,
                check=True,
            )
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
    assert done.stdout.rstrip().endswith("/000000000000/mail")


@pytest.mark.long(reason="starts three processes, and opens many connections")
def test_connections_are_spread_over_the_processes(home: Home) -> None:
    with gateway(home, "--processes", "2") as process:
        served: set[int] = set()

        def by_both() -> bool:
            served.add(json.loads(process.get("/health")[1])["pid"])
            return served == set(process.children())

        eventually("both have served", by_both)
        assert len(served) == 2
        assert process.terminate() == 0


@pytest.mark.long(reason="starts three processes")
def test_a_process_that_was_killed_is_replaced(home: Home) -> None:
    with gateway(home, "--processes", "2") as process:
        sqs = client(process)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        first = process.children()
        os.kill(first[0], signal.SIGKILL)
        process.until_logged("was killed by SIGKILL: its clients have lost their connections")
        for number in range(50):
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
        eventually("another runs", lambda: len(set(process.children()) - set(first)) == 1)
        text = process.get("/metrics")[1]
        # Of both, whichever is asked, and of the one that is gone.
        assert 'cassq_gateway_requests_total{action="SendMessage",outcome="done"} 50.0' in text
        assert process.terminate() == 0


def test_handles_and_deadlines_outlive_a_gateway_that_was_killed(home: Home) -> None:
    """All its processes, as by a power cut: another one at the place goes on."""
    with gateway(home) as process:
        sqs = client(process)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        for body in "abc":
            sqs.send_message(QueueUrl=url, MessageBody=body)
        received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=2, VisibilityTimeout=3600)
        first, second = received["Messages"]
        for pid in (process.pid, *process.children()):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    with gateway(home) as process:
        sqs = client(process)
        url = sqs.get_queue_url(QueueName="mail")["QueueUrl"]
        [third] = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        assert third["Body"] == "c", "the others are in flight"
        sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0
        )
        [again] = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        assert (again["Body"], again["MessageId"]) == (second["Body"], second["MessageId"])
        assert process.terminate() == 0


def test_an_sdk_learns_whose_keys_it_has(home: Home) -> None:
    keys = home.directory / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with gateway(home, "--credentials", str(keys)) as process:
        found = client(process, ("AKIDALL", "one"), "sts").get_caller_identity()
        assert found["Account"] == "000000000000"
        assert "AKIDALL" in found["Arn"]
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            client(process, ("AKIDALL", "two"), "sts").get_caller_identity()
        assert process.terminate() == 0


@pytest.mark.long(reason="starts a gateway that reads its credentials again")
def test_keys_are_read_again_when_they_change(home: Home) -> None:
    keys = home.directory / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with gateway(home, "--credentials", str(keys)) as process:
        url = client(process, ("AKIDALL", "one")).create_queue(QueueName="mail")["QueueUrl"]

        def code(key: str, secret: str) -> str:
            try:
                client(process, (key, secret)).send_message(QueueUrl=url, MessageBody="b")
            except ClientError as exc:
                found: str = exc.response["Error"]["Code"]
                return found
            return ""

        assert code("AKIDALL", "one") == ""
        assert code("AKIDALL", "two") == "SignatureDoesNotMatch"
        assert code("AKIDNONE", "one") == "InvalidClientTokenId"
        assert code("AKIDSOME", "two") == "AccessDenied"
        keys.write_text(KEYS.replace("orders-*", "mail"))
        eventually("they are read again", lambda: code("AKIDSOME", "two") == "")
        before = keys.stat()
        keys.write_text(KEYS.replace("orders-*", "mail").replace("two", "six"))
        os.utime(keys, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if it had not changed
        os.kill(process.pid, signal.SIGHUP)
        eventually("they are read again", lambda: code("AKIDSOME", "six") == "")
        assert process.terminate() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0"], "without credentials listens on loopback addresses only"),
        (["--listen", "nonsense"], "is not an address"),
        (["--listen", "127.0.0.1:0", "--credentials", "none"], "cannot be read"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "none"], "needs both --tls-cert and --tls-key"),
        (["--listen", "192.0.2.1:0", "--insecure"], "cannot listen at 192.0.2.1:0"),
    ],
)
def test_what_it_cannot_serve_is_an_error(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gateway", *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
