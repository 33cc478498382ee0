"""Every error that the service model of SQS names for an action: a request that gets it, or why it
never comes here."""

from __future__ import annotations

from typing import Any

import pytest

from cassq.gateway.actions.host import OF_GROUPS
from cassq.gateway.wire.sqs import ACTIONS, ERRORS
from tests.gateway_model import installed_model
from tests.integration.gateway.asking import ARN, Asker, served
from tests.integration.gateway.test_parameters import (
    DOCS,
    ENTRIES,
    QUEUE,
    REQUIRED,
    TABLE,
    filled,
    has_queue,
    task,
)

# Of what AWS has, and the gateway does not: quotas, keys of KMS, an endpoint that is HTTPS alone,
# handles of former versions, and names and purges that must wait.
NEVER = {
    "InvalidIdFormat",
    "InvalidSecurity",
    "PurgeQueueInProgress",
    "QueueDeletedRecently",
    "RequestThrottled",
    *(code for code in ERRORS if code.startswith("Kms")),
}
# There is no address in a request without QueueUrl; nothing is too much in flight, or set.
NOT_OF = {
    "InvalidAddress": {action for action in ACTIONS if not has_queue(action)},
    "OverLimit": {"ReceiveMessage", "SetQueueAttributes"},
    "UnsupportedOperation": {
        *{action for action in ACTIONS if not has_queue(action)} - {"StartMessageMoveTask"},
        *set(OF_GROUPS) - {"ReceiveMessage"},
    },
}
FEED = "jobs--feed"  # a group, shown as a queue
# Requests that get what no value of one parameter does (`TABLE` has those).
RAISED: dict[tuple[str, str], dict[str, Any]] = {
    ("ChangeMessageVisibility", "MessageNotInflight"): {
        "QueueUrl": "jobs",
        "ReceiptHandle": "of a message that is back",
        "VisibilityTimeout": 1,
    },
    ("CreateQueue", "QueueNameExists"): {"QueueName": "jobs", "Attributes": {"DelaySeconds": "7"}},
    ("ReceiveMessage", "UnsupportedOperation"): {"QueueUrl": "strict"},
    ("StartMessageMoveTask", "UnsupportedOperation"): {
        "SourceArn": f"{ARN}:letters",  # from which a task moves messages already
        "DestinationArn": f"{ARN}:other",
        "MaxNumberOfMessagesPerSecond": 1,
    },
    **{
        (action, "UnsupportedOperation"): {"QueueUrl": FEED}
        for action in ACTIONS
        if has_queue(action) and action not in OF_GROUPS
    },
}


def named(action: str) -> set[str]:
    """The errors that the API reference names for an action, but those that never come."""
    errors = installed_model()["operations"][action].get("errors", [])
    return {
        code
        for code in (error["shape"] for error in errors)
        if code not in NEVER and action not in NOT_OF.get(code, ())
    }


def by_parameters(action: str) -> set[str]:
    """The errors that the table of parameters shows."""
    cases = [*TABLE[action].values(), *([QUEUE] if has_queue(action) else [])]
    return {code for those in cases for _, code in those}


@pytest.mark.parametrize("action", ACTIONS)
def test_each_error_of_the_api_reference_comes(action: str) -> None:
    shown = by_parameters(action) | {code for name, code in RAISED if name == action}
    assert named(action) <= shown
    assert not NEVER & shown


@pytest.mark.parametrize(("action", "code"), RAISED)
def test_these_requests_are_refused(url: str, action: str, code: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("letters")
        await sqs.create("other")
        await sqs.create("jobs", RedrivePolicy=_redrive("letters"))
        await sqs.create("jobs.fifo", FifoQueue="true")
        await _natively(sqs)
        asked = {**REQUIRED.get(action, {}), **RAISED[action, code]}
        if action == "StartMessageMoveTask":
            for body in map(str, range(30)):
                await sqs.send("letters", body)
            await sqs.ask(action, **asked)
        if asked.get("ReceiptHandle") == "of a message that is back":
            asked["ReceiptHandle"] = await _given_back(sqs)
        if action in ENTRIES:
            queue = asked.pop("QueueUrl")
            asked = {"QueueUrl": queue, "Entries": [{"Id": "1", **asked}]}
        queue = asked.pop("QueueUrl", None)
        await sqs.refused(code, action, queue, **await filled(sqs, {**_first(action), **asked}))
        if queue == FEED:  # the queue itself takes it
            if action == "RemovePermission":
                await sqs.ask("AddPermission", "jobs", Label="one", **REQUIRED["AddPermission"])
            await sqs.answer(action, "jobs", **await filled(sqs, {**_first(action), **asked}))

    served(url, main, groups=True)


def test_each_error_is_in_the_documentation() -> None:
    table = DOCS.read_text().partition("\n## Errors")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    said = {code.strip(" `"): row[1] for row in rows for code in row[0].split(",")}
    assert set(said) == set(ERRORS)
    assert {code for code, as_on_aws in said.items() if as_on_aws == "never"} == NEVER
    assert {code for code, as_on_aws in said.items() if as_on_aws == "differs"} == set(NOT_OF) - {
        "InvalidAddress"
    }


def test_a_task_that_is_not_there_is_not_found(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        handle = task(f"{ARN}:jobs")
        code = "ResourceNotFoundException"
        message = await sqs.refused(code, "CancelMessageMoveTask", TaskHandle=handle)
        assert message == "Task does not exist."

    served(url, main)


def _redrive(name: str) -> str:
    return f'{{"deadLetterTargetArn":"{ARN}:{name}","maxReceiveCount":1}}'


def _first(action: str) -> dict[str, Any]:
    """A value for each parameter of an action that is taken; those of entries are in `REQUIRED`."""
    if action in ("AddPermission", "RemovePermission"):
        return {"Label": "one"}
    if action == "SetQueueAttributes":
        return {"Attributes": {"DelaySeconds": "0"}}
    if action == "TagQueue":
        return {"Tags": {"a": "b"}}
    if action == "UntagQueue":
        return {"TagKeys": ["a"]}
    return {}


async def _natively(sqs: Asker) -> None:
    """A group, and a queue with order and without groups of its own, as native clients make
    them."""
    client = sqs.service.host.client
    await (await client.queue("jobs")).create_group("feed")
    await client.create_queue("strict", consistency="cp")


async def _given_back(sqs: Asker) -> str:
    """The receipt handle of a message that was given back since."""
    await sqs.send("jobs", "x")
    (message,) = await sqs.receive("jobs", WaitTimeSeconds=20)
    handle: str = message["ReceiptHandle"]
    await sqs.ask("ChangeMessageVisibility", "jobs", ReceiptHandle=handle, VisibilityTimeout=0)
    return handle
