"""cassq for Celery: importing it registers `cassq+file:///…` and `cassq+cassandra://…` as URLs of
brokers, and makes groups publish their tasks in batches.

    import cassq.celery

    app = Celery("mail", broker="cassq+file:///var/lib/cassq", backend="cassq+file:///var/lib/cassq")

The transport is `cassq.kombu`. This package has the result backend, which Celery finds by its entry
point, the scheduler for beat, `cassq.celery:Scheduler`, and `batch`.
"""

from __future__ import annotations

from typing import Any

from cassq import extras

with extras.wanted("cassq.celery needs", "celery", "celery"):
    import celery  # noqa: F401
    from kombu.transport import TRANSPORT_ALIASES

from cassq.celery.groups import publish_in_batches

TRANSPORT_ALIASES["cassq"] = "cassq.kombu:Transport"
publish_in_batches()

_HOMES = {
    "Backend": "cassq.celery.results",
    "Scheduler": "cassq.celery.beats",
    "batch": "cassq.kombu.batches",
}


def __getattr__(name: str) -> Any:
    # The scheduler imports all of Celery's beat.
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cassq.celery' has no attribute {name!r}")
    return getattr(import_module(home), name)
