"""A thread that sends all requests of a session, for services whose locks belong to a thread. Not
this thread but its callers wait for the answers, for a limited time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from cassq.base.clock import wait_event


class OwnerThread:
    """Makes calls one after another."""

    def __init__(self, name: str) -> None:
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name=name, daemon=True).start()

    def ask(self, call: Callable[[], Any], seconds: float) -> Any:
        """Make a call that returns a value or a future (`add_done_callback`, `result`).

        Raises TimeoutError if there is no result within `seconds`; the call may still succeed.
        """
        done, answers = threading.Event(), list[Any]()

        def answered(future: Any) -> None:
            answers.append(future)
            done.set()

        def request() -> None:
            try:
                future = call()
                if hasattr(future, "add_done_callback"):
                    future.add_done_callback(answered)
                else:
                    answered(future)
            except Exception as exc:
                answered(exc)

        self._requests.put(request)
        if not wait_event(done, seconds):
            raise TimeoutError
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0].result() if hasattr(answers[0], "result") else answers[0]

    def stop(self) -> None:
        """End it after the pending calls."""
        self._requests.put(None)

    def _send(self) -> None:
        while (request := self._requests.get()) is not None:
            request()
