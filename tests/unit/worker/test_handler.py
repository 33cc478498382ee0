"""Handlers: what may be one, and how one is found by its name."""

from __future__ import annotations

import functools
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cassq.errors import UsageError
from cassq.worker.handler import check_handler, check_result, is_async, load_handler

Write = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module that can be imported; returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def write(text: str) -> str:
        names.append(f"tasks_{uuid.uuid4().hex}")
        (tmp_path / f"{names[-1]}.py").write_text(text)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


class Sender:
    def send(self, message: object) -> None: ...

    def __call__(self, message: object, *, again: bool = False) -> None: ...


class Later:
    async def __call__(self, message: object) -> None: ...


async def later(message: object) -> None: ...


def lazy(message: object) -> Iterator[None]:
    yield


async def lazily(message: object) -> AsyncIterator[None]:
    yield


def two(message: object, other: object) -> None: ...


@pytest.mark.parametrize(
    "handler", [print, Sender(), Sender().send, lambda message: None, functools.partial(two, 1)]
)
def test_whatever_takes_a_message_is_a_handler(handler: object) -> None:
    assert check_handler(handler) is handler
    assert not is_async(handler)


@pytest.mark.parametrize("handler", [later, functools.partial(later), Later(), Later().__call__])
def test_an_async_function_is_a_handler_for_an_event_loop(handler: object) -> None:
    assert check_handler(handler) is handler
    assert is_async(handler)


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (7, "must be a function of one message, not int"),
        (lazy, "is a generator function"),
        (lazily, "is a generator function"),
        (two, r"must take one argument, the message, but its parameters are \(message"),
        (lambda: None, r"its parameters are \(\)"),
    ],
)
def test_what_could_not_do_its_work_is_refused(handler: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_handler(handler)


def test_a_result_still_to_be_run_is_refused() -> None:
    for result in (later(None), lazy(None)):
        with pytest.raises(TypeError, match="instead of running it"):
            check_result(result)
    check_result(None)
    check_result([1, 2])


def test_a_handler_is_found_by_its_name(module: Write) -> None:
    name = module("class sender:\n    @staticmethod\n    def send(message): return 'sent'\n")
    assert load_handler(f"{name}:sender.send")(None) == "sent"  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["tasks", "tasks:", ":send", ""])
def test_a_name_of_another_form_is_refused(spec: str) -> None:
    with pytest.raises(UsageError, match="does not name a handler") as error:
        load_handler(spec)
    assert "MODULE:OBJECT" in error.value.hint


def test_a_missing_module_and_a_missing_object_are_named(module: Write) -> None:
    with pytest.raises(UsageError, match="there is no module 'no_such_package.tasks'"):
        load_handler("no_such_package.tasks:send")
    name = module("def send(message): ...\ndef _own(message): ...\n")
    with pytest.raises(UsageError, match=f"module '{name}' has no 'sendd'") as error:
        load_handler(f"{name}:sendd")
    assert error.value.hint == "it has: send"
    with pytest.raises(UsageError, match="must be a function of one message, not str"):
        load_handler(f"{name}:__name__")


def test_what_a_module_raises_at_import_is_passed_on(module: Write) -> None:
    with pytest.raises(ZeroDivisionError):
        load_handler(f"{module('1 / 0')}:send")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_handler(f"{module('import no_such_dependency')}:send")
