"""Sharing: one thread does for several what they all want."""

from __future__ import annotations

import threading

import pytest

from cassq.base.sharing import Background, Sharing, answered
from cassq.errors import BackendTimeoutError
from tests.integration.deadlines import eventually, joined


def test_a_thread_that_comes_during_the_work_is_served_with_the_others_that_wait() -> None:
    sharing: Sharing[str, int, str] = Sharing()
    served: list[tuple[list[int], str | None]] = []
    at_it, go_on = threading.Event(), threading.Event()

    def serve(requests: list[int], last: str | None) -> str:
        served.append((requests, last))
        if requests == [0]:
            at_it.set()
            assert go_on.wait(30)
        return f"after {requests}"

    threads = [
        threading.Thread(target=sharing.together, args=("pipe", number, serve))
        for number in range(4)
    ]
    threads[0].start()
    assert at_it.wait(30)
    line = sharing._lines["pipe"]
    for number in (1, 2, 3):
        threads[number].start()
        eventually("it waits", lambda number=number: len(line.places) == number)
    go_on.set()
    for thread in threads:
        joined("all are served", thread)
    assert served == [([0], None), ([1, 2, 3], "after [0]")]


def test_requests_for_different_things_do_not_wait_for_one_another() -> None:
    sharing: Sharing[str, int, None] = Sharing()
    served: list[int] = []

    def inner(requests: list[int], _last: None) -> None:
        served.extend(requests)

    def outer(requests: list[int], _last: None) -> None:
        sharing.together("another", 2, inner)
        served.extend(requests)

    sharing.together("one", 1, outer)
    assert served == [2, 1]


def test_an_error_is_raised_in_its_own_thread_and_nothing_is_left_behind() -> None:
    sharing: Sharing[str, int, str] = Sharing()

    def fail(requests: list[int], last: str | None) -> str:
        raise ValueError(requests)

    def serve(requests: list[int], last: str | None) -> str:
        assert (requests, last) == ([2], None)
        return "served"

    with pytest.raises(ValueError, match="1"):
        sharing.together("pipe", 1, fail)
    sharing.together("pipe", 2, serve)


def test_an_answer_serves_every_call_that_began_before_its_question() -> None:
    sharing: Sharing[str, object, object] = Sharing()
    now_ms = [100]
    asked: list[int] = []
    at_it, go_on = threading.Event(), threading.Event()

    def ask() -> int:
        asked.append(now_ms[0])
        if len(asked) == 1:
            at_it.set()
            assert go_on.wait(30)
        return len(asked)

    found: list[int] = []

    def want() -> None:
        found.append(answered(sharing, "pipes", ask, lambda: now_ms[0]).value)

    threads = [threading.Thread(target=want) for _ in range(4)]
    threads[0].start()
    assert at_it.wait(30)
    now_ms[0] = 101
    line = sharing._lines["pipes"]
    for count, thread in enumerate(threads[1:], 1):
        thread.start()
        eventually("it waits", lambda count=count: len(line.places) == count)
    go_on.set()
    for thread in threads:
        joined("all have an answer", thread)
    # What was being asked when the others came may be too old for them; one asks for all three.
    assert (asked, sorted(found)) == ([100, 101], [1, 2, 2, 2])
    assert answered(sharing, "pipes", ask, lambda: 101).value == 3


def test_an_old_answer_is_used_by_calls_that_allow_it() -> None:
    sharing: Sharing[str, object, object] = Sharing()
    values = iter("abc")

    def get(now_ms: int, old_ms: int) -> str:
        return answered(sharing, "pipes", lambda: next(values), lambda: now_ms, old_ms=old_ms).value

    assert [get(100, 50), get(149, 50), get(150, 50), get(150, 0)] == ["a", "a", "b", "c"]


def test_a_call_that_allows_an_old_answer_does_not_wait_for_a_new_one() -> None:
    sharing: Sharing[str, object, object] = Sharing()
    at_it, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        at_it.set()
        assert go_on.wait(30)
        return "new"

    assert answered(sharing, "pipes", lambda: "old", lambda: 100).value == "old"
    asking = threading.Thread(target=answered, args=(sharing, "pipes", slow, lambda: 999))
    asking.start()
    assert at_it.wait(30)
    assert answered(sharing, "pipes", slow, lambda: 1000, old_ms=50).value == "old"
    go_on.set()
    joined("it is answered", asking)
    assert answered(sharing, "pipes", slow, lambda: 1000, old_ms=50).value == "new"


def test_an_answer_is_renewed_in_the_background_while_an_older_one_does() -> None:
    background = Background()
    sharing: Sharing[str, object, object] = Sharing(background)
    now_ms, asked, go_on = [100], list[str](), threading.Event()

    def ask() -> int:
        asked.append(threading.current_thread().name)
        assert len(asked) == 1 or go_on.wait(30)
        return len(asked)

    def get() -> int:
        found = answered(sharing, "pipes", ask, lambda: now_ms[0], old_ms=50, beside_ms=1000)
        return found.value

    mine = threading.current_thread().name
    assert get() == 1, "nobody has asked yet, so this caller waits"
    now_ms[0] = 200
    assert get() == 1, "it does not wait for the new answer"
    eventually("the new answer is being asked for", lambda: len(asked) == 2)
    go_on.set()
    eventually("it is there", lambda: get() == 2)
    assert asked == [mine, "cassq-background"]
    now_ms[0] = 1200
    assert get() == 3, "an answer that old will not do"
    assert asked[2] == mine
    background.close()


def test_a_job_in_the_background_is_done_once_for_all_that_ask_meanwhile() -> None:
    background = Background()
    done: list[str] = []
    at_it, go_on = threading.Event(), threading.Event()

    def first() -> None:
        at_it.set()
        assert go_on.wait(30)

    def fail() -> None:
        done.append("failed")
        raise BackendTimeoutError("no answer")

    background.do("first", first)
    assert at_it.wait(30)
    for _ in range(3):
        background.do("note", fail)
    background.do("other", lambda: done.append("other"))
    go_on.set()
    eventually("both are done", lambda: len(done) >= 2)
    assert done == ["failed", "other"]
    background.close()
    background.do("late", lambda: done.append("late"))
    assert done == ["failed", "other"], "a closed one does nothing"


def test_a_thread_that_waited_for_an_answer_that_never_came_asks_for_it_itself() -> None:
    sharing: Sharing[str, object, object] = Sharing()
    at_it, go_on = threading.Event(), threading.Event()
    raised: list[Exception] = []

    def hold(_requests: list[object], _last: object) -> None:
        at_it.set()
        assert go_on.wait(30)

    def fail() -> str:
        raise ValueError("first")

    def want() -> None:
        try:
            answered(sharing, "pipes", fail, lambda: 100)
        except ValueError as error:
            raised.append(error)

    holding = threading.Thread(target=sharing.together, args=("pipes", None, hold))
    holding.start()
    assert at_it.wait(30)
    line = sharing._lines["pipes"]
    failing = [threading.Thread(target=want) for _ in range(2)]
    for count, thread in enumerate(failing, 1):
        thread.start()
        eventually("it waits", lambda count=count: len(line.places) == count)
    go_on.set()
    for thread in (holding, *failing):
        joined("all are over", thread)
    assert len(raised) == 2


def test_where_nothing_is_shared_everyone_asks() -> None:
    values = iter("ab")
    found = [answered(None, "pipes", lambda: next(values), lambda: 1, old_ms=99) for _ in "ab"]
    assert [answer.value for answer in found] == ["a", "b"]
