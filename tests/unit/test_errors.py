"""Errors: their tree, what they say by default, their hints, fields and exit codes."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq import errors
from cassq.errors import (
    AbandonedTasksError,
    BackendError,
    BrokenInvariantError,
    CassqError,
    CorruptionError,
    OwnershipError,
    StepMismatchError,
    TaskFailedError,
    UsageError,
)
from cassq.extents.port import ExtentMissingError
from cassq.message.frames import FrameError

ROOT = Path(__file__).resolve().parents[2]

TREE = {
    UsageError: {
        *("ConfigError", "InvalidNameError", "InvalidPayloadError", "MessageTooLargeError"),
        *("MissingExtraError", "QueueNotFoundError", "QueueExistsError", "GroupNotFoundError"),
        *("GroupExistsError", "MessageNotFoundError", "ClosedError", "ForkedClientError"),
        *("InterruptedCallError", "ScheduleNotFoundError", "ScheduleExistsError"),
    },
    OwnershipError: {
        *("ClaimLostError", "ReceiptError", "LeaseLostError", "FencedError", "PipeSealedError"),
    },
    BackendError: {
        *("BackendUnavailableError", "BackendTimeoutError", "StorageFullError"),
        *("QueueFullError", "QueuePausedError"),
    },
    AbandonedTasksError: set(),
    TaskFailedError: set(),
    StepMismatchError: set(),
    CorruptionError: set(),
    BrokenInvariantError: set(),
}
EXIT_CODES = {UsageError: 2, BackendError: 75}


def every_error() -> Iterator[type[CassqError]]:
    for _, found in inspect.getmembers(errors, inspect.isclass):
        if issubclass(found, CassqError):
            yield found
    yield from (FrameError, ExtentMissingError)


each_error = pytest.mark.parametrize("error", list(every_error()), ids=lambda error: error.__name__)


def branch(error: type[CassqError]) -> type[CassqError] | None:
    return next((root for root in TREE if issubclass(error, root)), None)


def test_the_tree_is_the_one_that_is_promised() -> None:
    found: dict[type[CassqError], set[str]] = {root: set() for root in TREE}
    for error in every_error():
        root = branch(error)
        if error.__module__ == "cassq.errors" and root not in (None, error):
            assert root is not None
            found[root].add(error.__name__)
    assert found == TREE


@each_error
def test_every_error_belongs_to_one_branch(error: type[CassqError]) -> None:
    roots = [root for root in TREE if issubclass(error, root)]
    assert len(roots) == (0 if error is CassqError else 1)


@each_error
def test_the_docstring_is_the_default_message(error: type[CassqError]) -> None:
    doc = (error.__doc__ or "").strip().splitlines()[0]
    assert doc.endswith(".")
    raised = error()
    assert raised.message == doc
    assert str(raised).startswith(doc)


@each_error
def test_a_message_and_a_hint_of_one_s_own_take_the_place_of_the_defaults(
    error: type[CassqError],
) -> None:
    raised = error("it broke", hint="mend it", pipe="p", seq=5)
    assert (raised.message, raised.hint) == ("it broke", "mend it")
    assert str(raised) == "it broke (mend it)"
    assert raised.fields == {"pipe": "p", "seq": 5}


@each_error
def test_an_error_says_its_default_hint_and_nothing_when_it_has_none(
    error: type[CassqError],
) -> None:
    raised = error("it broke")
    assert raised.hint == error.default_hint
    assert str(raised) == (f"it broke ({error.default_hint})" if error.default_hint else "it broke")


@each_error
def test_the_exit_code_is_that_of_the_branch(error: type[CassqError]) -> None:
    root = branch(error)
    assert error.exit_code == EXIT_CODES.get(root, 1) if root else error.exit_code == 1


@each_error
def test_an_error_survives_the_way_to_another_process(error: type[CassqError]) -> None:
    raised = error("it broke", hint="mend it", pipe="p")
    if isinstance(raised, BackendError):
        raised.retryable = False
        raised.outcome_unknown = True
    again = pickle.loads(pickle.dumps(raised))
    assert type(again) is error
    assert vars(again) == vars(raised)
    assert str(again) == str(raised)


def test_a_backend_s_error_says_whether_to_retry_and_whether_it_may_have_happened() -> None:
    plain = BackendError()
    assert (plain.retryable, plain.outcome_unknown) == (True, False)
    found = BackendError("x", retryable=False, outcome_unknown=True, path="p")
    assert (found.retryable, found.outcome_unknown, found.fields) == (False, True, {"path": "p"})


def test_an_error_without_a_docstring_is_called_by_its_name() -> None:
    class UndocumentedError(UsageError): ...

    assert str(UndocumentedError()) == "UndocumentedError"


def test_errors_keep_working_where_docstrings_are_stripped() -> None:
    code = "from cassq.errors import QueueNotFoundError as E; print(E(), E('x', hint='y'))"
    child = subprocess.run(
        [sys.executable, "-OO", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert "QueueNotFoundError" in child.stdout
    assert child.stdout.rstrip().endswith("x (y)")


def test_the_errors_can_be_had_from_the_package() -> None:
    assert cassq.errors is errors
