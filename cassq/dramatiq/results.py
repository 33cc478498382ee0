"""The results backend: what actors return is kept with the queues."""

from __future__ import annotations

from typing import Any

from cassq.client.places import QueueRegistry
from cassq.extras import wanted

with wanted("the results backend for Dramatiq needs", "dramatiq", "dramatiq"):
    from dramatiq.results import ResultBackend
    from dramatiq.results.backend import Missing


class Results(ResultBackend):
    """Results, stored with the queues at `url`, each until its `result_ttl` is over. They are not
    synced: a power cut may lose the last ones. options: those of Dramatiq's ResultBackend."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._registry = QueueRegistry(url, {})

    def _get(self, message_key: str) -> Any:
        raw = self._registry.client.ports.catalog.results.get(_key(message_key))
        return Missing if raw is None else self.encoder.decode(raw)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        results = self._registry.client.ports.catalog.results
        results.put(_key(message_key), self.encoder.encode(result), ttl / 1000)

    def close(self) -> None:
        """Close the client of this process."""
        self._registry.close()


def _key(message_key: str) -> str:
    return f"dramatiq:{message_key}"
