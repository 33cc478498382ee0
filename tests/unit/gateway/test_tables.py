"""The tables of SQS are those of the installed botocore."""

from __future__ import annotations

from typing import Any

from cassq.gateway.wire import sqs
from tests.gateway_model import installed_model, tables


def test_the_tables_equal_botocores_model() -> None:
    made: dict[str, Any] = {}
    exec(compile(tables(installed_model()), "tables", "exec", dont_inherit=True), made)
    for name in ("ACTIONS", "STRUCTURES", "LISTS", "MAPS", "SCALARS", "CHOICES", "ERRORS"):
        assert getattr(sqs, name) == made[name], "run `python -m tests.gateway_model`"


def test_every_list_and_map_is_flattened() -> None:
    """The Query encoding here knows no other form."""
    shapes = installed_model()["shapes"]
    for name in (*sqs.LISTS, *sqs.MAPS):
        by_members = [
            member.get("flattened")
            for shape in shapes.values()
            if shape["type"] == "structure"
            for member in shape["members"].values()
            if member["shape"] == name
        ]
        assert shapes[name].get("flattened") or all(by_members), name


def test_all_23_actions_are_there() -> None:
    assert len(sqs.ACTIONS) == 23
    assert sqs.ERRORS["QueueDoesNotExist"] == ("AWS.SimpleQueueService.NonExistentQueue", 400)
    assert sqs.ERRORS["PurgeQueueInProgress"][1] == 403
