"""Errors without tracebacks hold nothing of what was worked on."""

from __future__ import annotations

import weakref

from cassq.base.os_errors import untraced


class Work:
    """What frames hold."""


def failure(work: Work) -> Exception:
    """An error that was raised because of another one, each in a frame that has work."""

    def first(_work: Work) -> None:
        raise KeyError("first")

    def second(_work: Work) -> None:
        try:
            first(_work)
        except KeyError as exc:
            raise ValueError("second") from exc

    try:
        second(work)
    except ValueError as exc:
        return exc
    raise AssertionError("it was raised")


def test_an_error_and_those_behind_it_let_go_of_frames() -> None:
    work = Work()
    known = weakref.ref(work)
    error = failure(work)
    del work
    assert known() is not None
    assert untraced(error) is error
    assert known() is None
    assert isinstance(error.__cause__, KeyError)


def test_errors_may_be_behind_each_other() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__context__ = other, one
    assert untraced(one) is one
