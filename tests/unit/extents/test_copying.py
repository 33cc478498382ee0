"""Copying: whom a copy is made from, and when it counts. Pure, by what sidecars answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cassq.extents.protocol.messages import (
    Done,
    Listed,
    ListedExtent,
    Replicate,
    Replicated,
    Scrubbed,
)
from cassq.extents.replicas.fleet import Need
from cassq.extents.sidecar.net.network import CallResult
from cassq.extents.sidecar.repair.copying import Copying, CopyStep
from cassq.model.sidecar_rows import Placement, ReplicaAt

PIPE, END = "0123456789abcdef01234567", 100
A, B, C = (ReplicaAt(name, f"{name}-1") for name in "abc")
ADDRESSES = {"a": "a:1", "b": "b:1", "c": "c:1"}
WHOLE: dict[str, Any] = {"end": END, "final": END, "damage": "", "copying": False}


def an_extent(**changes: Any) -> ListedExtent:
    facts = WHOLE | changes
    return ListedExtent(
        PIPE, "q", facts["end"], facts["final"], True, 1000, 5, facts["damage"], facts["copying"]
    )


def a_copying() -> Copying:
    """`c` is damaged, and to be copied anew in its place from `a` or `b`."""
    placement = Placement(PIPE, "q", False, (A, B, C), 3, "v1", 5, END)
    return Copying(Need(placement, 2, sources=[A, B], in_place=C), ADDRESSES, random.Random(0))


def looked(copying: Copying, *extents: ListedExtent | None) -> None:
    """Have it hear what each source has; the damaged one tells that it is so."""
    answers = [
        CallResult(at.sidecar, [Done(), Listed([found] if found else [])], None)
        for at, found in zip((A, B), extents, strict=True)
    ]
    answers.append(CallResult("c", [Listed([an_extent(damage="bad")])], None))
    copying.take(answers)


def source_of(copying: Copying) -> str:
    """Whom the next step asks first."""
    return copying.calls(1 << 20)[0].sidecar


def scrubbed(copying: Copying, *replies: Scrubbed) -> None:
    calls = copying.calls(1 << 20)
    copying.take(
        [CallResult(c.sidecar, [reply], None) for c, reply in zip(calls, replies, strict=True)]
    )


def test_a_whole_replica_is_the_source() -> None:
    copying = a_copying()
    looked(copying, an_extent(), an_extent())
    assert copying.step is CopyStep.CHECK
    assert source_of(copying) == "a"


@pytest.mark.parametrize(
    "bad",
    [
        an_extent(damage="the frame at seq 3 has changed"),
        an_extent(copying=True),
        an_extent(end=END - 1),
        an_extent(final=-1),
        None,
    ],
    ids=["damaged", "a copy that is not whole", "shorter", "not settled", "not there"],
)
def test_one_that_is_not_whole_is_not_a_source(bad: ListedExtent | None) -> None:
    copying = a_copying()
    looked(copying, bad, an_extent())
    assert source_of(copying) == "b"


@pytest.mark.parametrize("bad", [{"damage": "bad"}, {"copying": True}])
def test_without_a_whole_one_nothing_is_copied(bad: dict[str, Any]) -> None:
    copying = a_copying()
    looked(copying, an_extent(**bad), an_extent(**bad))
    assert copying.step is CopyStep.FAILED
    assert copying.calls(1 << 20) == []


def test_a_copy_counts_once_it_is_the_same_as_its_source() -> None:
    copying = a_copying()
    looked(copying, an_extent(), an_extent())
    scrubbed(copying, Scrubbed(END, "", "digest"))
    assert copying.step is CopyStep.COPY
    (call,) = copying.calls(1 << 20)
    assert call.sidecar == "c"
    assert isinstance(call.requests[0], Replicate)
    assert call.requests[0].source == "a:1"
    copying.take([CallResult("c", [Replicated(END)], None)])
    assert copying.step is CopyStep.VERIFY
    scrubbed(copying, Scrubbed(END, "", "digest"), Scrubbed(END, "", "digest"))
    assert copying.step is CopyStep.DONE


@pytest.mark.parametrize(
    "found", [Scrubbed(END, "", "another"), Scrubbed(END, "bad", "digest")], ids=["other", "bad"]
)
def test_a_copy_that_differs_does_not_count(found: Scrubbed) -> None:
    copying = a_copying()
    looked(copying, an_extent(), an_extent())
    scrubbed(copying, Scrubbed(END, "", "digest"))
    copying.take([CallResult("c", [Replicated(END)], None)])
    scrubbed(copying, Scrubbed(END, "", "digest"), found)
    assert copying.step is CopyStep.FAILED
