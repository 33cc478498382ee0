"""The Query encoding: parameters in a form or a URL, answers in XML. Older SDKs use it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.checking import checked, unknown
from cassq.gateway.wire.json_codec import legacy_code
from cassq.gateway.wire.sqs import ACTIONS, LISTS, MAPS, SCALARS, STRUCTURES

CONTENT_TYPE = b"text/xml"
IDENTITY = "GetCallerIdentity"  # the one action of STS that is served
PARAMETERS_MAX = 2048  # ten messages with ten attributes each have 430
SQS_SPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
STS_SPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
# Parameters that are not the action's own.
_COMMON = frozenset(
    {
        "Action",
        "Version",
        "Expires",
        "Timestamp",
        "AWSAccessKeyId",
        "Signature",
        "SignatureMethod",
        "SignatureVersion",
        "SecurityToken",
    }
)
_DECLARATION = '<?xml version="1.0"?>'
Tree = dict[str, Any]


def pairs_of(raw: bytes) -> dict[str, str]:
    """The parameters of a form, or of a URL's query. Raises ActionError for too many parameters,
    one that is given twice, or text that is not UTF-8."""
    found: dict[str, str] = {}
    if not raw:
        return found
    parts = raw.split(b"&", PARAMETERS_MAX)
    if len(parts) > PARAMETERS_MAX:
        raise _malformed(f"it has more than {PARAMETERS_MAX} parameters")
    for part in parts:
        if not part:
            continue
        name, _, value = part.partition(b"=")
        try:
            key = unquote_to_bytes(name.replace(b"+", b" ")).decode()
            text = unquote_to_bytes(value.replace(b"+", b" ")).decode()
        except UnicodeDecodeError as exc:
            raise _malformed("it is not UTF-8") from exc
        if key in found:
            raise _malformed(f"the parameter {key!r:.200} is there twice")
        found[key] = text
    return found


def _malformed(why: str) -> ActionError:
    return ActionError("MalformedQueryString", f"The query string is malformed: {why}.")


def action_of(pairs: Mapping[str, str]) -> str:
    """The requested action. Raises ActionError if it is missing or unknown."""
    action = pairs.get("Action")
    if action is None:
        raise ActionError("MissingAction", "The request must contain the parameter Action.")
    if action not in ACTIONS and action != IDENTITY:
        raise ActionError(
            "InvalidAction", f"The action {action!r:.200} is not valid for this endpoint."
        )
    return action


def decoded(action: str, pairs: Mapping[str, str], queue_url: str) -> dict[str, Any]:
    """The parameters of an action. queue_url: of the queue that the path names, "" if it names
    none. Raises ActionError."""
    shape = ACTIONS[action][0]
    tree: Tree = {}
    for name, value in pairs.items():
        if name not in _COMMON and not name.startswith("X-Amz-"):
            _plant(tree, name, value)
    if queue_url and "QueueUrl" in STRUCTURES[shape]:
        tree.setdefault("QueueUrl", queue_url)
    return checked(action, _structure(shape, tree, action))


def _plant(tree: Tree, name: str, value: str) -> None:
    """Put a value where its name says: `Tag.1.Key` into {"Tag": {"1": {"Key": ...}}}."""
    *way, last = name.split(".", 8)
    for step in way:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise _malformed(f"the parameter {name!r:.200} is both a value and a structure")
    if last in tree:
        raise _malformed(f"the parameter {name!r:.200} is both a value and a structure")
    tree[last] = value


def _structure(shape: str, tree: Any, where: str) -> Any:
    """A structure in the JSON encoding's form, for `checked`."""
    if not isinstance(tree, dict):
        return tree
    found: Tree = {}
    for member, (its_shape, name, required) in STRUCTURES[shape].items():
        if name in tree:
            found[member] = _value(its_shape, tree.pop(name), f"{where}.{member}")
        elif required and its_shape in LISTS:
            found[member] = []  # the encoding of an empty list
        elif required and its_shape in MAPS:
            found[member] = {}
    if tree:
        raise unknown(next(iter(tree)), where)
    return found


def _value(shape: str, tree: Any, where: str) -> Any:
    if shape in LISTS:
        return [_value(LISTS[shape], each, where) for each in _numbered(tree, where)]
    if shape in MAPS:
        key, item = MAPS[shape]
        entries: Tree = {}
        for each in _numbered(tree, where):
            if not isinstance(each, dict) or not isinstance(each.get(key), str):
                raise _malformed(f"an item of {where.partition('.')[2]} has no {key}")
            if extra := each.keys() - {key, "Value"}:
                raise unknown(min(extra), where)
            entries[each[key]] = _value(item, each.get("Value"), f"{where}.{each[key]}"[:200])
        return entries
    if shape in STRUCTURES:
        return _structure(shape, tree, where)
    return _scalar(SCALARS[shape], tree)


def _numbered(tree: Any, where: str) -> list[Any]:
    """The items of a list, in the order of their numbers, which may have gaps."""
    if isinstance(tree, dict) and all(key.isascii() and key.isdigit() for key in tree):
        return [tree[key] for key in sorted(tree, key=lambda key: int(key[:18]))]
    raise _malformed(f"the items of {where.partition('.')[2]} are not numbered")


def _scalar(kind: str, text: Any) -> Any:
    """A value converted to its type; if that fails, the value itself, which `checked` refuses."""
    if not isinstance(text, str):
        return text
    match kind:
        case "integer" | "long":
            digits = text.removeprefix("-")
            return int(text) if digits.isascii() and digits.isdigit() and len(text) < 20 else text
        case "boolean":
            return {"true": True, "false": False}.get(text, text)
    return text


# --- answers -----------------------------------------------------------------------------------


def encoded(action: str, members: Mapping[str, Any], request_id: str) -> bytes:
    """The body of an answer."""
    shape = ACTIONS[action][1]
    parts = [f'{_DECLARATION}<{action}Response xmlns="{SQS_SPACE}">']
    if shape:
        parts.append(f"<{action}Result>")
        _write_structure(shape, members, parts.append)
        parts.append(f"</{action}Result>")
    parts.append(_tail(request_id))
    parts.append(f"</{action}Response>")
    return "".join(parts).encode("utf-8", "xmlcharrefreplace")


def identity(account: str, arn: str, user: str, request_id: str) -> bytes:
    """The answer of GetCallerIdentity."""
    return (
        f'{_DECLARATION}<{IDENTITY}Response xmlns="{STS_SPACE}"><{IDENTITY}Result>'
        f"<Arn>{escaped(arn)}</Arn><UserId>{escaped(user)}</UserId><Account>{account}</Account>"
        f"</{IDENTITY}Result>{_tail(request_id)}</{IDENTITY}Response>"
    ).encode()


def _tail(request_id: str) -> str:
    return f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"


def error(failure: ActionError, request_id: str) -> bytes:
    """The body of an error."""
    kind = "Sender" if failure.sender else "Receiver"
    return (
        f'{_DECLARATION}<ErrorResponse xmlns="{SQS_SPACE}"><Error><Type>{kind}</Type>'
        f"<Code>{escaped(legacy_code(failure))}</Code>"
        f"<Message>{escaped(_printable(failure.message))}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode("utf-8", "replace")


def escaped(text: str) -> str:
    """A text escaped for XML; also carriage returns, which XML would read as line feeds."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\r", "&#13;")):
        if character in text:
            text = text.replace(character, entity)
    return text


def _printable(text: str) -> str:
    """A text without control characters, which XML does not allow."""
    return "".join(each if each >= " " or each in "\t\n" else "?" for each in text)


def _write_structure(
    shape: str, members: Mapping[str, Any], write: Callable[[str], object]
) -> None:
    for member, (its_shape, name, _) in STRUCTURES[shape].items():
        if member in members:
            _write(its_shape, name, members[member], write)


def _write(shape: str, name: str, value: Any, write: Callable[[str], object]) -> None:
    if shape in LISTS:
        items: Iterable[Any] = value
        for each in items:
            _write(LISTS[shape], name, each, write)
    elif shape in MAPS:
        key, item = MAPS[shape]
        for each, its in value.items():
            write(f"<{name}><{key}>{escaped(each)}</{key}>")
            _write(item, "Value", its, write)
            write(f"</{name}>")
    elif shape in STRUCTURES:
        write(f"<{name}>")
        _write_structure(shape, value, write)
        write(f"</{name}>")
    else:
        write(f"<{name}>{_shown(value)}</{name}>")


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return escaped(str(value))
