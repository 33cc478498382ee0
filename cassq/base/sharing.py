"""Sharing: if several threads of one process need the same work, one of them does it for all.

While one works, the others wait; the next one works for all that came meanwhile. The result is kept
for the next call. Pushers do not use this for combining pushes: these have an order, a size at
which a frame is full and an outcome each, and a push alone takes a few microseconds.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cassq.base.clock import AutoResetEvent
from cassq.errors import CassqError

logger: logging.Logger = logging.getLogger("cassq")

K = TypeVar("K")
W = TypeVar("W")
L = TypeVar("L")
V = TypeVar("V")

LINES_KEPT = 256
BESIDE_MS = 10_000  # a list of this age will do while another is read in the background


class Background:
    """A thread for short jobs whose callers do not wait. It starts with the first job."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[object, Callable[[], object]] = OrderedDict()
        self._mutex = threading.Lock()
        self._event = AutoResetEvent()
        self._thread: threading.Thread | None = None
        self._closed = False

    def do(self, key: object, job: Callable[[], object]) -> None:
        """Do this soon, unless a job with the same key is waiting. A failure is only logged."""
        with self._mutex:
            if self._closed:
                return
            self._jobs.setdefault(key, job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cassq-background", daemon=True
                )
                self._thread.start()
        self._event.set()

    def _run(self) -> None:
        while not self._closed:
            with self._mutex:
                job = self._jobs.popitem(last=False)[1] if self._jobs else None
            if job is None:
                self._event.wait(3600.0)
                continue
            try:
                job()
            except CassqError as exc:
                # A caller that needs the result asks for it itself, and gets the error.
                logger.info("work in the background failed: %s", exc)
            except Exception:
                logger.exception("work in the background failed unexpectedly")

    def close(self) -> None:
        """Do nothing more; returns when the current job is over."""
        with self._mutex:
            self._closed = True
            self._jobs.clear()
            thread = self._thread
        self._event.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()


class _Place(Generic[W]):
    """One thread's place in a line."""

    __slots__ = ("request", "served")

    def __init__(self, request: W) -> None:
        self.request = request
        self.served = False


class _Followers(Generic[W, L]):
    """The threads with the same request. lock: held by the thread that serves it."""

    __slots__ = ("last", "lock", "places")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.places: list[_Place[W]] = []
        self.last: L | None = None


class Sharing(Generic[K, W, L]):
    """Lines of requests by key; the most recently used are kept.

    background: renews answers that callers do not wait for, if there is one.
    """

    def __init__(self, background: Background | None = None) -> None:
        self.background: Background | None = background
        self._lines: OrderedDict[K, _Followers[W, L]] = OrderedDict()
        self._lock = threading.Lock()

    def together(self, key: K, request: W, serve: Callable[[list[W], L | None], L | None]) -> None:
        """Have a request served, by this thread or another; requests wait in order.

        serve: gets all waiting requests, and the last result for this key. If it raises an error,
        only its own thread gets that; the other requests count as served, without a result.
        """
        line = self._line(key)
        place = _Place(request)
        line.places.append(place)
        with line.lock:
            if place.served:
                return
            places = list(line.places)
            del line.places[: len(places)]
            try:
                line.last = serve([each.request for each in places], line.last)
            except BaseException:
                line.last = None
                raise
            finally:
                for each in places:
                    each.served = True

    def last(self, key: K) -> L | None:
        """The last result for this key."""
        return self._line(key).last

    def busy(self, key: K) -> bool:
        """Whether a thread is serving this key."""
        return self._line(key).lock.locked()

    def _line(self, key: K) -> _Followers[W, L]:
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Followers()
                if len(self._lines) > LINES_KEPT:
                    self._lines.popitem(last=False)
            self._lines.move_to_end(key)
            return line


@dataclass(frozen=True, slots=True)
class SharedAnswer(Generic[V]):
    """An answer, and when its question was asked, in boot milliseconds."""

    asked_ms: int
    value: V


@dataclass(slots=True)
class _Question(Generic[V]):
    """since_ms: the answer to a question asked by then is too old."""

    since_ms: int
    answer: SharedAnswer[V] | None = None


def answered(
    sharing: Sharing[Any, Any, Any] | None,
    key: object,
    ask: Callable[[], V],
    now_ms: Callable[[], int],
    *,
    old_ms: int = 0,
    beside_ms: int = 0,
) -> SharedAnswer[V]:
    """What `ask` returns, to this thread or to another that called it after this call began.

    old_ms: the answer may also be this old; and while another thread is asking, the previous answer
    will do. beside_ms: an answer of this age will do as well; `Sharing.background`, if there is
    one, then renews it. sharing: None means that each thread asks for itself.
    """
    if sharing is None:
        return SharedAnswer(now_ms(), ask())
    question: _Question[V] = _Question(now_ms() - old_ms)
    if old_ms:
        last: SharedAnswer[V] | None = sharing.last(key)
        if last is not None and (last.asked_ms > question.since_ms or sharing.busy(key)):
            return last
        young = last is not None and last.asked_ms > now_ms() - beside_ms
        if last is not None and young and sharing.background is not None:
            sharing.background.do(key, lambda: answered(sharing, key, ask, now_ms))
            return last

    def serve(questions: list[_Question[V]], last: SharedAnswer[V] | None) -> SharedAnswer[V]:
        if last is None or any(last.asked_ms <= each.since_ms for each in questions):
            last = SharedAnswer(now_ms(), ask())
        for each in questions:
            each.answer = last
        return last

    sharing.together(key, question, serve)
    return question.answer or SharedAnswer(now_ms(), ask())
