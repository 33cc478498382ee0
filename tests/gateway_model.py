"""The gateway's tables of SQS, made from botocore's service model: `python -m tests.gateway_model`
writes them.

botocore's model has the JSON encoding alone. What only the Query encoding needs, and the codes and
statuses of errors that the model leaves out, stand here: names of items in lists, and of members
whose names differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from botocore.loaders import Loader

TABLES = Path(__file__).resolve().parents[1] / "cassq" / "gateway" / "wire" / "sqs.py"

_LEGACY = "AWS.SimpleQueueService."
# Members whose name in the Query encoding is another; lists have that of their items.
_SINGULAR = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "Tags": "Tag",
    "tags": "Tag",
}
_ITEMS = {"StringList": "StringListValue", "BinaryList": "BinaryListValue"}
_KEYS = {"TagMap": "Key"}
_CODES = {
    **{
        name: f"{_LEGACY}{name}"
        for name in (
            "BatchEntryIdsNotDistinct",
            "BatchRequestTooLong",
            "EmptyBatchRequest",
            "InvalidBatchEntryId",
            "MessageNotInflight",
            "PurgeQueueInProgress",
            "QueueDeletedRecently",
            "TooManyEntriesInBatchRequest",
            "UnsupportedOperation",
        )
    },
    "QueueDoesNotExist": f"{_LEGACY}NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "KmsAccessDenied": "KMS.AccessDeniedException",
    "KmsDisabled": "KMS.DisabledException",
    "KmsInvalidKeyUsage": "KMS.InvalidKeyUsageException",
    "KmsInvalidState": "KMS.InvalidStateException",
    "KmsNotFound": "KMS.NotFoundException",
    "KmsOptInRequired": "KMS.OptInRequired",
    "KmsThrottled": "KMS.ThrottlingException",
}
_STATUSES = {
    "InvalidAddress": 404,
    "InvalidSecurity": 403,
    "KmsOptInRequired": 403,
    "OverLimit": 403,
    "PurgeQueueInProgress": 403,
    "RequestThrottled": 403,
    "ResourceNotFoundException": 404,
}

_HEAD = '''"""Tables of SQS, which `python -m tests.gateway_model` makes from botocore's model.

Lists and maps are flattened in the Query encoding: each item has the list's own name.
"""

from __future__ import annotations

# The shapes of an action's input and output; "" if it has none.
ACTIONS: dict[str, tuple[str, str]] = {
'''


def tables(model: dict[str, Any]) -> str:
    """The text of the module. model: botocore's, of SQS."""
    shapes = model["shapes"]
    lines = [_HEAD.rstrip("\n")]
    for action, operation in sorted(model["operations"].items()):
        output = operation.get("output", {}).get("shape", "")
        lines.append(f'    "{action}": ("{operation["input"]["shape"]}", "{output}"),')
    lines += ["}", "", "# Members: the shape, the name in the Query encoding, whether required."]
    lines.append("STRUCTURES: dict[str, dict[str, tuple[str, str, bool]]] = {")
    for name, shape in _of_kind(shapes, "structure"):
        lines.append(f'    "{name}": {{')
        required = shape.get("required", ())
        for member, its in shape["members"].items():
            query = _query_name(member, its["shape"], shapes)
            lines.append(
                f'        "{member}": ("{its["shape"]}", "{query}", {member in required}),'
            )
        lines.append("    },")
    lines += ["}", "", "# Lists: the shape of their items."]
    lines.append("LISTS: dict[str, str] = {")
    for name, shape in _of_kind(shapes, "list"):
        lines.append(f'    "{name}": "{shape["member"]["shape"]}",')
    lines += ["}", "", "# Maps from strings: the name of keys in the Query encoding, and the shape"]
    lines += ["# of values, whose name is Value.", "MAPS: dict[str, tuple[str, str]] = {"]
    for name, shape in _of_kind(shapes, "map"):
        key = _KEYS.get(name, "Name")
        lines.append(f'    "{name}": ("{key}", "{shape["value"]["shape"]}"),')
    lines += ["}", "", "# All else: string, integer, long, boolean or blob."]
    lines.append("SCALARS: dict[str, str] = {")
    for kind in ("string", "integer", "long", "boolean", "blob"):
        lines += [f'    "{name}": "{kind}",' for name, _ in _of_kind(shapes, kind)]
    lines += ["}", "", "# The strings that the model names."]
    lines.append("CHOICES: dict[str, tuple[str, ...]] = {")
    for name, shape in _of_kind(shapes, "string"):
        if "enum" in shape:
            lines.append(f'    "{name}": (')
            lines += [f'        "{each}",' for each in shape["enum"]]
            lines.append("    ),")
    lines += ["}", "", "# Errors: the code in the Query encoding, and the status of HTTP."]
    lines.append("ERRORS: dict[str, tuple[str, int]] = {")
    for name, shape in sorted(shapes.items()):
        if shape.get("exception"):
            lines.append(f'    "{name}": ("{_CODES.get(name, name)}", {_STATUSES.get(name, 400)}),')
    return "\n".join([*lines, "}", ""])


def _of_kind(shapes: dict[str, Any], kind: str) -> list[tuple[str, Any]]:
    return [
        (name, shape)
        for name, shape in sorted(shapes.items())
        if shape["type"] == kind and not shape.get("exception")
    ]


def _query_name(member: str, shape_name: str, shapes: dict[str, Any]) -> str:
    """The name of a member in the Query encoding."""
    shape = shapes[shape_name]
    if member in _SINGULAR or shape["type"] != "list":
        return _SINGULAR.get(member, member)
    item: str = shape["member"]["shape"]
    if shape_name in _ITEMS:
        return _ITEMS[shape_name]
    return shape_name.removesuffix("List") if item in ("String", "QueueAttributeName") else item


def installed_model() -> dict[str, Any]:
    """The model of SQS in the installed botocore."""
    model: dict[str, Any] = Loader().load_service_model("sqs", "service-2")
    return model


if __name__ == "__main__":
    TABLES.write_text(tables(installed_model()), encoding="utf-8")
