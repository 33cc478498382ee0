"""Results of Celery's tasks, kept with the queues: `cassq+file:///…` and `cassq+cassandra://…`.

They are written and kept as those of `cassq.tasks` are (`cassq/catalog/result_port.py`), in JSON or
as `result_serializer` says. A caller that waits for a result sleeps until one is written on this
machine; over a network it checks four times a second.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.utils.url import maybe_sanitize_url

from cassq.base.clock import Stopwatch, SystemClock
from cassq.celery.members import Members
from cassq.doorbell import LOOK_AGAIN_SECONDS, Doorbell, Waiter
from cassq.errors import BackendError
from cassq.kombu.brokers import TransportBroker, broker_of
from cassq.model.queues import KEPT_SECONDS_MAX

BELL = "celery-results"
# Waiting for many results may use this share of the time to look for them.
LOOKING_SHARE = 0.1


class Backend(KeyValueStoreBackend):
    """A result backend; Celery creates it from a URL that begins with `cassq+`."""

    key_t = str
    implements_incr = True  # chords are counted, by `on_chord_part_return`
    supports_native_join = True
    supports_autoexpire = True
    persistent = True

    def __init__(self, url: str | None = None, **kwargs: Any) -> None:
        self._cassq_url = (url or "").removeprefix("cassq+")
        super().__init__(url=url, **kwargs)
        self._pid = 0
        self._bell: Doorbell | None = None
        self._waiter: Waiter | None = None
        self._clock = SystemClock()
        self._parts = threading.local()

    def as_uri(self, include_password: bool = False) -> str:
        url = self._cassq_url
        return f"cassq+{url if include_password else maybe_sanitize_url(url)}"

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        return isinstance(exc, BackendError)

    @property
    def broker(self) -> TransportBroker:
        """The broker of this process at the backend's URL."""
        return broker_of(self._cassq_url)

    # --- values ---------------------------------------------------------------------------------

    @property
    def _results(self) -> Any:
        return self.broker.client.ports.catalog.results

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._results.get(key)
        return found

    def mget(self, keys: list[str]) -> list[bytes | None]:
        found = self._results.find(keys)
        return [found.get(key) for key in keys]

    def set(self, key: str, value: str | bytes) -> None:
        self._put(key, value, self.expires)

    def delete(self, key: str) -> None:
        self._results.drop([key])

    def expire(self, key: str, value: float | None) -> None:
        """Keep a value for `value` seconds from now."""
        found = self.get(key)
        if found is not None:
            self._put(key, found, value)

    def _put(self, key: str, value: str | bytes, seconds: float | None) -> None:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._results.put(key, raw, seconds or KEPT_SECONDS_MAX)
        self._doorbell().ring()

    # --- waiting --------------------------------------------------------------------------------

    def _check_process(self) -> None:
        """Forget what was opened before a fork: it belongs to the parent."""
        if self._pid != os.getpid():
            self._bell = self._waiter = None
            self._pid = os.getpid()

    def _doorbell(self) -> Doorbell:
        self._check_process()
        if self._bell is None:
            self._bell = self.broker.client.runtime.doorbell(BELL)
        return self._bell

    def _wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        bell = self._doorbell()
        if self._waiter is None:
            self._waiter = bell.listen()
        self._waiter.wait(min(seconds, LOOK_AGAIN_SECONDS), ready)

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        self._ensure_not_eager()
        watch = Stopwatch()
        while True:
            meta: dict[str, Any] = self.get_task_meta(task_id)
            if meta["status"] in states.READY_STATES:
                return meta
            if on_interval is not None:
                on_interval()
            left = LOOK_AGAIN_SECONDS if timeout is None else timeout - watch.seconds()
            if left <= 0:
                raise CeleryTimeoutError("The operation timed out.")
            self._wait(left, partial(self._is_ready, task_id))

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Any], None] | None = None,
        on_interval: Callable[[], None] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,  # noqa: N803 - Celery's name
    ) -> Iterator[tuple[str, Any]]:
        left, watch, looks = set(task_ids), Stopwatch(), 0
        while left:
            look = Stopwatch()
            found = list(
                super().get_many(
                    left,
                    interval=0,
                    on_message=on_message,
                    max_iterations=1,
                    READY_STATES=READY_STATES,
                )
            )
            looked, looks = look.seconds(), looks + 1
            left.difference_update(task_id for task_id, _ in found)
            yield from found
            if not left or looks == max_iterations:
                return
            seconds = LOOK_AGAIN_SECONDS if timeout is None else timeout - watch.seconds()
            if seconds <= 0:
                raise CeleryTimeoutError(f"Operation timed out ({timeout})")
            if on_interval is not None:
                on_interval()
            self._clock.sleep(min(seconds, looked / LOOKING_SHARE))
            if not found:
                self._wait(seconds, partial(self._is_ready, next(iter(left))))

    def _is_ready(self, task_id: str) -> bool:
        return self.get_state(task_id) in states.READY_STATES

    # --- chords ---------------------------------------------------------------------------------

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a finished task of a chord's header; the last one starts the chord's body.

        A task that is delivered again, after a crash or because its worker was slow, is counted
        only once.
        """
        if not request.group:
            return
        expires = getattr(self, "chord_expires", self.expires)  # Celery has it since 5.7
        kept = expires or KEPT_SECONDS_MAX
        members = Members(self._results, self.get_key_for_chord(request.group), kept)
        place = members.join(request.id)
        size = request.chord.get("chord_size")
        if size is not None and place < size:
            if expires and self.expires and expires > self.expires:
                self.expire(self.get_key_for_task(request.id), expires)
            return
        if members.is_over():
            return
        self._parts.place = place
        super().on_chord_part_return(request, state, result, **kwargs)
        if size is not None:
            members.end()

    def incr(self, key: str) -> int:
        """How many tasks of a chord's header have finished, for the one that finishes now."""
        return int(self._parts.place)

    def cleanup(self) -> None:
        """Nothing to do: results expire."""
