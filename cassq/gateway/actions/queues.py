"""Queues: creating, finding, changing, purging and deleting them, their tags and permissions."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cassq.base.ids import made_at_ms
from cassq.client.queue import create_queue as create_with
from cassq.errors import QueueExistsError
from cassq.gateway.actions import attributes as attrs
from cassq.gateway.actions.faults import fault, missing, no_queue, wrong_value
from cassq.gateway.actions.host import Host
from cassq.gateway.request import Answer, Request
from cassq.inspect.stats import group_stats
from cassq.lifecycle.ports import Ports
from cassq.model.queues import OWN, GroupPolicy, QueuePolicy, changed
from cassq.model.rows import QueueRow
from cassq.settings import QueueSettings

LISTED_MAX = 1000
LANE_SECONDS = 5.0
FAIR_TAG = "cassq:fair"  # "true": the queue is fair among groups of messages
SOURCES = "queueUrls"  # a member that is in its answer even if it is empty
TAGS_MAX = 50
TAG_KEY_MAX, TAG_VALUE_MAX = 128, 256
STATEMENTS_MAX = 20
ACTIONS_MAX = 7
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_OF_QUEUES = ("CreatedTimestamp", "LastModifiedTimestamp", "QueueArn")
_COUNTS = {
    "ApproximateNumberOfMessages": "waiting",
    "ApproximateNumberOfMessagesNotVisible": "pending",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}

# --- creating and finding -----------------------------------------------------------------------


async def create_queue(host: Host, request: Request) -> Answer:
    parameters = request.parameters
    name: str = parameters["QueueName"]
    host.check(request, name)
    wanted: Mapping[str, str] = parameters.get("Attributes") or {}
    if await host.is_group(name):
        return Answer({"QueueUrl": host.url(request, name)})
    fifo = name.endswith(".fifo")
    if not (_FIFO_NAME if fifo else _NAME).fullmatch(name):
        raise wrong_value(
            "QueueName",
            name,
            "use 1 to 80 letters, digits, hyphens and underscores, and .fifo at the end of the name"
            " of a FIFO queue",
        )
    _check_kind(name, wanted, fifo=fifo)
    tags = _checked_tags(parameters.get("tags") or {})
    sources = await host.client.call(_policies, host)
    change = attrs.changing(host, name, wanted, sources, fifo=fifo)
    group = _group_of(tags, fifo=fifo)

    def create() -> None:
        defaults = attrs.defaults(fifo=fifo)
        policy = changed(QueuePolicy(), defaults)
        settings: QueueSettings = {**defaults, **change(policy)}
        policy = changed(policy, settings)
        now_ms = host.client.sync.ports.catalog.now_ms()
        settings["attributes"] = attrs.packed(policy, **{attrs.TAGS: tags, attrs.CHANGED: now_ms})
        try:
            create_with(host.client.sync.runtime, name, settings, group)
        except QueueExistsError:
            existing = host.client.sync.queue(name)
            _check_same(existing.policy, change)

    await host.client.call(create)
    return Answer({"QueueUrl": host.url(request, name)})


def _group_of(tags: Mapping[str, str], *, fifo: bool) -> GroupPolicy | None:
    """The policy of the group for which SQS clients consume; None for the default policy. Messages
    that they receive have their own deadlines: the group's claim timeout only says how long a dead
    gateway keeps the lane."""
    if fifo:
        return GroupPolicy(order="key", claim_timeout=LANE_SECONDS)
    if tags.get(FAIR_TAG) == "true":
        return GroupPolicy(fair=True, claim_timeout=LANE_SECONDS)
    return None


def _check_kind(name: str, wanted: Mapping[str, str], *, fifo: bool) -> None:
    """Raise ActionError unless the name of a new queue fits its kind."""
    kind = wanted.get(attrs.FIFO)
    if kind is not None and kind.lower() != "true":
        raise fault("InvalidAttributeName", "Unknown Attribute FifoQueue.")
    if fifo and kind is None:
        raise wrong_value(
            "QueueName",
            name,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    if kind is not None and not fifo:
        raise wrong_value(
            "QueueName", name, "The name of a FIFO queue must end with the .fifo suffix"
        )


def _check_same(policy: QueuePolicy, change: Callable[[QueuePolicy], QueueSettings]) -> None:
    """Raise ActionError unless an existing queue has the attributes of a request to create it."""
    found = changed(policy, change(policy))
    for name in attrs.SETTABLE:
        if attrs.shown(found, name) != attrs.shown(policy, name):
            raise fault(
                "QueueNameExists",
                "A queue already exists with the same name and a different value for attribute"
                f" {name}",
            )


def _policies(host: Host) -> dict[str, QueuePolicy]:
    """The policies of all queues, by name. Cost: one read of their rows."""
    return {row.name: row.policy for row in host.client.sync.ports.catalog.queues.listed()}


async def get_queue_url(host: Host, request: Request) -> Answer:
    name: str = request.parameters["QueueName"]
    host.check(request, name)
    await host.find(name)
    return Answer({"QueueUrl": host.url(request, name)})


async def list_queues(host: Host, request: Request) -> Answer:
    parameters = request.parameters
    host.check(request, "")
    prefix: str = parameters.get("QueueNamePrefix") or ""
    names = [
        name
        for name in await host.shown_names(prefix)
        if OWN not in name and request.caller.may(request.action, name)
    ]
    return _page(host, request, names, "QueueUrls")


def _page(host: Host, request: Request, names: Sequence[str], member: str) -> Answer:
    """One page of names of queues, as URLs."""
    wanted: int | None = request.parameters.get("MaxResults")
    if wanted is not None and not 1 <= wanted <= LISTED_MAX:
        raise wrong_value("MaxResults", wanted, f"must be between 1 and {LISTED_MAX}")
    after = _after(request.parameters.get("NextToken"))
    left = [name for name in names if name > after]
    page = left[: wanted or LISTED_MAX]
    members: dict[str, Any] = {member: [host.url(request, name) for name in page]}
    if wanted is not None and len(left) > len(page):
        members["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    return Answer(members if page or member == SOURCES else {})


def _after(token: str | None) -> str:
    """The name after which the next page begins. Raises ActionError for an invalid token."""
    try:
        return base64.b64decode((token or "").encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as exc:
        raise wrong_value("NextToken", token, "it is not one that was returned") from exc


async def delete_queue(host: Host, request: Request) -> Answer:
    name = host.named(request)
    await host.find(name)
    await host.forget(name)
    await host.client.delete_queue(name)
    return Answer({})


async def purge_queue(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    await hosted.queue.purge(hosted.group, held=True)
    return Answer({})


async def list_dead_letter_source_queues(host: Host, request: Request) -> Answer:
    name = host.named(request)
    await host.find(name)
    policies = await host.client.call(_policies, host)
    sources = [source for source, policy in policies.items() if policy.dead_letters == name]
    return _page(host, request, sorted(sources), SOURCES)


# --- attributes ---------------------------------------------------------------------------------


async def get_queue_attributes(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    names: Sequence[str] = request.parameters.get("AttributeNames") or ()
    known = {"All", *attrs.SETTABLE, *_OF_QUEUES, *_COUNTS}
    for each in names:
        if each not in known:
            raise fault("InvalidAttributeName", f"Unknown Attribute {each}.")
    if not names:
        return Answer({})
    wanted = known if "All" in names else set(names)
    row = await host.client.call(lambda: hosted.queue.sync.row)
    found: dict[str, str | None] = {
        each: attrs.shown(row.policy, each, host) for each in attrs.SETTABLE
    }
    created_ms = made_at_ms(row.id) or 0
    changed_ms = attrs.changed_ms(row.policy) or created_ms
    found["CreatedTimestamp"] = str(created_ms // 1000)
    found["LastModifiedTimestamp"] = str(changed_ms // 1000)
    found["QueueArn"] = host.arn(hosted.name)
    if wanted & _COUNTS.keys():
        ports, group = host.client.sync.ports, hosted.group
        found.update(await host.counted(hosted, lambda: _counts(ports, row, group)))
    members = {each: value for each, value in found.items() if each in wanted and value is not None}
    return Answer({"Attributes": members} if members else {})


def _counts(ports: Ports, row: QueueRow, name: str) -> dict[str, str]:
    """How many messages a group has in each state."""
    groups = ports.catalog.queues.groups(row.id)
    group = next((each for each in groups if each.name == name), None)
    if group is None:
        return dict.fromkeys(_COUNTS, "0")
    stats = group_stats(ports, row, group)
    return {
        "ApproximateNumberOfMessages": str(max(0, stats.waiting - stats.delayed)),
        "ApproximateNumberOfMessagesNotVisible": str(stats.pending),
        "ApproximateNumberOfMessagesDelayed": str(stats.delayed),
    }


async def set_queue_attributes(host: Host, request: Request) -> Answer:
    wanted: Mapping[str, str] = request.parameters["Attributes"]
    name = host.named(request)
    if "FifoQueue" in wanted:
        raise fault("InvalidAttributeName", "Unknown Attribute FifoQueue.")
    sources = await host.client.call(_policies, host)
    if name not in sources:
        raise no_queue(name)
    fifo = attrs.is_fifo(sources[name])
    await _change(host, name, attrs.changing(host, name, wanted, sources, fifo=fifo))
    return Answer({})


async def _change(host: Host, name: str, change: Callable[[QueuePolicy], QueueSettings]) -> None:
    """Change a queue's settings, and note when."""
    queue = (await host.find(name)).queue
    now_ms = host.client.sync.ports.catalog.now_ms()

    def dated(policy: QueuePolicy) -> QueueSettings:
        settings = change(policy)
        attributes = attrs.packed(changed(policy, settings), **{attrs.CHANGED: now_ms})
        return {**settings, "attributes": attributes}

    await queue.call(queue.sync.update_by, dated)


# --- tags ---------------------------------------------------------------------------------------


def _checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_MAX or key.lower().startswith("aws:"):
            raise wrong_value(
                "Tag.Key", key, f"use 1 to {TAG_KEY_MAX} characters, and not the prefix aws:"
            )
        if len(value) > TAG_VALUE_MAX:
            raise wrong_value("Tag.Value", value, f"use at most {TAG_VALUE_MAX} characters")
    if len(tags) > TAGS_MAX:
        raise fault("InvalidParameterValue", f"A queue may have at most {TAGS_MAX} tags.")
    return dict(tags)


async def tag_queue(host: Host, request: Request) -> Answer:
    new = _checked_tags(request.parameters["Tags"])

    def change(policy: QueuePolicy) -> QueueSettings:
        tags = _checked_tags({**attrs.kept(policy, attrs.TAGS), **new})
        return {"attributes": attrs.packed(policy, **{attrs.TAGS: tags})}

    await _change(host, host.named(request), change)
    return Answer({})


async def untag_queue(host: Host, request: Request) -> Answer:
    gone = set(request.parameters["TagKeys"])

    def change(policy: QueuePolicy) -> QueueSettings:
        tags = attrs.kept(policy, attrs.TAGS)
        left = {key: value for key, value in tags.items() if key not in gone}
        return {"attributes": attrs.packed(policy, **{attrs.TAGS: left})}

    await _change(host, host.named(request), change)
    return Answer({})


async def list_queue_tags(host: Host, request: Request) -> Answer:
    queue = await host.client.queue(host.named(request))
    policy = await host.client.call(lambda: queue.sync.policy)
    tags = attrs.kept(policy, attrs.TAGS)
    return Answer({"Tags": tags} if tags else {})


# --- permissions --------------------------------------------------------------------------------


async def add_permission(host: Host, request: Request) -> Answer:
    parameters, name = request.parameters, host.named(request)
    label: str = parameters["Label"]
    accounts: Sequence[str] = parameters["AWSAccountIds"]
    actions: Sequence[str] = parameters["Actions"]
    if not _LABEL.fullmatch(label):
        raise wrong_value("Label", label, "use 1 to 80 letters, digits, hyphens and underscores")
    if not accounts:
        raise missing("AWSAccountIds")
    if not actions:
        raise missing("Actions")
    if len(actions) > ACTIONS_MAX:
        raise fault("OverLimit", f"A statement may have at most {ACTIONS_MAX} actions.")
    arns = [f"arn:aws:iam::{account}:root" for account in accounts]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": arns[0] if len(arns) == 1 else arns},
        "Action": f"SQS:{actions[0]}" if len(actions) == 1 else [f"SQS:{a}" for a in actions],
        "Resource": host.arn(name),
    }

    def change(policy: QueuePolicy) -> QueueSettings:
        document = _document(host, name, policy)
        statements = _statements(document)
        if any(each.get("Sid") == label for each in statements):
            raise wrong_value("Label", label, "Already exists")
        if len(statements) >= STATEMENTS_MAX:
            raise fault("OverLimit", f"A policy may have at most {STATEMENTS_MAX} statements.")
        return _with_document(policy, {**document, "Statement": [*statements, statement]})

    await _change(host, name, change)
    return Answer({})


async def remove_permission(host: Host, request: Request) -> Answer:
    name, label = host.named(request), request.parameters["Label"]

    def change(policy: QueuePolicy) -> QueueSettings:
        document = _document(host, name, policy)
        statements = _statements(document)
        left = [each for each in statements if each.get("Sid") != label]
        if len(left) == len(statements):
            raise wrong_value("Label", label, "can't find label on existing policy")
        return _with_document(policy, {**document, "Statement": left} if left else None)

    await _change(host, name, change)
    return Answer({})


def _document(host: Host, name: str, policy: QueuePolicy) -> dict[str, Any]:
    """The access policy of a queue; one without statements if it has none."""
    stored = attrs.kept(policy).get("Policy")
    if stored:
        found: dict[str, Any] = json.loads(stored)
        return found
    return {"Version": "2012-10-17", "Id": f"{host.arn(name)}/SQSDefaultPolicy", "Statement": []}


def _statements(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = document.get("Statement") or []
    return found if isinstance(found, list) else [found]


def _with_document(policy: QueuePolicy, document: Mapping[str, Any] | None) -> QueueSettings:
    own = attrs.kept(policy)
    own.pop("Policy", None)
    if document is not None:
        own["Policy"] = json.dumps(document, separators=(",", ":"))
    return {"attributes": attrs.packed(policy, **{attrs.SET: own})}
