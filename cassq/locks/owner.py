"""A thread that sends all requests of a session; only its callers wait for answers, for a limited
time. For locks that belong to a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from cassq.base.clock import wait_event


class OwnerThread:
    """Sends what it is given, one after another."""

    def __init__(self, name: str) -> None:
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name=name, daemon=True).start()

    def ask(self, call: Callable[[], Any], seconds: float) -> Any:
        """The answer to a call that returns it, or a future of it (`add_done_callback`, `result`).

        Raises TimeoutError when it has not come within `seconds`; then it may come any time.
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
        """End it after the calls it was given before."""
        self._requests.put(None)

    def _send(self) -> None:
        while (request := self._requests.get()) is not None:
            request()
