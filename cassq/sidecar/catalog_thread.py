"""A sidecar's catalog: called in a thread, and opened when it answers, because the sidecar also
works without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cassq.base.clock import Stopwatch
from cassq.catalog.port import Catalog
from cassq.errors import BackendUnavailableError, CassqError, ConfigError

logger: logging.Logger = logging.getLogger("cassq")

T = TypeVar("T")


class CatalogThread:
    """Calls a catalog from a thread of its own, one question at a time.

    opened: the catalog if it is open already; if not, `open_it` opens it for the first question.
    cluster: the identity it must have. heard: time since it last answered; None if it never did.
    """

    def __init__(
        self, cluster: str, open_it: Callable[[], Catalog], opened: Catalog | None = None
    ) -> None:
        self.heard: Stopwatch | None = None
        self._cluster = cluster
        self._open = open_it
        self._catalog = opened
        self._thread = ThreadPoolExecutor(1, "cassq-catalog")
        self._away = False

    async def ask(self, question: Callable[[Catalog], T]) -> T:
        """The catalog's answer. Raises BackendError if there is none; logs this the first time."""
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._thread, self._ask, question)
        except CassqError as exc:
            if not self._away:
                logger.warning(
                    "the catalog cannot be reached, but the sidecar keeps serving: %s", exc
                )
            self._away = True
            raise
        if self._away:
            logger.warning("the catalog can be reached again")
        self._away = False
        self.heard = Stopwatch()
        return answer

    def close(self) -> None:
        """Wait for a question under way, and close the catalog."""
        self._thread.shutdown(cancel_futures=True)
        if self._catalog is not None:
            self._catalog.close()

    def _ask(self, question: Callable[[Catalog], T]) -> T:
        if self._catalog is None:
            try:
                opened = self._open()
            except ConfigError as exc:
                raise BackendUnavailableError(f"it cannot be opened: {exc.message}") from exc
            found = opened.records.identity()
            if found != self._cluster:
                opened.close()
                raise BackendUnavailableError(
                    f"it is not this sidecar's catalog: it has the identity {found}, not"
                    f" {self._cluster}"
                )
            self._catalog = opened
        return question(self._catalog)
