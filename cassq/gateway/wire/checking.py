"""Checks requests against the tables of SQS: types, required members, and names.

Checks the form that the JSON encoding has. Each shape is compiled into one function, once.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from typing import Any

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.sqs import ACTIONS, LISTS, MAPS, SCALARS, STRUCTURES

# A place in a request: the action; or the place around it, and its name or number there. Only an
# error makes a text of it.
Place = tuple["Place", str | int] | str
# Takes a value and its place; returns it, with bytes for base64.
Check = Callable[[Any, Place], Any]
INTEGERS = {"integer": 2**31, "long": 2**63}


def missing(name: str) -> ActionError:
    """The error for a missing parameter."""
    return ActionError("MissingParameter", f"The request must contain the parameter {name}.")


def unknown(name: str, where: Place) -> ActionError:
    """The error for a parameter that the action, or a part of it, does not have."""
    action, _, parameter = _path((where, name)).partition(".")
    return ActionError(
        "InvalidParameterValue",
        f"The parameter {parameter!r:.200} is invalid. Reason: {action} has no parameter of this"
        " name.",
    )


def _wrong(where: Place, wanted: str) -> ActionError:
    action, _, parameter = _path(where).partition(".")
    name = parameter or action
    return ActionError(
        "SerializationException", f"The parameter {name} is invalid. Reason: Must be {wanted}."
    )


def _path(where: Place) -> str:
    """A place as a text: the action, then names and numbers."""
    steps: list[str] = []
    while not isinstance(where, str):
        where, step = where
        steps.append(f"{step!s:.200}")
    return ".".join((where, *reversed(steps)))


def _text(value: Any, where: Place) -> Any:
    if type(value) is not str:
        raise _wrong(where, "a string")
    return value


def _boolean(value: Any, where: Place) -> Any:
    if type(value) is not bool:
        raise _wrong(where, "true or false")
    return value


def _bytes(value: Any, where: Place) -> Any:
    if type(value) is not str:
        raise _wrong(where, "a string of base64")
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _wrong(where, "a string of base64") from exc


def _integer(kind: str) -> Check:
    most = INTEGERS[kind]

    def check(value: Any, where: Place) -> Any:
        if type(value) is not int or not -most <= value < most:
            raise _wrong(where, f"an integer of {32 if kind == 'integer' else 64} bits")
        return value

    return check


def _list(item: str) -> Check:
    check_item = _check_of(item)

    def check(value: Any, where: Place) -> Any:
        if type(value) is not list:
            raise _wrong(where, "a list")
        return [check_item(each, (where, at)) for at, each in enumerate(value, 1)]

    return check


def _map(item: str) -> Check:
    check_item = _check_of(item)

    def check(value: Any, where: Place) -> Any:
        if type(value) is not dict:
            raise _wrong(where, "a map")
        return {key: check_item(each, (where, key)) for key, each in value.items()}

    return check


def _structure(name: str) -> Check:
    members = {member: _check_of(its[0]) for member, its in STRUCTURES[name].items()}
    required = [member for member, its in STRUCTURES[name].items() if its[2]]

    def check(value: Any, where: Place) -> Any:
        if type(value) is not dict:
            raise _wrong(where, "a structure")
        found = {}
        for member, each in value.items():
            check_member = members.get(member)
            if check_member is None:
                raise unknown(member, where)
            if check_member is _text and type(each) is str:
                found[member] = each  # most are: nothing to call, and no place to name
            elif each is not None:  # JSON's null: as if it were not there
                found[member] = check_member(each, (where, member))
        for member in required:
            if member not in found:
                raise missing(_path((where, member)).partition(".")[2])
        return found

    return check


_SIMPLE: dict[str, Check] = {
    "string": _text,
    "boolean": _boolean,
    "blob": _bytes,
    **{kind: _integer(kind) for kind in INTEGERS},
}


def _check_of(shape: str) -> Check:
    if shape in SCALARS:
        return _SIMPLE[SCALARS[shape]]
    if shape in LISTS:
        return _list(LISTS[shape])
    if shape in MAPS:
        return _map(MAPS[shape][1])
    return _structure(shape)


_CHECKS = {action: _check_of(shapes[0]) for action, shapes in ACTIONS.items()}


def checked(action: str, parameters: Any) -> dict[str, Any]:
    """The parameters of an action, as `Request.parameters` has them. Raises ActionError, which
    names the parameter: MissingParameter, InvalidParameterValue for one that is unknown, and
    SerializationException for one of another type. Cost: a microsecond per member."""
    found: dict[str, Any] = _CHECKS[action](parameters, action)
    return found
