"""Requests are held to the tables of SQS: every member of every action, and of what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.checking import checked
from cassq.gateway.wire.sqs import ACTIONS, LISTS, MAPS, SCALARS, STRUCTURES

RIGHT = {"string": "x", "boolean": True, "blob": "eA==", "integer": 1, "long": 1}
WRONG = {
    "string": (1, True, []),
    "boolean": (1, "true"),
    "blob": (1, "?"),
    "integer": ("1", True, 1.0),
}
WRONG["long"] = WRONG["integer"]


def example(shape: str) -> Any:
    """A value of a shape, with its required members."""
    if shape in SCALARS:
        return RIGHT[SCALARS[shape]]
    if shape in LISTS:
        return [example(LISTS[shape])]
    if shape in MAPS:
        return {"k": example(MAPS[shape][1])}
    return {name: example(its[0]) for name, its in STRUCTURES[shape].items() if its[2]}


def wrong_values(shape: str, place: str) -> Iterator[tuple[Any, str]]:
    """Values that are not of a shape, and the place that the error names."""
    if shape in SCALARS:
        yield from ((value, place) for value in WRONG[SCALARS[shape]])
        return
    yield "x", place
    if shape in LISTS:
        yield {}, place
        yield from (([value], at) for value, at in wrong_values(LISTS[shape], f"{place}.1"))
    elif shape in MAPS:
        yield [], place
        yield from (({"k": value}, at) for value, at in wrong_values(MAPS[shape][1], f"{place}.k"))
    else:
        yield [], place
        for name, (inner, _, _) in STRUCTURES[shape].items():
            for value, at in wrong_values(inner, f"{place}.{name}"):
                yield {**example(shape), name: value}, at


def refused(action: str, parameters: Any) -> tuple[str, str]:
    """The code of the error, and its message."""
    with pytest.raises(ActionError) as caught:
        checked(action, parameters)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("action", ACTIONS)
def test_each_parameter_has_its_type(action: str) -> None:
    whole = example(ACTIONS[action][0])
    checked(action, whole)
    for name, (shape, _, is_required) in STRUCTURES[ACTIONS[action][0]].items():
        for value, place in wrong_values(shape, name):
            code, message = refused(action, {**whole, name: value})
            assert (code, f"parameter {place} is" in message) == ("SerializationException", True)
        assert checked(action, {**whole, name: example(shape)})[name] is not None
        without = {key: value for key, value in whole.items() if key != name}
        for missing in (without, {**whole, name: None}):
            if is_required:
                assert refused(action, missing) == (
                    "MissingParameter",
                    f"The request must contain the parameter {name}.",
                )
            else:
                assert name not in checked(action, missing)


@pytest.mark.parametrize("action", ACTIONS)
def test_what_an_action_does_not_have_is_refused(action: str) -> None:
    whole = example(ACTIONS[action][0])
    code, message = refused(action, {**whole, "Nonsense": 1})
    assert code == "InvalidParameterValue"
    assert message == (
        f"The parameter 'Nonsense' is invalid. Reason: {action} has no parameter of this name."
    )


def test_members_of_entries_are_required_and_known() -> None:
    entry = {"Id": "1", "MessageBody": "x"}
    asked = {"QueueUrl": "u", "Entries": [entry, {"Id": "2"}]}
    assert refused("SendMessageBatch", asked)[1].endswith("parameter Entries.2.MessageBody.")
    asked = {"QueueUrl": "u", "Entries": [{**entry, "x" * 1000: 1}]}
    code, message = refused("SendMessageBatch", asked)
    assert code == "InvalidParameterValue"
    assert "'Entries.1.xxx" in message
    assert len(message) < 400
